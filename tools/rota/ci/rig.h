// `rota ci`: runs a job of tests as one session, lets tests begin when they fit, watches for hangs, and reports.
#pragma once

#include <chrono>
#include <string>

#include "tools/rota/report/judging.h"
#include "tools/rota/run/launch.h"

namespace rota::ci {

struct RigOptions {
  tool::LaunchOptions launch;
  report::JudgingOptions judging;
  std::string report_folder;  // empty: a temporary one
  std::string name;
  std::string junit, json, html;  // files; empty: none
  unsigned repeat = 1;
  unsigned gpus_per_test = 0;              // 0: each sees all that the command sees
  std::chrono::nanoseconds hang_after{0};  // 0: hangs are not searched for
  bool github = false;                     // annotations on standard output
  bool suggest = false;
};

inline constexpr int kRigFailed = 125;
inline constexpr int kFindings = 3;

// Returns how to end: kRigFailed if the job could not be run or reported; as the job ended, if that is not with 0 (it
// may have died of a signal, run/signals.h); kFindings if there are findings; else 0.
int run_rig(const RigOptions& options);

}  // namespace rota::ci
