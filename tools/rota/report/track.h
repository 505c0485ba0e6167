// Memory, waiting and work of some processes over time, in equal parts of the job's duration.
#pragma once

#include <vector>

#include "tools/rota/report/model.h"

namespace rota::report {

struct Track {
  Realtime begin_ns = 0;
  std::uint64_t part_ns = 0;
  std::vector<std::uint64_t> bytes;  // the most in use during each part, summed over the processes
  std::vector<double> waiting;       // processes that waited, on average
  std::vector<double> busy;          // GPU time per unit of time
};

Track track_of(const std::vector<const ProcessReport*>& processes, Realtime begin_ns, Realtime end_ns,
               std::size_t parts);

// From the job's beginning, or that of its first process or test, to its end or the last of theirs.
std::pair<Realtime, Realtime> span_of(const Model& model);
// From the beginning of a process's account to the process's end, as far as that is known.
std::pair<Realtime, Realtime> span_of(const ProcessReport& process);

}  // namespace rota::report
