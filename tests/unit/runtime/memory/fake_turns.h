// What memory asks of turns, answered as a test says: by default as if programs did not take turns.
#pragma once

#include <functional>

#include "runtime/memory/turns.h"

namespace rota::test {

struct FakeTurns : memory::WithoutTurns {
  explicit FakeTurns(bool is_our_turn = true) : our_turn(is_our_turn) {}

  void if_our_turn(int, memory::OwnWork work) override {
    if (our_turn) work();
  }
  bool may_take(int device, std::uint64_t bytes, memory::Kind kind, FunctionRef<void()> release, bool&) override {
    if (!takes || takes(device, bytes, kind)) return true;
    release();
    return false;
  }
  bool may_take_extents(int device, std::uint64_t bytes, std::uint64_t, FunctionRef<void()> release, bool&) override {
    return !takes_extents || takes_extents(device, bytes, release);
  }
  void make_room(int, std::uint64_t, FunctionRef<bool()>) override { ++room_made; }
  bool close_gate(int, FunctionRef<void()> begin) override {
    if (!closes_gate) return false;
    closes_gate(begin);
    return true;
  }
  bool overcommitted(int) override { return is_overcommitted; }
  std::uint64_t context_bytes(int) override { return contexts; }
  std::uint64_t all_context_bytes(int) override { return all_contexts; }
  std::optional<api::CUresult> synchronize(api::CUcontext context) override {
    return synchronizes ? synchronizes(context) : std::nullopt;
  }
  void out_of_place(int) override { told_out_of_place = true; }

  bool our_turn;
  bool is_overcommitted = false;
  std::uint64_t contexts = 0;      // bytes
  std::uint64_t all_contexts = 0;  // bytes
  std::function<bool(int device, std::uint64_t bytes, memory::Kind kind)> takes;
  std::function<bool(int device, std::uint64_t bytes, FunctionRef<void()> release)> takes_extents;
  std::function<void(FunctionRef<void()> begin)> closes_gate;
  std::function<std::optional<api::CUresult>(api::CUcontext context)> synchronizes;
  int room_made = 0;  // how often others were asked to evict memory
  bool told_out_of_place = false;
};

}  // namespace rota::test
