// Which processes are found to reach GPU memory without CUDA calls, with made-up files of a process.
#include "runtime/memory/swap/reach.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "tests/unit/runtime/fake_driver.h"
#include "tests/unit/scheduler/machine.h"

namespace api = rota::api;
using rota::memory::lets_reach;
using rota::memory::reached_from_outside;

TEST_CASE("an open RDMA device, GDRCopy's or GPUDirect Storage's is found among many files, and so is a mapped one") {
  const rota::test::Machine machine;
  machine.file("/sys/module/nvidia_peermem/refcnt", "0");
  machine.file("/proc/self/maps", "7f00-7f10 rw-s 00000000 00:06 1 /dev/nvidia0\n7f10-7f20 r-xp 0 08:01 2 /lib/x.so\n");
  std::filesystem::create_directories(machine.root + "/proc/self/fd");
  const auto open = [&](int number, const char* path) {
    std::filesystem::create_symlink(path, machine.root + "/proc/self/fd/" + std::to_string(number));
  };
  open(0, "/dev/nvidiactl");
  open(1, "socket:[12]");
  open(2, "/home/dev/infiniband/uverbs0");
  CHECK(reached_from_outside(machine.root).empty());
  SECTION("RDMA") {
    open(3, "/dev/infiniband/uverbs0");
    CHECK(reached_from_outside(machine.root) == "/dev/infiniband/uverbs0 is open");
  }
  SECTION("an RDMA device that registers no memory") {
    open(3, "/dev/infiniband/rdma_cm");
    CHECK(reached_from_outside(machine.root).empty());
  }
  SECTION("GDRCopy") {
    open(3, "/dev/gdrdrv");
    CHECK(reached_from_outside(machine.root) == "/dev/gdrdrv is open");
  }
  SECTION("GPUDirect Storage") {
    open(3, "/dev/nvidia-fs0");
    CHECK(reached_from_outside(machine.root) == "/dev/nvidia-fs0 is open");
  }
  SECTION("mapped, its descriptor closed since") {
    machine.file("/proc/self/maps", "7f00-7f10 rw-s 00000000 00:06 1    /dev/infiniband/uverbs1\n");
    CHECK(reached_from_outside(machine.root) == "/dev/infiniband/uverbs1 is mapped");
  }
}

TEST_CASE("an RDMA device counts where the kernel gives it GPU memory by its address, or may do so") {
  const rota::test::Machine machine;
  std::filesystem::create_directories(machine.root + "/proc/self/fd");
  std::filesystem::create_symlink("/dev/infiniband/uverbs0", machine.root + "/proc/self/fd/3");
  machine.file("/proc/self/maps", "7f20-7f30 r-xp 0 08:01 3 /usr/lib/libibverbs.so.1\n");
  machine.file("/dev/infiniband/uverbs0", "");
  const auto counts = [&] {
    CHECK(lets_reach("libibverbs.so.1", machine.root) == !reached_from_outside(machine.root).empty());
    return lets_reach("libibverbs.so.1", machine.root);
  };
  CHECK(counts());  // the kernel does not show its modules
  machine.file("/sys/module/nvidia/version", "580.159.04");
  CHECK_FALSE(counts());
  SECTION("a module that is one") {
    const std::string module = GENERATE("nvidia_peermem", "nv_peer_mem", "efa_nv_peermem", "efa");
    machine.file("/sys/module/" + module + "/refcnt", "0");
    CHECK(counts());
  }
  SECTION("one that the RDMA stack lists") {
    machine.file("/sys/kernel/mm/memory_peers/nv_mem/version", "1.0");
    CHECK(counts());
  }
}

TEST_CASE("libraries that use GPU memory privately are found, those that share it by calls of the driver are not") {
  const rota::test::Machine machine;
  const auto loads = [&](const std::string& library) {
    machine.file("/proc/self/maps",
                 "7f10-7f20 r-xp 0 08:01 2 /usr/lib/libc.so.6\n7f20-7f30 r-xp 0 08:01 3 /opt/" + library + "\n");
    return reached_from_outside(machine.root);
  };
  CHECK(loads("libtorch_cuda.so").empty());
  CHECK(loads("libnvcuvid.so.580.159") == "libnvcuvid.so.580.159 is loaded");
  CHECK(loads("libnvoptix.so.1") == "libnvoptix.so.1 is loaded");
  CHECK(loads("libnvidia-encode.so.1") == "libnvidia-encode.so.1 is loaded");
  CHECK(loads("libnvidia-opticalflow.so.1") == "libnvidia-opticalflow.so.1 is loaded");
  setenv("WORLD_SIZE", "2", 1);  // NOLINT(concurrency-mt-unsafe): no other thread
  for (const char* each : {"libucp.so.0", "libnccl.so.2", "libmpi.so.40", "libmpich.so.12", "libnvshmem_host.so.3"}) {
    INFO(each);
    CHECK(loads(each).empty());
  }
  unsetenv("WORLD_SIZE");  // NOLINT(concurrency-mt-unsafe)
}

TEST_CASE("a library by which a program opens such a device counts where the machine has the device") {
  const rota::test::Machine machine;
  machine.file("/sys/module/nvidia_peermem/refcnt", "0");
  machine.file("/proc/self/maps", "7f20-7f30 r-xp 0 08:01 3 /usr/lib/libibverbs.so.1\n");
  machine.file("/dev/infiniband/rdma_cm", "");
  machine.file("/dev/null", "");
  CHECK(reached_from_outside(machine.root).empty());
  for (const char* each : {"libibverbs.so.1", "/opt/lib/libgdrapi.so.2.4", "libcufile.so.0"}) {
    CHECK_FALSE(lets_reach(each, machine.root));
  }
  machine.file("/dev/infiniband/uverbs3", "");
  machine.file("/dev/gdrdrv", "");
  machine.file("/dev/nvidia-fs0", "");
  CHECK(reached_from_outside(machine.root) == "libibverbs.so.1 is loaded");
  CHECK(lets_reach("libibverbs.so", machine.root));
  CHECK(lets_reach("/opt/lib/libgdrapi.so.2.4", machine.root));
  CHECK_FALSE(lets_reach("libcufile.so.0", machine.root));  // what is linked with it need not use it
  CHECK_FALSE(lets_reach("/opt/libibverbs.so.1/libother.so", machine.root));
  CHECK(lets_reach("libnvcuvid.so.1", machine.root));
  CHECK_FALSE(lets_reach("", machine.root));
}

TEST_CASE("a debugger is found by the number of its process") {
  const rota::test::Machine machine;
  machine.file("/proc/self/status", "Name:\tprogram\nTracerPid:\t0\nUid:\t1000\n");
  CHECK(reached_from_outside(machine.root).empty());
  machine.file("/proc/self/status", "Name:\tprogram\nTracerPid:\t4711\nUid:\t1000\n");
  CHECK(reached_from_outside(machine.root) == "process 4711 traces this one");
}

TEST_CASE("a checkpoint from outside is noticed, and a driver that has none is in no way") {
  rota::test::FakeDriver driver;
  CHECK_FALSE(rota::memory::being_checkpointed());
  static api::CUprocessState state;
  driver.set<api::cuCheckpointProcessGetState_fn>(
      rota::Symbol::k_cuCheckpointProcessGetState, [](int process, api::CUprocessState* answer) {
        *answer = state;
        return process == getpid() ? api::CUDA_SUCCESS : api::CUDA_ERROR_INVALID_VALUE;
      });
  for (const api::CUprocessState each : {api::CU_PROCESS_STATE_LOCKED, api::CU_PROCESS_STATE_CHECKPOINTED}) {
    state = each;
    CHECK(rota::memory::being_checkpointed());
  }
  state = api::CU_PROCESS_STATE_RUNNING;
  CHECK_FALSE(rota::memory::being_checkpointed());
}

TEST_CASE("this process has none of them open") {
  CHECK(reached_from_outside().empty());
}
