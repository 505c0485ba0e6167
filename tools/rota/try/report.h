// What `rota try` has measured, as a table for people and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/rota/try/copies.h"
#include "tools/rota/try/sampler.h"

namespace rota::attempt {

// One of the ways in which copies were run, with all its rounds.
struct Way {
  std::string name;  // "alone", "2 natively", "2 under rota"
  unsigned copies = 1;
  bool under_rota = false;
  struct Round {
    Together run;
    Seen seen;
  };
  std::vector<Round> rounds;
};

struct Report {
  std::vector<std::string> command;
  std::vector<Way> ways;  // the first one alone
  std::string nvml_problem;
  bool rotad_is_here = true;
  std::vector<std::string> remarks;  // rota's messages in the copies' output, and the like
  std::string folder;                // of their output; empty: it is not kept
};

// The sums over all rounds of a way; nothing where there is no value.
struct Figures {
  unsigned finished = 0;  // copies that ended with 0
  unsigned started = 0;
  double seconds = 0;  // of a round, the mean,
  double least = 0;    // the least and the most
  double most = 0;
  double jobs_per_hour = 0;
  std::optional<double> waited;            // per copy, the mean
  std::optional<std::uint64_t> in_use;     // the most of any round
  std::optional<std::uint64_t> allocated;  // the same
};
Figures figures(const Way& way);

// The last non-blank line of a file, without control characters, cut at 200 bytes.
std::string last_line_of(const std::string& path);

// "failed with exit code 2: " and its last line.
std::string how_it_failed(const CopyEnd& copy);

std::string as_table(const Report& report);
std::string as_json(const Report& report);

}  // namespace rota::attempt
