// What this process tells rotad about its memory: always in the usage page, and by a message once it has changed enough
// to matter. The program's threads write at each allocation and free; the monitor says where and sends the messages.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "runtime/client/bell.h"
#include "runtime/memory/residency.h"
#include "runtime/turn/machine.h"
#include "scheduler/protocol/pages.h"

namespace rota::client {

class Usage {
 public:
  Usage(memory::Residency& memory, Bell& bell) : memory_(memory), bell_(bell) {}

  // Any thread: the bytes that this process has on a GPU have changed.
  void changed(int device);
  // Any thread, once, before the GPU is announced.
  void set_total(int device, std::uint64_t bytes);

  // Any thread: an allocation begins to wait for memory of others there, or to be tried again after that; or no longer
  // does.
  void begin_awaiting(int device) { show_awaited(device, 1); }
  void end_awaiting(int device) { show_awaited(device, -1); }
  // Any thread: whether each thread that has used a GPU waits in one, and all others sleep.
  void set_all_threads_wait(bool all);

  // Any thread: something else that rotad reads in the page has changed.
  void tell() {
    news_.store(true, std::memory_order_release);
    bell_.ring();
  }

  // The monitor.
  void connected(protocol::UsagePage* page);
  void lost();
  void set_index(int device, int index);  // rotad's
  // For how much of this process's memory the driver had no memory although the process holds the GPU, and how much the
  // driver reported free then. Bytes; 0: nothing.
  void set_short(int device, std::uint64_t bytes, std::uint64_t free_bytes);
  // What this process, a member of a gang, does there (GpuUsage::gang_rest).
  void set_gang_rest(int device, std::uint64_t word);
  // Whether extents can be evicted: not for now, because it is not proven that no work of this process uses them or the
  // driver did not release them; or never again. Returns what it was before.
  enum class Pinned { kNo, kForNow, kForGood };
  // `why`: of kForGood.
  Pinned set_pinned(int device, Pinned pinned, protocol::PinAll why = protocol::PinAll::kNo) {
    slots_[static_cast<std::size_t>(device)].why.store(why);
    return slots_[static_cast<std::size_t>(device)].pinned.exchange(pinned);
  }
  // If all memory of this process is pinned, for good, the page says so from now on.
  void show_if_all_pinned(int device);
  // Extents have been evicted, or restored: bytes that were copied, and bytes that needed no copy. For `rota status`
  // and metrics.
  void moved_out(int device, std::uint64_t copied, std::uint64_t spared, turn::Time time);
  void moved_in(int device, std::uint64_t copied, turn::Time time);
  // Whether something worth a message has changed since the last call.
  bool take_news() { return news_.exchange(false, std::memory_order_acq_rel); }

 private:
  void show_moves();
  protocol::GpuUsage* record(int device) const;  // null: rotad does not serve the GPU
  void show_awaited(int device, int more);
  void show_all_threads_wait();
  struct Slot {
    std::atomic<int> index{-1};
    std::atomic<int> awaited{0};
    std::atomic<std::uint64_t> last_told{0};
    std::atomic<std::uint64_t> resident_told{0};
    std::atomic<std::uint64_t> pins_told{0};
    std::atomic<std::uint64_t> worth_telling{UINT64_MAX};
    std::atomic<Pinned> pinned{Pinned::kNo};
    std::atomic<protocol::PinAll> why{protocol::PinAll::kNo};
  };

  memory::Residency& memory_;
  Bell& bell_;
  std::array<Slot, kMaxDevices> slots_;
  std::atomic<protocol::UsagePage*> page_{nullptr};
  std::atomic<bool> all_threads_wait_{false};
  std::uint64_t began_ns_ = 0;  // when it met its first rotad
  protocol::Moves moves_{};     // the monitor's, for all rotads that serve this process
  std::atomic<bool> news_{false};
};

}  // namespace rota::client
