// A driver that is upgraded while rotad runs: NVML is closed when somebody asks for it, and the library that exists
// afterwards is the one that is used.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "scheduler/server/nvml.h"
#include "tests/unit/scheduler/server/nvml/rig.h"

namespace rota::test {
namespace {

using Catch::Contains;
using Catch::StartsWith;

// Whether a process has the file open that represents the driver's device.
bool has_device(pid_t pid) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().ends_with("nvml.device")) return true;
  }
  return false;
}

bool is_released(const Daemon& daemon) {
  return status(daemon.socket()).daemon.nvml_released != 0;
}

struct Rig {
  Rig() : rotad(answers, text) {}
  std::string ask(const std::string& line) const { return ask_control(rotad.daemon->socket() + ".control", line); }
  bool measures() const {
    return eventually([&] { return status(rotad.daemon->socket()).gpus.at(0).measured != 0; });
  }
  const Daemon& daemon() const { return *rotad.daemon; }
  const std::string text = "gpu " + gpu_line(1, 300 * kMega) + process_line(getpid(), 200 * kMega);
  const Answers answers;
  const MeasuringDaemon rotad;
};

}  // namespace

TEST_CASE("NVML that is released is closed once that is answered, until a program comes or somebody says so") {
  const Rig rig;
  CHECK_FALSE(is_released(rig.daemon()));
  {
    const Measured client(rig.daemon());
    REQUIRE(rig.measures());
    REQUIRE(has_device(rig.daemon().pid()));
    CHECK_THAT(rig.ask("nvml release"), StartsWith("ok: NVML is closed"));
    CHECK_FALSE(has_device(rig.daemon().pid()));
    CHECK(is_released(rig.daemon()));
    CHECK(status(rig.daemon().socket()).gpus.at(0).measured == 0);
    CHECK_THAT(rig.ask("nvml release"), StartsWith("ok: NVML is closed"));
    SECTION("a program") {
      const Measured next(rig.daemon());
      CHECK(rig.measures());
      CHECK_FALSE(is_released(rig.daemon()));
    }
    SECTION("somebody") {
      CHECK(rig.ask("nvml use") == "ok: NVML is used again");
      CHECK(rig.measures());
      CHECK_FALSE(is_released(rig.daemon()));
      CHECK_THAT(rig.ask("nvml use"), StartsWith("ok: NVML is in use already"));
    }
    CHECK(has_device(rig.daemon().pid()));
  }
}

TEST_CASE("NVML that is released before there is a program stays closed, and programs without a GPU do not open it") {
  const Rig rig;
  CHECK_THAT(rig.ask("nvml release"), StartsWith("ok: NVML is closed"));
  const Client client(rig.daemon().socket());
  CHECK(is_released(rig.daemon()));
  CHECK_FALSE(has_device(rig.daemon().pid()));
  CHECK_THAT(rig.ask("nvml off"), Contains("'off' is neither release nor use"));
}

TEST_CASE("NVML that does not answer is not said to be closed, and closes once it does") {
  const Rig rig;
  const Measured client(rig.daemon());
  REQUIRE(rig.measures());
  rig.answers.are(rig.text + "hangs\n");
  // A query in progress hangs.
  REQUIRE(eventually([&] {
    return rig.ask("nvml release").find("error: the driver has not released NVML") == 0 || rig.ask("nvml use").empty();
  }));
  CHECK(has_device(rig.daemon().pid()));
  CHECK(is_released(rig.daemon()));
  rig.answers.are(rig.text);
  CHECK(eventually([&] { return rig.ask("nvml release").find("ok: ") == 0; }));
  CHECK_FALSE(has_device(rig.daemon().pid()));
}

TEST_CASE("the NVML that is installed when it is opened is used, and not the one that was loaded before") {
  const Answers answers;
  answers.are("gpu " + gpu_line(1, 300 * kMega));
  const std::string place = answers.folder / "libnvidia-ml.so.1";
  const auto total = [&] {
    auto nvml = server::Nvml::open(place);
    REQUIRE(nvml);
    return (*nvml)->read(uuid(1))->total;
  };
  std::filesystem::copy(kRecent, answers.folder / "libnvidia-ml.so.570");
  std::filesystem::copy(kOlder, answers.folder / "libnvidia-ml.so.580");
  std::filesystem::create_symlink("libnvidia-ml.so.570", place);
  CHECK(total() == 1000 * kMega);  // without what the driver has reserved, which the older one does not distinguish
  std::filesystem::remove(place);
  std::filesystem::create_symlink("libnvidia-ml.so.580", place);
  CHECK(total() == 1024 * kMega);
  CHECK(total() == 1024 * kMega);
}

}  // namespace rota::test
