// GPU time of processes whose work ran on one GPU at the same time. Each process samples whether its own work is
// unfinished, which it also is while the GPU runs the others': added up, that would be more than the time that passed.
// The GPU serves such processes in equal slices, so what they were busy together is divided among them.
#pragma once

#include <vector>

#include "tools/rota/report/model.h"

namespace rota::report {

// Sets each process's use.gpu_ns, the busy times of its timeline and gpu_shares. A process of several GPUs counts as on
// that of them where it had most.
void divide_gpu_time(std::vector<ProcessReport>& processes);

// What of the time that a process was busy from `begin` to `end` was its own, from 0 to 1.
double gpu_share(const ProcessReport& process, Realtime begin, Realtime end);

}  // namespace rota::report
