// The rules of `--fail-on`, which a test must keep, absolute or compared with a baseline.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/base/result.h"

namespace rota::report {

enum class Metric {
  kPeak,
  kReserved,
  kTime,
  kGpu,
  kWaited,
  kLaunches,
  kCopies,
  kCopied,
  kSynchronizations,
  kCalls,
  kErrors,
  kLive,
};

enum class Unit { kBytes, kNanoseconds, kCount };

struct Rule {
  Metric metric = Metric::kPeak;
  std::string detail;  // function of kCalls, error of kErrors; empty: all
  enum class Limit {
    kKnown,     // "errors", "live": none except those in the baseline
    kAbsolute,  // "peak>2G"
    kMore,      // "peak>+64M": more than the baseline's
    kPercent,   // "peak>+10%"
  } limit = Limit::kKnown;
  std::uint64_t value = 0;  // bytes, nanoseconds or a count
  double percent = 0;       // of kPercent
  std::string text;         // as the user wrote it
  bool needs_baseline() const { return limit == Limit::kMore || limit == Limit::kPercent; }
};

// The rules of "peak>+10%,errors,calls:cuMemAlloc>+20%". An error names the part that is wrong, and what is allowed.
Result<std::vector<Rule>> parse_rules(std::string_view text);

std::string_view metric_name(Metric metric);
Unit unit_of(Metric metric);
// "1.5 GiB", "20 ms", "3".
std::string value_text(Unit unit, std::uint64_t value);

}  // namespace rota::report
