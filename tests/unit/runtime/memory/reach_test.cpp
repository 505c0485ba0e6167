// Who is found to reach GPU memory without CUDA calls, by the files of a process that a test makes up.
#include "runtime/memory/swap/reach.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/unit/scheduler/machine.h"

using rota::memory::opened_for_direct_access;

TEST_CASE("an open RDMA device, GDRCopy's or GPUDirect Storage's is found among many files, and so is a mapped one") {
  const rota::test::Machine machine;
  machine.file("/proc/self/maps", "7f00-7f10 rw-s 00000000 00:06 1 /dev/nvidia0\n7f10-7f20 r-xp 0 08:01 2 /lib/x.so\n");
  std::filesystem::create_directories(machine.root + "/proc/self/fd");
  const auto open = [&](int number, const char* path) {
    std::filesystem::create_symlink(path, machine.root + "/proc/self/fd/" + std::to_string(number));
  };
  open(0, "/dev/nvidiactl");
  open(1, "socket:[12]");
  open(2, "/home/dev/infiniband/uverbs0");
  CHECK(opened_for_direct_access(machine.root).empty());
  SECTION("RDMA") {
    open(3, "/dev/infiniband/uverbs0");
    CHECK(opened_for_direct_access(machine.root) == "/dev/infiniband/uverbs0");
  }
  SECTION("GDRCopy") {
    open(3, "/dev/gdrdrv");
    CHECK(opened_for_direct_access(machine.root) == "/dev/gdrdrv");
  }
  SECTION("GPUDirect Storage") {
    open(3, "/dev/nvidia-fs0");
    CHECK(opened_for_direct_access(machine.root) == "/dev/nvidia-fs0");
  }
  SECTION("mapped, its descriptor closed since") {
    machine.file("/proc/self/maps", "7f00-7f10 rw-s 00000000 00:06 1    /dev/infiniband/uverbs1\n");
    CHECK(opened_for_direct_access(machine.root) == "/dev/infiniband/uverbs1");
  }
}

TEST_CASE("this process has none of them open") {
  CHECK(opened_for_direct_access().empty());
}
