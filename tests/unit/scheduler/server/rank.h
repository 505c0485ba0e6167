// A member of a gang, as a test plays it: a client with one GPU, by rotad's index.
#pragma once

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {

inline constexpr std::uint64_t kGpuBytes = std::uint64_t{1} << 30;

struct Rank : Client {
  std::uint32_t gpu;

  Rank(const std::string& socket, std::uint32_t index, const std::string& name = "rank")
      : Client(socket, name, false), gpu(index) {
    std::uint32_t got = 99;
    for (std::uint32_t each = 0; each <= index; ++each) {
      if (each == index) REQUIRE_FALSE(add_gpu(static_cast<std::uint8_t>(each + 1), &got, kGpuBytes));
    }
    gpu = got;
    use(gpu, kGpuBytes / 4);
  }
  void send_kind(protocol::Kind kind) const {
    const protocol::Message sent = message(kind);
    send_packet(descriptor, &sent, protocol::bytes_of(kind));
  }
  void join(const std::string& gang, std::uint32_t size = 0, protocol::GangWhy why = protocol::GangWhy::kNamed) const {
    protocol::Message named = message(protocol::Kind::kGang);
    strncpy(named.body.gang.name, gang.c_str(), sizeof named.body.gang.name - 1);
    named.body.gang.size = size;
    named.body.gang.why = why;
    send_packet(descriptor, &named, protocol::bytes_of(protocol::Kind::kGang));
  }
  const protocol::GpuLease& page() const { return lease->gpus[gpu]; }
  void want_mine() { want(std::uint64_t{1} << gpu); }
  void say(std::uint32_t step, std::uint32_t flags) {
    usage->gpus[gpu].gang_rest = std::uint64_t{step} << 32 | flags;
    send_kind(protocol::Kind::kUsage);
  }
  void give_back_mine() { give_back(page().grant, gpu); }
  template <typename Condition>
  bool shows(Condition condition) const {
    return wait_for([&](const protocol::LeasePage&) { return condition(page()); });
  }
  bool is_granted() const {
    return shows([](const protocol::GpuLease& page) { return page.grant != 0; });
  }
  bool ended() const {
    return shows([](const protocol::GpuLease& page) { return page.grant == 0; });
  }
  bool is_member() const {
    return shows([](const protocol::GpuLease& page) { return page.gang != 0; });
  }
  bool drains(std::uint32_t from = 1) const {
    return shows([&](const protocol::GpuLease& page) { return page.gang_step >= from; });
  }
  bool waited_for() const {
    return shows([](const protocol::GpuLease& page) { return page.waiters != 0; });
  }
  // Waits until rotad has handled everything that this client has sent.
  void catch_up() { REQUIRE_FALSE(add_gpu(static_cast<std::uint8_t>(gpu + 1), nullptr, kGpuBytes)); }
};

}  // namespace rota::test
