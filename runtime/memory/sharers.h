// Whether this process is one of several that may share GPU memory, judging by what it has loaded and how it was
// started. Unified Memory cannot be shared, so where memory would be converted, such a process gets native memory from
// its first allocation. So does one in which a tool checks every access, since the driver must know where each
// allocation ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace rota::memory {

class Sharers {
 public:
  // UCX serves no other purpose. MPI, NCCL and NVSHMEM are loaded by frameworks that never use them, so they count
  // where the launcher says that there are several processes (WORLD_SIZE, OMPI_COMM_WORLD_SIZE, PMI_SIZE,
  // MV2_COMM_WORLD_SIZE, SLURM_STEP_NUM_TASKS). Searches again whenever libraries have been loaded since the last call;
  // once true, it stays true. Any thread.
  bool found();

  // Whether compute-sanitizer or Nsight Compute had its library in this process when this was first called, after
  // cuInit: they are there by then, or not at all. Any thread.
  bool watched();

  // Whether a debugger traced this process when this was first called. Any thread.
  bool debugged();

  // By file name; called for each loaded library.
  static bool for_sharing_only(std::string_view library);
  static bool for_several_processes(std::string_view library);
  static bool for_watching(std::string_view library);

 private:
  enum class Watched : std::uint8_t { kNotAsked, kNo, kYes };
  std::atomic<Watched> watched_{Watched::kNotAsked};
  std::atomic<Watched> debugged_{Watched::kNotAsked};
  std::atomic<bool> found_{false};
  std::atomic<unsigned long long> loaded_{0};  // the loader's count of libraries loaded at the last check
};

}  // namespace rota::memory
