// Where rotad is looked for: a folder that another user made is skipped, never used.
#include "scheduler/address/socket_path.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <future>
#include <vector>

#include "scheduler/base/descriptor.h"
#include "tests/unit/scheduler/server/processes.h"

namespace rota::protocol {
namespace {

using test::TemporaryFolder;

SocketCandidates places(const std::vector<std::string>& paths) {
  SocketCandidates list{};
  for (const std::string& path : paths) {
    SocketCandidate& next = list.list[list.count++];
    path.copy(next.path, sizeof next.path - 1);
    next.owner = SocketOwner::kUser;
  }
  return list;
}

// Forms of a folder that is not safe: open to others, a link, or owned by another user.
void make_untrusted(const std::string& folder, int how) {
  if (how == 1) {
    std::filesystem::create_directory(folder + ".elsewhere");
    std::filesystem::create_directory_symlink(folder + ".elsewhere", folder);
    return;
  }
  std::filesystem::create_directory(folder);
  REQUIRE(chmod(folder.c_str(), how == 0 ? 0777 : 0700) == 0);
  if (how == 2) REQUIRE(chown(folder.c_str(), 4242, 4242) == 0);
}

TEST_CASE("a place that somebody else made is skipped and named, and the rotad behind it is found") {
  const int how = GENERATE(0, 1, 2);
  if (how == 2 && geteuid() != 0) return;  // only root can give a folder away
  INFO("0 open to others, 1 a link, 2 another user's: " << how);
  const TemporaryFolder folder;
  make_untrusted(folder / "a", how);
  const test::Daemon daemon({}, folder / "b/rotad.sock");
  const SocketSearch search = search_rotad(places({folder / "a/rotad.sock", folder / "b/rotad.sock"}));
  CHECK(search.error == 0);
  REQUIRE(search.descriptor >= 0);
  close(search.descriptor);
  CHECK(std::string(search.candidate.path) == folder / "b/rotad.sock");
  REQUIRE(search.skipped_count == 1);
  CHECK(std::string(search.skipped[0].path) == folder / "a/rotad.sock");
}

TEST_CASE("where every place is somebody else's there is no rotad, and each is named") {
  const TemporaryFolder folder;
  make_untrusted(folder / "a", 0);
  make_untrusted(folder / "b", 1);
  const SocketCandidates list = places({folder / "a/rotad.sock", folder / "b/rotad.sock"});
  const SocketSearch search = search_rotad(list);
  CHECK(search.descriptor == -1);
  CHECK(search.error == EPERM);
  CHECK(search.skipped_count == 2);
  CHECK(own_place(list) == nullptr);
}

TEST_CASE("a rotad of one's own is started at the first place that is one's own or can be made") {
  const TemporaryFolder folder;
  make_untrusted(folder / "a", 0);
  std::filesystem::create_directory(folder / "c");
  const SocketCandidates list =
      places({folder / "a/rotad.sock", folder / "missing/b/rotad.sock", folder / "c/rotad.sock"});
  const SocketCandidate* place = own_place(list);
  REQUIRE(place != nullptr);
  CHECK(std::string(place->path) == folder / "c/rotad.sock");
  const SocketCandidates fresh = places({folder / "d/rotad.sock", folder / "c/rotad.sock"});
  REQUIRE(own_place(fresh) != nullptr);
  CHECK(std::string(own_place(fresh)->path) == folder / "d/rotad.sock");
}

TEST_CASE("a rotad that is stopped, and has more programs before its door than fit there, is given up after a while") {
  const TemporaryFolder folder;
  SocketCandidate place{.path = {}, .owner = SocketOwner::kChosen};
  (folder / "rotad.sock").copy(place.path, sizeof place.path - 1);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, place.path, sizeof address.sun_path);
  const auto* where = reinterpret_cast<const sockaddr*>(&address);
  Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  REQUIRE(bind(listener.get(), where, sizeof address) == 0);
  REQUIRE(listen(listener.get(), 0) == 0);
  std::vector<Descriptor> waiting;
  do {
    waiting.emplace_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  } while (connect(waiting.back().get(), where, sizeof address) == 0);
  REQUIRE(errno == EAGAIN);
  auto connected = std::async(std::launch::async, [&] { return connect_socket(place); });
  const bool returned = connected.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  if (!returned) listener = {};  // which ends its wait
  const int answer = connected.get();
  CHECK(returned);
  CHECK(answer == -ETIMEDOUT);
}

// Sets variables of this process until the end of a test.
class Environment {
 public:
  ~Environment() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    names_.push_back(name);
  }

 private:
  std::vector<std::string> names_;
};

std::vector<std::string> candidates() {
  const SocketCandidates all = socket_candidates();
  std::vector<std::string> paths;
  for (size_t i = 0; i < all.count; ++i) paths.emplace_back(all.list[i].path);
  return paths;
}

TEST_CASE(
    "a socket that the user has chosen is the only place, and one that `rota run` found comes after the machine's") {
  Environment environment;
  unsetenv("XDG_RUNTIME_DIR");
  environment.set("ROTA_MACHINE_SOCKET", "/machine/rotad.sock");
  environment.set("ROTA_SOCKET", "/found/rotad.sock");
  CHECK(candidates() == std::vector<std::string>{"/found/rotad.sock"});
  environment.set("ROTA_SOCKET_FOUND", "/found/rotad.sock");
  const std::string own = "/tmp/rota-" + std::to_string(geteuid()) + "/rotad.sock";
  CHECK(candidates() == std::vector<std::string>{"/machine/rotad.sock", "/found/rotad.sock", own});
  // Chosen afterwards, by a program of the session.
  environment.set("ROTA_SOCKET", "/other/rotad.sock");
  CHECK(candidates() == std::vector<std::string>{"/other/rotad.sock"});
  environment.set("ROTA_SOCKET", own);
  environment.set("ROTA_SOCKET_FOUND", own);
  CHECK(candidates() == std::vector<std::string>{"/machine/rotad.sock", own});
}

TEST_CASE("an XDG_RUNTIME_DIR of another user, which su keeps, is no place and nothing to warn of") {
  if (geteuid() != 0) return;  // only root can give a folder away
  const TemporaryFolder folder;
  REQUIRE(chown(folder.path().c_str(), 4242, 4242) == 0);
  Environment environment;
  environment.set("ROTA_MACHINE_SOCKET", folder / "machine.sock");
  environment.set("XDG_RUNTIME_DIR", folder.path());
  CHECK(candidates().size() == 2);
  REQUIRE(chown(folder.path().c_str(), geteuid(), getegid()) == 0);
  CHECK(candidates().size() == 3);
}

TEST_CASE("an untrusted place after the rotad that answers is not checked") {
  const TemporaryFolder folder;
  make_untrusted(folder / "b", 0);
  const test::Daemon daemon({}, folder / "a/rotad.sock");
  const SocketSearch search = search_rotad(places({folder / "a/rotad.sock", folder / "b/rotad.sock"}));
  REQUIRE(search.descriptor >= 0);
  close(search.descriptor);
  CHECK(search.skipped_count == 0);
}

}  // namespace
TEST_CASE("a socket is bound and connected to at a path of any length, and its name may be as long as a file's") {
  const TemporaryFolder folder;
  const std::string deep = folder / (std::string(200, 'd') + "/" + std::string(200, 'e') + "/" + std::string(200, 'f'));
  std::filesystem::create_directories(deep);
  for (const std::string& path :
       {folder / "short", folder / std::string(255, 'n'), deep + "/s", deep + "/" + std::string(255, 'n'),
        folder / std::string(107 - folder.path().size() - 1, 'x'),
        folder / std::string(108 - folder.path().size() - 1, 'y')}) {
    INFO(path);
    const Descriptor listening(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    REQUIRE(bind_at(listening.get(), path.c_str()) == 0);
    REQUIRE(listen(listening.get(), 1) == 0);
    SocketCandidate place{.path = {}, .owner = SocketOwner::kChosen};
    path.copy(place.path, sizeof place.path - 1);
    const int connected = connect_socket(place);
    CHECK(connected >= 0);
    if (connected >= 0) close(connected);
    // Nothing else is left in its folder.
    const std::filesystem::path parent = std::filesystem::path(path).parent_path();
    for (const auto& entry : std::filesystem::directory_iterator(parent)) {
      CHECK_FALSE(entry.path().filename().string().starts_with("."));
    }
  }
  SocketCandidate nothing{.path = {}, .owner = SocketOwner::kChosen};
  (deep + "/nothing").copy(nothing.path, sizeof nothing.path - 1);
  CHECK(connect_socket(nothing) == -ENOENT);
  const Descriptor unbound(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  CHECK(bind_at(unbound.get(), (deep + "/missing/s").c_str()) == ENOENT);
}

}  // namespace rota::protocol
