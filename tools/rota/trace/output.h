// What `rota trace` prints of trace files: a listing, a summary, a timeline for Perfetto.
#pragma once

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/rota/trace/decode.h"
#include "tools/rota/trace/file.h"

namespace rota::tool {

using TraceFiles = std::vector<std::unique_ptr<TraceFile>>;

struct ShowOptions {
  std::optional<std::uint32_t> pid;
  std::string function;  // exact name, or a beginning that ends in '*'; empty: all
  bool json = false;
  // Neither times nor process and thread ids, which are numbered in the order of their start: two runs of a program
  // that does the same give the same listing.
  bool times = true;
  RenderOptions render = {};
};

// One line (or JSON object) per call, in time order over all processes and threads.
void show_calls(const TraceFiles& files, const ShowOptions& options, std::ostream& out);

// Calls, total, mean and errors per function, both APIs, longest total first.
void print_summary(const TraceFiles& files, std::ostream& out);

// The trace event format that chrome://tracing and ui.perfetto.dev open. A call that did not return lasts to the end of
// its process's trace and says so.
void export_chrome(const TraceFiles& files, std::ostream& out);

// "1.234 us"
std::string duration_text(std::uint64_t nanoseconds);

}  // namespace rota::tool
