// How a process is found to give GPU memory to others.
#include "runtime/memory/sharers.h"

#include <dlfcn.h>

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "tests/unit/runtime/memory/memory_fixture.h"
#include "tests/unit/runtime/monitor/mapping_driver.h"

using namespace rota::test;
using rota::memory::Choice;
using rota::memory::Sharers;
using rota::protocol::MemoryMode;

namespace {

// A library of this name, loaded while this object exists.
class Loaded {
 public:
  explicit Loaded(const char* name) {
    std::string folder = std::filesystem::temp_directory_path() / "rota-sharers-XXXXXX";
    REQUIRE(mkdtemp(folder.data()) != nullptr);
    folder_ = folder;
    std::filesystem::copy_file(ROTA_EMPTY_LIBRARY, folder_ / name);
    handle_ = dlopen((folder_ / name).c_str(), RTLD_NOW);
    REQUIRE(handle_ != nullptr);
  }
  ~Loaded() {
    dlclose(handle_);
    std::filesystem::remove_all(folder_);
  }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

 private:
  std::filesystem::path folder_;
  void* handle_ = nullptr;
};

struct Launched {
  explicit Launched(const char* processes) { setenv("WORLD_SIZE", processes, 1); }
  ~Launched() { unsetenv("WORLD_SIZE"); }
};

}  // namespace

TEST_CASE("libraries are told by the beginning of their file name") {
  CHECK(Sharers::for_sharing_only("libucp.so.0"));
  CHECK_FALSE(Sharers::for_sharing_only("libucs.so.0"));
  CHECK(Sharers::for_several_processes("libmpi.so.40"));
  CHECK(Sharers::for_several_processes("libmpich.so.12"));
  CHECK(Sharers::for_several_processes("libnccl.so.2"));
  CHECK(Sharers::for_several_processes("libnvshmem_host.so.3"));
  CHECK_FALSE(Sharers::for_several_processes("libmpi_cxx.so.40"));
  CHECK_FALSE(Sharers::for_several_processes("libucp.so.0"));
}

TEST_CASE("a library that is for sharing only is evidence when it is loaded, and stays so") {
  Sharers sharers;
  CHECK_FALSE(sharers.found());
  {
    const Loaded ucx("libucp.so.0");
    CHECK(sharers.found());
  }
  CHECK(sharers.found());
}

TEST_CASE("a communication library is evidence where the launcher says that there are several processes") {
  for (const char* const name : {"libnccl.so.2", "libmpi.so.40", "libmpich.so.12", "libnvshmem_host.so.3"}) {
    INFO(name);
    const Loaded library(name);
    CHECK_FALSE(Sharers().found());
    const Launched alone("1");
    CHECK_FALSE(Sharers().found());
    const Launched together("2");
    CHECK(Sharers().found());
  }
}

TEST_CASE("what the launcher says is asked again when more has been loaded") {
  Sharers sharers;
  const Launched together("2");
  CHECK_FALSE(sharers.found());
  const Loaded nccl("libnccl.so.2");
  CHECK(sharers.found());
}

TEST_CASE("a tool that checks every access is seen if it was there at the first question") {
  Sharers before;
  CHECK_FALSE(before.watched());
  CHECK_FALSE(Sharers::for_watching("libsanitizer-public.so"));
  const Loaded collection("libsanitizer-collection.so");
  CHECK_FALSE(before.watched());
  CHECK(Sharers().watched());
  CHECK_FALSE(Sharers().found());
}

namespace {

MemoryMode mode_with(Choice choice) {
  Fixture f({.backend = choice});
  maps(f.driver);
  f.memory.set_served(true);
  return f.memory.mode(0);
}

}  // namespace

TEST_CASE("auto is swap where the GPU can, managed with oversubscription or without virtual memory management") {
  CHECK(mode_with(Choice::kAuto) == MemoryMode::kSwap);
  {
    const Loaded nccl("libnccl.so.2");
    const Launched together("2");
    CHECK(mode_with(Choice::kAuto) == MemoryMode::kSwap);
    Fixture unmapped({.backend = Choice::kAuto});
    unmapped.memory.set_served(true);
    CHECK(unmapped.memory.mode(0) == MemoryMode::kNativeShared);
  }
  Fixture larger({.backend = Choice::kAuto, .oversubscribe = true});
  maps(larger.driver);
  CHECK(larger.memory.mode(0) == MemoryMode::kUnknown);
  larger.memory.set_served(true);
  CHECK(larger.memory.mode(0) == MemoryMode::kUnifiedLarger);
  // The fixture's driver maps nothing by itself.
  Fixture without({.backend = Choice::kAuto});
  without.memory.set_served(true);
  CHECK(without.memory.mode(0) == MemoryMode::kUnified);
}

TEST_CASE("under compute-sanitizer or Nsight Compute nothing is swapped, and only Unified Memory by name is served") {
  CHECK(mode_with(Choice::kSwap) == MemoryMode::kSwap);
  for (const char* const name : {"libsanitizer-collection.so", "libcuda-injection.so"}) {
    INFO(name);
    const Loaded tool(name);
    CHECK(mode_with(Choice::kSwap) == MemoryMode::kNativeWatched);
    CHECK(mode_with(Choice::kAuto) == MemoryMode::kNativeWatched);
    CHECK(mode_with(Choice::kManaged) == MemoryMode::kUnified);
  }
}

TEST_CASE(
    "a debugger that is there at the first allocation makes what would be swapped native, one that comes later does "
    "not") {
  // In a child, which this process can trace.
  const auto modes = [](Choice choice, bool early) {
    const pid_t child = fork();
    if (child == 0) {
      Fixture f({.backend = choice});
      maps(f.driver);
      f.memory.set_served(true);
      if (!early) f.memory.mode(0);
      ptrace(PTRACE_TRACEME);
      f.memory.set_served(true);  // decided again
      _exit(static_cast<int>(f.memory.mode(0)));
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    return static_cast<MemoryMode>(WEXITSTATUS(status));
  };
  CHECK(modes(Choice::kSwap, true) == MemoryMode::kNativeWatched);
  CHECK(modes(Choice::kSwap, false) == MemoryMode::kSwap);
  CHECK(modes(Choice::kAuto, true) == MemoryMode::kNativeWatched);
  CHECK(modes(Choice::kManaged, true) == MemoryMode::kUnified);
}

TEST_CASE("in a program that a debugger has started nothing is swapped, and Unified Memory is served as always") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(2);
    const bool native = mode_with(Choice::kSwap) == MemoryMode::kNativeWatched;
    _exit(native && mode_with(Choice::kManaged) == MemoryMode::kUnified ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) {
    WARN("this machine does not let a process be traced");
  } else {
    CHECK(WEXITSTATUS(status) == 0);
  }
}
