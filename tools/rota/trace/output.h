// What `rota trace` prints of trace files: a listing, a summary, a timeline for Perfetto.
#pragma once

#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/rota/trace/activity.h"
#include "tools/rota/trace/decode.h"
#include "tools/rota/trace/file.h"
#include "tools/rota/trace/selection.h"

namespace rota::tool {

using TraceFiles = std::vector<std::unique_ptr<TraceFile>>;

using Activity = std::map<std::uint32_t, std::vector<KernelRun>>;

struct ShowOptions {
  Selection selection = {};
  bool json = false;
  // If false, the listing has neither times nor ids; processes and threads are numbered in the order of their start.
  // Two runs of a program that does the same then give the same listing.
  bool times = true;
  // Text: each look-up of a function on its own line, instead of one line for each series.
  bool lookups = false;
  RenderOptions render = {};
};

// One line (or JSON object) per call, in time order over all processes and threads. Returns how many calls matched.
std::size_t show_calls(const TraceFiles& files, const ShowOptions& options, std::ostream& out);

// Calls, total, mean and errors per function, both APIs, longest total first; then errors by name, kernels, what was
// copied, and what was made and not given back. False: there is no call.
bool print_summary(const TraceFiles& files, const Activity& activity, std::ostream& out);

// The trace event format that chrome://tracing and ui.perfetto.dev open. A call that did not return lasts to the end of
// its process's trace and says so. Streams have rows of their own: what ran there where `activity` knows it, else the
// launches.
void export_chrome(const TraceFiles& files, const Activity& activity, std::ostream& out);

// "1.234 us"
std::string duration_text(std::uint64_t nanoseconds);
// "1.00 MiB"
std::string bytes_text(std::uint64_t bytes);
std::string_view api_name(const TraceCall& call);

}  // namespace rota::tool
