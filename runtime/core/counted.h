// Raises a count for as long as this lives, also if its thread is cancelled while it waits.
#pragma once

#include <atomic>
#include <cstdint>

namespace rota {

class Counted {
 public:
  explicit Counted(std::atomic<std::uint32_t>& count) : count_(count) { count_.fetch_add(1); }
  ~Counted() { count_.fetch_sub(1); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<std::uint32_t>& count_;
};

}  // namespace rota
