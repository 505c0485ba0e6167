// How much memory the host has left, with the files of a made-up machine.
#include "scheduler/base/host_memory.h"

#include <catch2/catch.hpp>

#include "tests/unit/scheduler/machine.h"

using rota::available_to;
using rota::test::Machine;

namespace {

constexpr std::uint64_t kMachine = std::uint64_t{1000} << 10;

}  // namespace

TEST_CASE("without a cgroup the host has what the machine says is available") {
  Machine machine;
  CHECK(available_to("self", machine.root) == UINT64_MAX);
  machine.file("/proc/meminfo", "MemTotal:   2000 kB\nMemFree:   5 kB\nMemAvailable:   1000 kB\nHugePages_Total: 0\n");
  CHECK(available_to("self", machine.root) == kMachine);
}

TEST_CASE("the tightest of the cgroups above a process counts, whatever version they are") {
  Machine machine;
  machine.file("/proc/meminfo", "MemAvailable:   1000 kB\n");
  machine.file("/proc/self/cgroup", "0::/pods/one\n");
  machine.file("/sys/fs/cgroup/pods/one/memory.max", "max\n");
  machine.file("/sys/fs/cgroup/pods/one/memory.current", "100\n");
  CHECK(available_to("self", machine.root) == kMachine);
  machine.file("/sys/fs/cgroup/pods/memory.max", "5000\n");
  machine.file("/sys/fs/cgroup/pods/memory.current", "2000\n");
  CHECK(available_to("self", machine.root) == 3000);
  machine.file("/sys/fs/cgroup/pods/one/memory.max", "50\n");  // over its limit for a moment
  CHECK(available_to("self", machine.root) == 0);

  machine.file("/proc/self/cgroup", "5:cpu:/x\n4:pids,memory:/jobs/two\n");
  CHECK(available_to("self", machine.root) == kMachine);
  machine.file("/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "9000\n");
  machine.file("/sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "1000\n");
  CHECK(available_to("self", machine.root) == 8000);
}

TEST_CASE("this machine has some memory left") {
  CHECK(available_to("self") > 0);
}
