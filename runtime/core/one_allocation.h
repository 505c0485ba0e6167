// All that a thread asks rotad in the course of one allocation, which may try several ways: of the refusals one counts.
#pragma once

#include <utility>

namespace rota {

class OneAllocation {
 public:
  // The outermost of those in this thread's calls is the allocation; `frame` is that of the function with this object.
  // A call that the thread has left without returning (runtime/core/undo.h) mostly lies below those that it makes
  // later, or has its object where theirs is. Otherwise a later allocation is taken for a part of it.
  explicit OneAllocation(const void* frame = __builtin_dwarf_cfa())
      : outermost_(here.frame < frame || here.one == this) {
    if (outermost_) here = {.frame = frame, .one = this};
  }
  ~OneAllocation() {
    if (outermost_) here = {};
  }
  OneAllocation(const OneAllocation&) = delete;
  OneAllocation& operator=(const OneAllocation&) = delete;

  // A way that is followed by another one: no refusal of it counts.
  class FirstWay {
   public:
    FirstWay() : before_(std::exchange(here.first_way, true)) {}
    ~FirstWay() { here.first_way = before_; }
    FirstWay(const FirstWay&) = delete;
    FirstWay& operator=(const FirstWay&) = delete;

   private:
    const bool before_;
  };

  // A way that waits if memory of others is what refuses it: only a refusal that ends the wait counts.
  class MayWait {
   public:
    explicit MayWait(bool waits) : before_(std::exchange(here.waits, waits)) {}
    ~MayWait() { here.waits = before_; }
    MayWait(const MayWait&) = delete;
    MayWait& operator=(const MayWait&) = delete;

   private:
    const bool before_;
  };

  // Whether a refusal of what this thread asks now is another one of the same allocation, or none yet.
  static bool refusal_counts() { return !here.refused && !here.first_way; }
  static bool waits_if_full() { return here.waits; }
  // A refusal that counts.
  static void refused() { here.refused = here.refused || (here.frame != nullptr && !here.first_way); }

 private:
  struct Here {
    const void* frame = nullptr;
    const OneAllocation* one = nullptr;
    bool refused = false;
    bool first_way = false;
    bool waits = false;
  };
  [[gnu::tls_model("initial-exec")]] static constinit thread_local Here here;
  const bool outermost_;
};

}  // namespace rota
