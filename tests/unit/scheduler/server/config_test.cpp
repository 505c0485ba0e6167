// rotad.toml: what it may contain, and the messages about what it may not.
#include "scheduler/server/config.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace rota::server {
namespace {

using Catch::Contains;
using Catch::EndsWith;
using scheduler::kNoLimit;
using scheduler::Limits;

constexpr scheduler::Bytes kGiga = scheduler::Bytes{1} << 30;

struct File {
  explicit File(const std::string& text) {
    std::string made = std::filesystem::temp_directory_path() / "rota-config-XXXXXX";
    const int descriptor = mkstemp(made.data());
    REQUIRE(descriptor >= 0);
    close(descriptor);
    path = made;
    std::ofstream(path) << text;
  }
  ~File() { std::remove(path.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  std::string path;
};

std::string problem(const std::string& text) {
  const File file(text);
  const auto config = read_config(file.path);
  REQUIRE_FALSE(config);
  CHECK_THAT(config.error().text, Contains(file.path));
  return config.error().text;
}

}  // namespace

TEST_CASE("metrics are for this machine alone, unless the file says that others may reach them") {
  const File file("[metrics]\nlisten = \"127.0.0.1:9410\"\ntextfile = \"/run/rota.prom\"\ninterval = \"30s\"\n");
  const auto config = read_config(file.path);
  REQUIRE(config);
  CHECK(config->metrics.listen == "127.0.0.1:9410");
  CHECK(config->metrics.textfile == "/run/rota.prom");
  CHECK(config->metrics.interval == std::chrono::seconds(30));
  const File all("[metrics]\nallow_remote = true\nlisten = \"0.0.0.0:9410\"\n");
  CHECK(read_config(all.path));
  CHECK_THAT(problem("[metrics]\nlisten = \"0.0.0.0:9410\"\n"),
             Contains("line 2: other machines reach 0.0.0.0:9410") && Contains("allow_remote = true"));
  CHECK_THAT(problem("[metrics]\nlisten = \"localhost:9410\"\n"), Contains("use e.g. \"127.0.0.1:9410\""));
  CHECK_THAT(problem("[metrics]\nlisten = 9410\n"), Contains("a string is expected"));
  CHECK_THAT(problem("[metrics]\ntextfile = \"rota.prom\"\n"), Contains("not an absolute path that ends with .prom"));
  CHECK_THAT(problem("[metrics]\ninterval = \"10ms\"\n"), Contains("at least a second"));
  CHECK_THAT(problem("[metrics]\nallow_remote = \"yes\"\n"), Contains("true or false"));
  CHECK_THAT(problem("[metrics]\nport = 1\n"), Contains("'port' is unknown: use listen, allow_remote, textfile or"));
}

TEST_CASE("an empty configuration sets nothing") {
  const File file("# nothing\n");
  const auto config = read_config(file.path);
  REQUIRE(config);
  CHECK_FALSE(config->mode);
  CHECK(config->limits.process == Limits{});
  CHECK_FALSE(config->limits.host_budget);
}

TEST_CASE("a configuration sets the scheduler's words and every kind of limit") {
  const File file(R"(
mode = "exclusive"
quantum = "100ms"
grace = "1m"
trust = "machine"
[limits]
host_memory = "64G"
process = { gpu = "16G" }
session = { gpu = 1048576, host = "1.5G" }
[limits.user]
gpu = "20G"
[limits.users]
alice = { gpu = "40G" }
1001 = { host = "2G" }
[limits.cgroups]
"/jobs/" = { gpu = "8GiB" }
)");
  const auto config = read_config(file.path);
  INFO((config ? "" : config.error().text));
  REQUIRE(config);
  CHECK(config->mode == scheduler::Mode::kExclusive);
  CHECK(config->quantum == std::chrono::milliseconds(100));
  CHECK(config->grace == std::chrono::minutes(1));
  CHECK(config->trust == Trust::kMachine);
  CHECK(config->limits.host_budget == 64 * kGiga);
  CHECK(config->limits.process == Limits{.device = 16 * kGiga});
  CHECK(config->limits.session == Limits{.device = 1 << 20, .host = 3 * kGiga / 2});
  CHECK(config->limits.user == Limits{.device = 20 * kGiga});
  CHECK(config->limits.users.at("alice") == Limits{.device = 40 * kGiga});
  CHECK(config->limits.users.at("1001") == Limits{.host = 2 * kGiga});
  CHECK(config->limits.cgroups.at("/jobs") == Limits{.device = 8 * kGiga});
}

TEST_CASE("what cannot be read is named by line, with what is allowed there") {
  CHECK_THAT(problem("\nmode = \"fast\"\n"), Contains("line 2: 'fast' is not a mode: use \"automatic\""));
  CHECK_THAT(problem("quantum = 100\n"), Contains("line 1: a string is expected, as in \"100ms\""));
  CHECK_THAT(problem("quantum = \"0s\"\n"), Contains("'0s' is not a duration above 0"));
  CHECK_THAT(problem("[limits]\nuser = { gpus = \"8G\" }\n"), Contains("line 2: 'gpus' is not a limit: use gpu"));
  CHECK_THAT(problem("[limits.process]\ngpu = \"8X\"\n"), Contains("line 2: an amount of memory is expected"));
  CHECK_THAT(problem("[limits.process]\ngpu = -1\n"), Contains("an amount of memory is expected"));
  CHECK_THAT(problem("[limits]\nuser = 8\n"), Contains("a table is expected"));
  CHECK_THAT(problem("[limits]\ngroup = {}\n"), Contains("'group' is unknown: use process, session, user, users"));
  CHECK_THAT(problem("[limits.cgroups]\njobs = {}\n"), Contains("cgroup 'jobs' has to begin with /"));
  CHECK_THAT(
      problem("[limit]\n"),
      Contains(
          "'limit' is unknown: use mode, quantum, grace, memory_wait, trust, visibility, gpus, [limits] or [metrics]"));
  CHECK_THAT(problem("mode = \n"), Contains("line 1"));
}

TEST_CASE("a value without quotes is named, with the line as it has to be") {
  CHECK_THAT(problem("mode = automatic\n"),
             EndsWith("line 1: the value of mode has to be in quotes: mode = \"automatic\""));
  CHECK_THAT(problem("# a turn\ngrace = 10s # long\n"),
             EndsWith("line 2: the value of grace has to be in quotes: grace = \"10s\""));
  CHECK_THAT(problem("[limits]\nprocess = { gpu = 40G, host = \"8G\" }\n"),
             EndsWith("line 2: the value of gpu has to be in quotes: gpu = \"40G\""));
  CHECK_THAT(problem("[limits]\nprocess = { gpu = \"4G\", host = 8G }\n"), EndsWith("host = \"8G\""));
  // Not for other mistakes.
  CHECK_THAT(problem("mode = \"automatic\nquantum = \"1s\"\n"), !Contains("quotes:"));
  CHECK_THAT(problem("[limits\n"), !Contains("quotes:"));
}

TEST_CASE("a small number without a unit is asked for its unit") {
  CHECK_THAT(problem("[limits.user]\ngpu = 8\n"),
             EndsWith("line 2: 8 without a unit is 8 bytes: write \"8G\" or \"8M\""));
  CHECK_THAT(problem("[limits.user]\nhost = \"64\"\n"), EndsWith("write \"64G\" or \"64M\""));
}

TEST_CASE("a folder is no configuration") {
  const auto config = read_config("/tmp");
  REQUIRE_FALSE(config);
  CHECK_THAT(config.error().text, Contains("/tmp is a folder"));
}

TEST_CASE("a configuration that is not there is an error of its own") {
  const auto config = read_config("/nonexistent/rotad.toml");
  REQUIRE_FALSE(config);
  CHECK_THAT(config.error().text, Contains("/nonexistent/rotad.toml"));
}

}  // namespace rota::server
