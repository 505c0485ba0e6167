// What `rota demo` has seen, in sentences, a table and JSON, and whether that is what it should show.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/rota/try/copies.h"
#include "tools/rota/try/sampler.h"

namespace rota::demo {

// What the program reports about the GPU.
struct Gpu {
  std::string name;
  std::uint64_t free = 0;  // bytes
  std::uint64_t total = 0;
  std::uint64_t steps = 0;  // of a launch
  double seconds = 0;       // that it takes
};
// Nothing if the line is not from that program.
std::optional<Gpu> gpu_of(const std::string& line);

struct Copy {
  attempt::CopyEnd end;
  std::string said;  // its last line
  // Of one that ended with 0.
  pid_t pid = 0;
  std::uint64_t checked = 0;   // words
  std::uint64_t launched = 0;  // times; fewer than asked for where its time was up
  // Of one that rotad has seen.
  std::optional<attempt::Use> use;
};

struct Way {
  std::vector<Copy> copies;
  double seconds = 0;
  attempt::Seen seen;
};
Way way_of(const attempt::Together& run, const attempt::Seen& seen);

struct Story {
  Gpu gpu;
  bool simulated = false;   // the demo has started a simulated GPU, whose memory is overcommitted
  std::string why;          // no GPU works here; empty: one does, or a simulated one was asked for
  std::uint64_t bytes = 0;  // that each copy wants
  unsigned copies = 2;
  std::uint64_t launches = 0;  // that each copy is to make
  Way natively;
  Way under_rota;
  bool own_rotad = true;              // else the one that was there
  bool rotad_is_here = true;          // it uses the same pids as this process
  std::vector<std::string> remarks;   // what rota has said in the copies' output
  std::vector<std::string> seen;      // the sentences; see judge()
  std::vector<std::string> problems;  // what is not as expected
};

// Says, before anything runs, what will run.
std::string opening(const Story& story);
// Fills `seen` and `problems` from the results of the two ways.
void judge(Story& story);
std::string as_text(const Story& story);
std::string as_json(const Story& story);

}  // namespace rota::demo
