// What `rota run` finds out about a command before it starts it. The ELF files are made here, byte by byte, so that
// kinds are covered that this machine could not build.
#include "tools/rota/run/executable.h"

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "tests/unit/scheduler/server/processes.h"
#include "tests/unit/tools/elf/made_program.h"
#include "tools/rota/run/launch.h"

namespace rota::tool {
namespace {

using test::MadeProgram;
using test::TemporaryFolder;
using test::write_file;

struct Files : TemporaryFolder {
  std::string program(const std::string& name, const std::string& content, mode_t mode = 0755) const {
    write_file(*this / name, content, mode);
    return *this / name;
  }
};

TEST_CASE("an ordinary dynamic program is covered") {
  const Files files;
  const Executable found = inspect_command(files.program("a", MadeProgram{}.bytes()));
  CHECK(found.error == 0);
  CHECK(found.uncovered.empty());
  CHECK(found.sanitizer.empty());
  CHECK(inspect_command("sh").uncovered.empty());
}

TEST_CASE("a statically linked program cannot be covered, and what it starts can") {
  const Files files;
  const Executable found = inspect_command(files.program("a", MadeProgram{.loader = false}.bytes()));
  CHECK(found.uncovered == "statically linked");
  CHECK(found.preload_inherited);
}

TEST_CASE("programs for 32 bits or another processor cannot be covered") {
  const Files files;
  std::string small = MadeProgram{}.bytes();
  small[EI_CLASS] = ELFCLASS32;
  CHECK(inspect_command(files.program("a", small)).uncovered == "a 32-bit program");
  CHECK_FALSE(inspect_command(files.program("a", small)).preload_inherited);
  CHECK(inspect_command(files.program("b", MadeProgram{.machine = EM_S390}.bytes())).uncovered ==
        "built for another processor architecture");
}

TEST_CASE("setuid and setgid programs of others cannot be covered, one's own can") {
  const Files files;
  const std::string path = files.program("a", MadeProgram{}.bytes());
  REQUIRE(chmod(path.c_str(), 06755) == 0);
  CHECK(inspect_command(path).uncovered.empty());
  if (geteuid() != 0) {
    WARN("not root: setuid programs of another user cannot be made here");
    return;
  }
  REQUIRE(chown(path.c_str(), 12345, 12345) == 0);
  REQUIRE(chmod(path.c_str(), 04755) == 0);
  CHECK(inspect_command(path).uncovered == "setuid");
  REQUIRE(chmod(path.c_str(), 02755) == 0);
  CHECK(inspect_command(path).uncovered == "setgid");
}

TEST_CASE("scripts are judged by the interpreter that runs them in the end") {
  const Files files;
  const std::string fixed = files.program("fixed", MadeProgram{.loader = false}.bytes());
  const std::string script = files.program("script", "#! " + fixed + " -x\nhello\n");
  CHECK(inspect_command(script).interpreter == fixed);
  CHECK(inspect_command(script).uncovered == "statically linked");
  const std::string nested = files.program("nested", "#!" + script + "\n");
  CHECK(inspect_command(nested).interpreter == fixed);
  const std::string by_name = files.program("by_name", "#!/usr/bin/env -S A=b sh -e\n");
  CHECK(inspect_command(by_name).interpreter.find("/sh") != std::string::npos);
  CHECK(inspect_command(by_name).uncovered.empty());
  const std::string circle = files.program("circle", "#!" + files.path() + "/circle\n");
  CHECK(inspect_command(circle).error == 0);
}

TEST_CASE("the sanitizer's runtime that a program needs is found") {
  const Files files;
  CHECK(inspect_command(files.program("a", MadeProgram{.needed = {"libasan.so.8", "libc.so.6"}}.bytes())).sanitizer ==
        "libasan.so.8");
  CHECK(inspect_command(files.program("b", MadeProgram{.needed = {"libc.so.6", "libtsan.so.2"}}.bytes())).sanitizer ==
        "libtsan.so.2");
}

TEST_CASE("commands are found as a shell finds them") {
  const Files files;
  CHECK(inspect_command("no-such-command-of-rota").error == ENOENT);
  CHECK(inspect_command("").error == ENOENT);
  CHECK(inspect_command(files / "missing").error == ENOENT);
  CHECK(inspect_command(files.path()).error == EACCES);
  CHECK(inspect_command(files.program("plain", "text", 0644)).error == EACCES);
  CHECK(inspect_command(files.program("text", "echo hello\n")).error == 0);
  CHECK(inspect_command(files.program("empty", "")).error == 0);
}

TEST_CASE("broken ELF files are examined without harm") {
  const Files files;
  const std::string sound = MadeProgram{.needed = {"libasan.so.8", "libc.so.6"}}.bytes();
  std::mt19937 random(5);
  for (int i = 0; i < 400; ++i) {
    std::string broken = sound;
    // Mostly in the headers, where it matters.
    for (int change = 0; change < 4; ++change) broken[4 + random() % 300] = static_cast<char>(random());
    broken[EI_CLASS] = ELFCLASS64;
    if (i % 2 == 0) broken.resize(random() % broken.size());
    CHECK(inspect_command(files.program("broken", broken)).error == 0);
  }
}

TEST_CASE("the preload list keeps what was there, with the sanitizer first and nothing twice") {
  CHECK(preload_list("", {"/r/librota.so"}, "") == "/r/librota.so");
  CHECK(preload_list("/a.so /b.so", {"/r/librota.so", "/r/t.so"}, "") == "/r/librota.so:/r/t.so:/a.so:/b.so");
  CHECK(preload_list("/a.so", {"/r/librota.so"}, "libasan.so.8") == "libasan.so.8:/r/librota.so:/a.so");
  CHECK(preload_list("/a.so:/lib/libasan.so.8", {"/r/librota.so"}, "libasan.so.8") ==
        "/lib/libasan.so.8:/r/librota.so:/a.so");
  CHECK(preload_list("/r/librota.so:/a.so", {"/r/librota.so"}, "") == "/r/librota.so:/a.so");
}

}  // namespace
}  // namespace rota::tool
