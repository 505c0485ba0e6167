// Memory as turns see it, without real memory: a ledger, and as many needed bytes as the test says.
#pragma once

#include <atomic>

#include "runtime/memory/residency.h"

namespace rota::test {

struct FakeResidency : memory::Residency {
  using CUcontext = api::CUcontext;
  using Move = memory::Move;
  using Moved = memory::Moved;

  void set_turns(memory::Turns*) override {}
  memory::Ledger& ledger() override { return books; }
  const memory::Settings& settings() const override { return chosen; }
  Sums sums(int device) const override { return {books.live_bytes(device), books.fixed_bytes(device), 0, 0, {}}; }
  std::uint64_t resident_bytes(int) const override { return 0; }
  std::uint64_t out_bytes(int) const override { return 0; }
  std::uint64_t needed_bytes(int) const override { return needed.load(); }
  protocol::MemoryMode mode(int) override { return protocol::MemoryMode::kNativeChosen; }
  bool has_extents() const override { return false; }
  Devices reachers(int device) const override { return bit_of(device); }
  Devices reachable(Devices devices) const override { return devices; }
  int device_of(api::CUdeviceptr, bool*) const override { return -1; }
  int device_of_array(const void*) const override { return -1; }
  bool in_place(Devices) const override { return true; }
  bool if_in_place(Devices, FunctionRef<void()> work) override { return work(), true; }
  bool use_if_in_place(Devices, FunctionRef<void()> open) override { return open(), true; }
  std::optional<bool> try_use_if_in_place(Devices, FunctionRef<void()> open) override { return open(), true; }
  void pin_all(protocol::PinAll) override {}
  protocol::PinAll pinned_all() const override { return protocol::PinAll::kNo; }
  void set_served(int, bool) override {}
  bool has_deferred() const override { return false; }
  bool sweep_deferred() override { return false; }
  void collect_deferred(const std::optional<memory::Owner>&) override {}
  std::uint64_t drop_kept(int) override { return 0; }
  Moved evict(int, std::uint64_t, const Move&) override { return {}; }
  Moved restore(int, const Move&) override { return {}; }
  std::uint64_t context_failed(CUcontext, int) override { return 0; }
  void release_all() override {}
  void own_context_ended(CUcontext) override {}
  std::vector<memory::Allocation> to_bring(int, std::uint64_t) override { return {}; }
  std::uint64_t bring(int, api::CUstream, const std::vector<memory::Allocation>&) override { return 0; }
  std::uint64_t move_out(int, api::CUstream, std::uint64_t) override { return 0; }
  void follow_host_share(protocol::UsagePage*, const protocol::LeasePage*, std::function<void()>) override {}
  std::uint64_t host_bytes() const override { return 0; }
  std::uint64_t kept_host_bytes() const override { return 0; }
  bool host_limited() const override { return false; }
  std::uint64_t host_excess() const override { return 0; }
  bool host_low() override { return false; }
  void count_copies() override {}
  void needs_no_more_host() override {}
  bool prepare_host(const std::vector<memory::Overcommitment>&) override { return false; }
  bool has_prepared_host() const override { return false; }
  void drop_prepared_host() override {}
  std::uint64_t trim_host() override { return 0; }
  std::uint64_t give_host_back(std::uint64_t, bool) override { return 0; }
  void serve_opener(Descriptor&&) override {}
  void stop_serving() override {}

  memory::Ledger books;
  memory::Settings chosen;
  std::atomic<std::uint64_t> needed{0};  // bytes, on every GPU
};

}  // namespace rota::test
