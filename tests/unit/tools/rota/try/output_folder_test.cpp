#include "tools/rota/try/output_folder.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

namespace rota::attempt {
namespace {

namespace fs = std::filesystem;

// The folder of a process that is killed while it has it.
std::string abandoned(const std::string& name) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const OutputFolder folder(name);
    std::ofstream(folder.path() + "/file") << "text";
    if (write(ends[1], folder.path().data(), folder.path().size()) < 0) _exit(1);
    for (;;) pause();
  }
  char path[4096] = {};
  REQUIRE(read(ends[0], path, sizeof path - 1) > 0);
  close(ends[0]);
  close(ends[1]);
  REQUIRE(kill(child, SIGKILL) == 0);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  return path;
}

TEST_CASE(
    "the folder of a killed owner is removed with the next one of its name, and folders of others and kept ones stay") {
  const char* const before = std::getenv("TMPDIR");
  const std::optional<std::string> temporary = before != nullptr ? std::optional<std::string>(before) : std::nullopt;
  const OutputFolder own("rota-test-folders");
  setenv("TMPDIR", own.path().c_str(), 1);
  const std::string killed = abandoned("rota-one");
  const std::string other = abandoned("rota-two");
  CHECK(fs::exists(killed + "/file"));
  const fs::path foreign = own.path() + "/rota-one-foreign";
  fs::create_directory(foreign);
  std::string kept;
  {
    const OutputFolder alive("rota-one");
    OutputFolder looked_into("rota-one");
    kept = looked_into.keep();
    CHECK_FALSE(fs::exists(killed));
    OutputFolder::remove_stale("rota-one");
    CHECK(fs::exists(alive.path()));
  }
  OutputFolder::remove_stale("rota-one");
  CHECK(fs::exists(kept));
  CHECK(fs::exists(foreign));
  CHECK(fs::exists(other));
  if (temporary) {
    setenv("TMPDIR", temporary->c_str(), 1);
  } else {
    unsetenv("TMPDIR");
  }
}

}  // namespace
}  // namespace rota::attempt
