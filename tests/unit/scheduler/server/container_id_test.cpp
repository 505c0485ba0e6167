// Which container a cgroup belongs to, by the paths that engines use.
#include "scheduler/server/container_id.h"

#include <catch2/catch.hpp>

#include "scheduler/server/listen_address.h"

namespace rota::server {

TEST_CASE("a container is found in the path of its cgroup, whichever engine made it") {
  const std::string id = "4f6a0c1d2e3f405162738495a6b7c8d9e0f1a2b3c4d5e6f708192a3b4c5d6e7f";
  CHECK(container_in("/system.slice/docker-" + id + ".scope") == "4f6a0c1d2e3f");
  CHECK(container_in("/docker/" + id) == "4f6a0c1d2e3f");
  CHECK(container_in("/machine.slice/libpod-" + id + ".scope/container") == "4f6a0c1d2e3f");
  CHECK(container_in("/kubepods.slice/kubepods-pod12ab.slice/cri-containerd-" + id + ".scope") == "4f6a0c1d2e3f");
  const std::string inner(64, 'b');
  CHECK(container_in("/docker/" + id + "/docker/" + inner) == "bbbbbbbbbbbb");
}

TEST_CASE("other cgroups are no containers'") {
  for (const char* path : {"", "/", "/user.slice/user-1000.slice/session-3.scope", "/system.slice/rotad.service"}) {
    CHECK(container_in(path).empty());
  }
  CHECK(container_in("/" + std::string(63, 'a')).empty());
  CHECK(container_in("/" + std::string(65, 'a')).empty());
}

TEST_CASE("an address to listen at is numeric, has a port, and is known to be the machine's own or not") {
  for (const char* text : {"127.0.0.1:9410", "127.1.2.3:1", "[::1]:9410"}) {
    const auto address = parse_listen_address(text);
    REQUIRE(address);
    CHECK(address->loopback);
  }
  for (const char* text : {"0.0.0.0:9410", "192.168.0.1:80", "[::]:9410"}) {
    const auto address = parse_listen_address(text);
    REQUIRE(address);
    CHECK_FALSE(address->loopback);
  }
  for (const char* text : {"", "9410", ":9410", "localhost:9410", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0",
                           "127.0.0.1:65536", "127.0.0.1:94a", "::1:9410", "[::1]", "127.0.0.1:-1"}) {
    CHECK_FALSE(parse_listen_address(text));
  }
}

}  // namespace rota::server
