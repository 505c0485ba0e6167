// The event log of a real rotad.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <memory>
#include <sstream>
#include <vector>

#include "scheduler/log/event_log.h"
#include "scheduler/server/event_log.h"
#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

TEST_CASE("what a rotad wrote down about its clients is what it decides again") {
  const TemporaryFolder folder;
  const std::string log = folder / "events";
  {
    Daemon daemon({"--mode", "exclusive", "--quantum", "20ms", "--event-log", log});
    Client first(daemon.socket());
    Client second(daemon.socket());
    std::uint32_t gpu = 0;
    REQUIRE_FALSE(first.add_gpu(1, &gpu));
    REQUIRE_FALSE(second.add_gpu(1));
    first.want(std::uint64_t{1} << gpu);
    REQUIRE(first.wait_for_grant());
    second.want(std::uint64_t{1} << gpu);
    REQUIRE(first.wait_for([](const protocol::LeasePage& page) { return page.gpus[0].waiters != 0; }));
    first.give_back(first.lease->gpus[0].grant);
    REQUIRE(second.wait_for_grant());
    daemon.end(SIGTERM);
  }
  const std::string text = read_file(log);
  const std::size_t back = text.find(" give_back ");
  REQUIRE(back != std::string::npos);
  const std::size_t decisions = text.find('\n', back) + 1;
  CHECK(text.compare(decisions, 8, "> ended ") == 0);
  CHECK(text.compare(text.find('\n', decisions) + 1, 10, "> granted ") == 0);
  const Outcome again = run({.arguments = {ROTAD, "--replay", log}, .environment = {}});
  INFO(again.errors);
  CHECK(again.code() == 0);
  CHECK(again.output.find("decisions: all as recorded") != std::string::npos);
  write_file(log, text + "> granted 77 1\n");
  const Outcome lie = run({.arguments = {ROTAD, "--replay", log}, .environment = {}});
  CHECK(lie.code() == 1);
  CHECK(lie.errors.find("> granted 77 1") != std::string::npos);
}

TEST_CASE("programs of one session are told to the core as one, by the outermost that they name") {
  const TemporaryFolder folder;
  const std::string log = folder / "events";
  {
    Daemon daemon({"--event-log", log});
    const auto member = [&](std::vector<const char*> sessions) {
      auto client = std::make_unique<Client>(daemon.socket(), "member", false);
      for (const char* id : sessions) {
        protocol::Message message{.version = protocol::kVersion, .kind = protocol::Kind::kSession};
        std::strcpy(message.body.session.id, id);
        message.body.session.device_bytes = message.body.session.host_bytes = protocol::kUnlimited;
        send_packet(client->descriptor, &message, sizeof message);
      }
      REQUIRE_FALSE(client->add_gpu(1));  // answered, so everything before it has been read
      return client;
    };
    const auto first = member({"outer", "inner"});
    const auto second = member({"other"});
    const auto third = member({"outer", "another"});
    const auto fourth = member({});
    daemon.end(SIGTERM);
  }
  std::vector<std::string> said;
  std::istringstream lines(read_file(log));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find(" session ");
    if (at != std::string::npos) said.push_back(line.substr(line.rfind(' ') + 1));
  }
  CHECK(said == std::vector<std::string>{"1", "2", "1"});
}

TEST_CASE(
    "a log tells limits again: what was reserved, refused and asked back, and what is written otherwise is found") {
  constexpr std::uint64_t kMega = 1 << 20;
  const TemporaryFolder folder;
  const std::string log = folder / "events";
  std::string one;
  std::string two;
  {
    Daemon daemon({"--event-log", log});
    Client first(daemon.socket(), "member", false);
    Client second(daemon.socket(), "member", false);
    one = std::to_string(first.number);
    two = std::to_string(second.number);
    std::uint32_t gpu = 0;
    for (Client* client : {&first, &second}) {
      protocol::Message session{.version = protocol::kVersion, .kind = protocol::Kind::kSession};
      std::strcpy(session.body.session.id, "a b%");
      session.body.session.device_bytes = 500 * kMega;
      session.body.session.host_bytes = 64 * kMega;
      send_packet(client->descriptor, &session, sizeof session);
      REQUIRE_FALSE(client->add_gpu(1, &gpu));
    }
    const auto reserve = [&](const Client& client, std::uint32_t number, std::uint64_t bytes) {
      protocol::Message message{.version = protocol::kVersion, .kind = protocol::Kind::kReserve};
      message.body.reserve = {.gpu = gpu,
                              .number = number,
                              .device_bytes = bytes,
                              .movable_bytes = bytes,
                              .fixed_bytes = 0,
                              .swapped_bytes = 0};
      send_packet(client.descriptor, &message, sizeof message);
    };
    const auto answered = [&](const Client& client, protocol::Kind kind) {
      const auto answer = receive(client.descriptor);
      REQUIRE(answer);
      REQUIRE(answer->kind == kind);
      return *answer;
    };
    reserve(first, 1, 300 * kMega);
    CHECK(answered(first, protocol::Kind::kReserved).body.reserved.granted == 1);
    // It fits once the first has given back what it was granted beyond that.
    reserve(second, 1, 198 * kMega);
    const protocol::Message question = answered(first, protocol::Kind::kTighten);
    protocol::Message state{.version = protocol::kVersion, .kind = protocol::Kind::kState};
    state.body.state = {.gpu = gpu,
                        .answered = 1,
                        .device_bytes = 300 * kMega,
                        .movable_bytes = 300 * kMega,
                        .round = question.body.tighten.round,
                        .padding = 0,
                        .fixed_bytes = 0,
                        .swapped_bytes = 0};
    send_packet(first.descriptor, &state, sizeof state);
    CHECK(answered(second, protocol::Kind::kReserved).body.reserved.granted == 1);
    reserve(first, 2, 900 * kMega);
    CHECK(answered(first, protocol::Kind::kReserved).body.reserved.granted == 0);
    first.usage->host_bytes = first.usage->host_spare_bytes = 8 * kMega;
    first.usage->gpus[gpu].pinned_bytes = 8 * kMega;
    const protocol::Message usage = message(protocol::Kind::kUsage);
    send_packet(first.descriptor, &usage, sizeof usage);
    REQUIRE_FALSE(first.add_gpu(1, &gpu));  // answered, so that has been read
    daemon.end(SIGTERM);
  }
  const std::string text = read_file(log);
  INFO(text);
  for (const std::string& part :
       {" reserve " + one + " 0 1 ", "> reserved " + one + " 0 1 ", "> tighten " + one + " ", " state " + one + " 0 ",
        "> reserved " + two + " 0 1 ", "> refused " + one + " 0 2 ", " account " + one + " session%20",
        " use_host " + one + " 8388608 ", std::string(" share_host\n"), " bound_host " + one + "\n",
        " pin " + one + " 0 8388608\n"}) {
    INFO(part);
    CHECK(text.find(part) != std::string::npos);
  }
  const Outcome again = run({.arguments = {ROTAD, "--replay", log}, .environment = {}});
  INFO(again.errors);
  CHECK(again.code() == 0);
  using Change = std::pair<std::string, std::string>;
  for (const auto& [from, to] : {Change{"> refused " + one + " 0 2 ", "> reserved " + one + " 0 2 "},
                                 Change{" 524288000 67108864\n", " 52428800 67108864\n"},
                                 Change{" reserve " + one + " 0 2 ", " reserve " + one + " 0 2x "},
                                 Change{" state " + one + " 0 ", " stated " + one + " 0 "}}) {
    INFO(from);
    std::string other = text;
    REQUIRE(other.find(from) != std::string::npos);
    other.replace(other.find(from), from.size(), to);
    write_file(log, other);
    CHECK(run({.arguments = {ROTAD, "--replay", log}, .environment = {}}).code() == 1);
  }
}

TEST_CASE("an event log that is full breaks off between two events and can still be played") {
  const TemporaryFolder folder;
  const std::string path = folder / "events";
  const scheduler::Settings settings;
  {
    auto log = server::EventLog::create(path, settings, 300);
    REQUIRE(log);
    for (scheduler::ClientId id = 1; id < 100; ++id) {
      log->write(scheduler::event::Join{id}, std::chrono::seconds(id), {});
    }
  }
  const std::string text = read_file(path);
  CHECK(text.size() <= 300 + 7);
  CHECK(text.substr(text.size() - 7) == "# full\n");
  CHECK(run({.arguments = {ROTAD, "--replay", path}, .environment = {}}).code() == 0);
}

TEST_CASE("an event log whose disk is full for a while ends between two events and has no gap") {
  const TemporaryFolder folder;
  const std::string path = folder / "events";
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    auto log = server::EventLog::create(path, {});
    if (!log) _exit(2);
    scheduler::ClientId id = 0;
    const auto write_some = [&] {
      for (int i = 0; i < 100; ++i) log->write(scheduler::event::Join{++id}, std::chrono::seconds(id), {});
      log->flush();
    };
    write_some();
    const rlimit full{.rlim_cur = 2000, .rlim_max = limit.rlim_max};
    setrlimit(RLIMIT_FSIZE, &full);
    write_some();
    setrlimit(RLIMIT_FSIZE, &limit);
    write_some();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  std::istringstream log(read_file(path));
  const scheduler::Replay again = scheduler::replay(log);
  CHECK(again.problem == "");
  CHECK(again.broken_off == 0);
  CHECK(again.events == 100);
}

TEST_CASE("a second rotad does not write over the event log of one that runs, nor into what is no file") {
  const TemporaryFolder folder;
  const std::string path = folder / "events";
  auto log = server::EventLog::create(path, {});
  REQUIRE(log);
  log->write(scheduler::event::Join{1}, std::chrono::seconds(1), {});
  log->flush();
  const std::string before = read_file(path);
  const auto second = server::EventLog::create(path, {});
  REQUIRE_FALSE(second);
  CHECK(second.error().text.find("another rotad writes it") != std::string::npos);
  CHECK(read_file(path) == before);
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_FALSE(server::EventLog::create(folder / "pipe", {}));
}

TEST_CASE("a log that cannot be played is an error that names the file, the line and what to do") {
  const TemporaryFolder folder;
  const auto replay = [](const std::string& path) {
    return run({.arguments = {ROTAD, "--replay", path}, .environment = {}});
  };
  const Outcome missing = replay(folder / "missing");
  CHECK(missing.code() == 1);
  CHECK(missing.errors == "rotad: cannot read the event log " + (folder / "missing") + ": No such file or directory\n");
  const Outcome directory = replay(folder / ".");
  CHECK(directory.code() == 1);
  CHECK(directory.errors.find("Is a directory") != std::string::npos);
  const std::string path = folder / "events";
  const std::string log = scheduler::log_header({}) + "5 join 1\n";
  write_file(path, log + "6 fly 1\n");
  const Outcome unknown = replay(path);
  CHECK(unknown.code() == 1);
  CHECK(unknown.output.empty());
  CHECK(unknown.errors == "rotad: " + path +
                              ", line 3: unknown event 'fly'; record the log again, or replay only "
                              "the lines before it: head -n 2\n");
  write_file(path, log + "6 joi");
  const Outcome cut = replay(path);
  CHECK(cut.code() == 0);
  CHECK(cut.output == "1 events, 0 decisions: all as recorded; the log breaks off within line 3\n");
}

TEST_CASE("an event log that cannot be written keeps rotad from starting, by name") {
  const TemporaryFolder folder;
  const Outcome outcome = run({.arguments = {ROTAD, "--socket", folder / "s", "--lock-directory", folder / "locks",
                                             "--event-log", folder / "missing/log"},
                               .environment = {}});
  CHECK(outcome.code() == 1);
  CHECK(outcome.errors.find("missing/log") != std::string::npos);
}

}  // namespace
}  // namespace rota::test
