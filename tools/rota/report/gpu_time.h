// GPU time of processes whose work ran on one GPU at the same time. Each process samples whether its own work is
// unfinished, which is also the case while the GPU runs other processes' work: the sum over processes would exceed the
// time that passed. The GPU serves such processes in equal slices, so time in which several were busy is divided among
// them.
#pragma once

#include <vector>

#include "tools/rota/report/model.h"

namespace rota::report {

// Sets each process's use.gpu_ns, the busy times of its timeline and gpu_shares. A process with several GPUs counts for
// the one of which it has the largest part.
void divide_gpu_time(std::vector<ProcessReport>& processes);

// The fraction of a process's busy time from `begin` to `end` that was its own, from 0 to 1.
double gpu_share(const ProcessReport& process, Realtime begin, Realtime end);

}  // namespace rota::report
