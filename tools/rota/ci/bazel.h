// Tests that bazel runs: each process tells its target, shard and attempt by its environment
// (runtime/preload/attachment.h).
#pragma once

#include <string>
#include <vector>

#include "tools/rota/report/session.h"

namespace rota::ci {

// bazel's own report has the outcomes (XML_OUTPUT_FILE is its); here they are unknown. Begin and end are those of the
// processes that called CUDA.
std::vector<report::TestRecord> bazel_tests(const std::vector<report::ProcessAccount>& processes,
                                            report::Realtime boot_ns);

}  // namespace rota::ci
