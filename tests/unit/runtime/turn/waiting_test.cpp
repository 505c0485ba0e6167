// When a program that waits at the gate says so.
#include "runtime/turn/waiting.h"

#include <catch2/catch.hpp>
#include <cstdio>

using namespace std::chrono_literals;
using rota::turn::Waiting;

TEST_CASE("who waits speaks after 1, 10 and 60 s, and then no more, whatever wait that is") {
  int asked = 0;
  Waiting waiting([&] {
    ++asked;
    return std::string("GPU 0, held by pid 7 (other, alice)");
  });
  // Many short waits: no message.
  for (int i = 0; i < 100; ++i) {
    CHECK(waiting.stands(0s) == 1s);
    CHECK(waiting.stands(999ms) == 1s);
  }
  CHECK(asked == 0);
  CHECK(waiting.stands(1s) == 10s);
  CHECK(asked == 1);
  // The next wait of a second is not reported again.
  CHECK(waiting.stands(0s) == 10s);
  CHECK(waiting.stands(2s) == 10s);
  CHECK(asked == 1);
  CHECK(waiting.stands(10s) == 60s);
  CHECK(waiting.stands(60s) == std::nullopt);
  CHECK(asked == 3);
  CHECK(waiting.stands(1000s) == std::nullopt);
  CHECK(asked == 3);
}

namespace {

rota::protocol::StatusClient client(std::int32_t pid, std::uint64_t held, std::uint64_t wanted) {
  rota::protocol::StatusClient row{};
  row.pid = pid;
  row.uid = rota::protocol::kHiddenUser;  // the name alone
  row.held_gpus = held;
  row.wanted_gpus = wanted;
  std::snprintf(row.name, sizeof row.name, "program %d", pid);
  return row;
}

}  // namespace

TEST_CASE("who holds what a process waits for is named as far as rotad's list tells") {
  using rota::turn::holder_of;
  CHECK(holder_of({}, 1) == "its turn on a GPU; no rotad says who holds it");
  const std::vector<rota::protocol::StatusClient> all{client(1, 1, 0), client(2, 0, 1), client(3, 2, 0),
                                                      client(4, 0, 2)};
  CHECK(holder_of(all, 2) == "GPU 0, held by program 1");
  CHECK(holder_of(all, 4) == "GPU 1, held by program 3");
  // In another pid namespace: it may be any of those that wait, and one that holds a GPU may have its number there.
  CHECK(holder_of(all, 77) == "its turn on a GPU");
  CHECK(holder_of(all, 1) == "its turn on a GPU");
  const std::vector<rota::protocol::StatusClient> one_gpu{client(1, 1, 0), client(2, 0, 1), client(3, 0, 1)};
  CHECK(holder_of(one_gpu, 77) == "GPU 0, held by program 1");
  CHECK(holder_of(one_gpu, 1) == "GPU 0, held by program 1");
  auto named = one_gpu;
  named[0].uid = 0;
  CHECK(holder_of(named, 2) == "GPU 0, held by pid 1 (program 1, root)");
  CHECK(holder_of(named, 77) == "GPU 0, held by another program (program 1, root)");
}
