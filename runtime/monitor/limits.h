// What limits leave this process, for its queries of free memory. On the program's threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/client/budget.h"
#include "runtime/client/published.h"
#include "runtime/memory/residency.h"
#include "runtime/memory/turns.h"
#include "scheduler/protocol/session_list.h"

namespace rota::monitor {

class Limits {
 public:
  // `started`: rotad has been looked for, or never will be.
  Limits(memory::Residency& memory, client::Budget& budget, const client::Published& published,
         const std::vector<protocol::SessionEntry>& sessions, const std::atomic<bool>& started)
      : memory_(memory), budget_(budget), published_(published), sessions_(sessions), started_(started) {}

  memory::SharedLimit of(int device);
  // The program asks what is free: waits for what rotad says of the GPU, at most a quarter of a second and only the
  // first time after a context was made there.
  void refresh(int device);
  // rotad was asked before there was a context, and has not answered.
  bool rotad_is_silent() const { return silent_.load(); }

 private:
  std::uint64_t before_contexts();
  memory::SharedLimit unanswered(int device, std::uint64_t said) const;

  memory::Residency& memory_;
  client::Budget& budget_;
  const client::Published& published_;
  const std::vector<protocol::SessionEntry>& sessions_;
  const std::atomic<bool>& started_;
  std::mutex mutex_;
  std::optional<std::uint64_t> early_;  // rotad's answer from before there was a context
  std::atomic<bool> silent_{false};
};

}  // namespace rota::monitor
