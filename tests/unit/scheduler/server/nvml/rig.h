// The made-up NVML of these tests (library.cpp), a rotad that asks it, and a client of that.
#pragma once

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/base/uuid.h"
#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {

inline constexpr std::uint64_t kMega = 1 << 20;

// The file that the library reads.
struct Answers {
  Answers() { setenv("TEST_NVML_FILE", (folder / "nvml").c_str(), 1); }
  ~Answers() { unsetenv("TEST_NVML_FILE"); }
  // Replaces the file atomically.
  void are(const std::string& text) const {
    write_file(folder / "next", text);
    REQUIRE(rename((folder / "next").c_str(), (folder / "nvml").c_str()) == 0);
  }
  TemporaryFolder folder;
};

inline const std::string kRecent = std::string(TEST_NVML) + "/recent/libnvidia-ml.so.1";
inline const std::string kOlder = std::string(TEST_NVML) + "/older/libnvidia-ml.so.1";

inline std::string gpu_line(std::uint8_t number, std::uint64_t used, const char* prefix = "GPU") {
  const std::string text = uuid_text(uuid(number));
  return prefix + text.substr(3) + " " + std::to_string(1024 * kMega) + " " + std::to_string(1000 * kMega - used) +
         " " + std::to_string(used) + "\n";
}

inline std::string process_line(pid_t pid, std::int64_t bytes) {
  return "process " + std::to_string(pid) + " " + std::to_string(bytes) + "\n";
}

// A rotad that loads the test's NVML.
struct MeasuringDaemon {
  explicit MeasuringDaemon(const Answers& answers, const std::string& first, std::vector<std::string> options = {}) {
    answers.are(first);
    setenv("LD_LIBRARY_PATH", (std::string(TEST_NVML) + "/recent").c_str(), 1);
    // None of these clients makes calls, so rotad would never find that one runs better concurrently with another.
    options.insert(options.end(), {"--quantum", "2s"});
    daemon.emplace(std::move(options));
  }
  std::optional<Daemon> daemon;
};

// This process, on GPU 1 of 1 GiB.
struct Measured : Client {
  explicit Measured(const Daemon& daemon) : Client(daemon.socket(), "measured", false) {
    REQUIRE_FALSE(add_gpu(1, &gpu));
  }
  bool context_becomes(std::uint64_t bytes) const {
    return wait_for([&](const protocol::LeasePage& page) { return page.gpus[gpu].context_bytes == bytes; });
  }
  std::uint32_t gpu = 0;
};

}  // namespace rota::test
