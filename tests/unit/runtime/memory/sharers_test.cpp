// What tells that a process hands GPU memory to others.
#include "runtime/memory/sharers.h"

#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

using rota::memory::Sharers;

namespace {

// A library of this name, loaded while this lives.
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
  const Loaded nccl("libnccl.so.2");
  CHECK_FALSE(Sharers().found());
  const Launched alone("1");
  CHECK_FALSE(Sharers().found());
  const Launched together("2");
  CHECK(Sharers().found());
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
