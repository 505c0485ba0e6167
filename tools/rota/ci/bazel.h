// Tests that bazel runs: the environment of each process names its target, shard and attempt
// (runtime/preload/attachment.h).
#pragma once

#include <string>
#include <vector>

#include "tools/rota/report/session.h"

namespace rota::ci {

// Outcomes are unknown here: they are in bazel's own report (XML_OUTPUT_FILE). Begin and end are those of the processes
// that called CUDA.
std::vector<report::TestRecord> bazel_tests(const std::vector<report::ProcessAccount>& processes,
                                            report::Realtime boot_ns);

}  // namespace rota::ci
