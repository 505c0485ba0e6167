// What a call has begun, which is undone unless the call succeeds: if it fails, if an exception or a cancellation ends
// it, and also if its thread leaves it during a wait without any of these (siglongjmp in a handler, as watchdogs do; a
// coroutine that nobody resumes). No destructor runs then, so what is to be undone is kept off the stack as well, and
// is undone by the thread's next call, by its end, or by undo_left_calls().
#pragma once

#include <cstdint>
#include <utility>

namespace rota {

class Undo {
 public:
  using Work = void (*)(void* of, int device, std::uint64_t bytes, std::uint32_t detail);

  // `work` may run on another thread, as long as `of` lives. `frame`: that of the function with this object.
  Undo(Work work, void* of, int device, std::uint64_t bytes, std::uint32_t detail = 0,
       const void* frame = __builtin_dwarf_cfa());
  ~Undo();
  // To a place in the same function's frame, or in that of the function that was named.
  Undo(Undo&& other) noexcept;
  Undo& operator=(Undo&&) = delete;

  // Says that the call has begun what is to be undone.
  void begin();
  // Whether something would be undone.
  explicit operator bool() const { return begun_; }
  // The call has succeeded: nothing is undone.
  void commit() { over(); }
  // The call fails: it is undone now, and not again.
  void cancel();

 protected:
  // Whether there was something to undo, which is not undone any more.
  bool over();

 private:
  const Work work_;
  void* const of_;
  const int device_;
  const std::uint64_t bytes_;
  const std::uint32_t detail_;
  const void* const frame_;
  struct UndoEntry* entry_ = nullptr;
  std::uint64_t use_ = 0;  // of the entry
  bool begun_ = false;
};

// The same for something that is over before the function waits: no other thread undoes it. `Work` is called at the end
// of the scope, unless commit() has been.
template <typename Work>
class Rollback {
 public:
  explicit Rollback(Work work) : work_(std::move(work)) {}
  Rollback(Rollback&& other) noexcept : work_(std::move(other.work_)), begun_(std::exchange(other.begun_, false)) {}
  Rollback& operator=(Rollback&&) = delete;
  ~Rollback() { cancel(); }
  void commit() { begun_ = false; }
  // Calls it now, and not again.
  void cancel() {
    if (std::exchange(begun_, false)) work_();
  }

 private:
  Work work_;
  bool begun_ = true;
};

// Undoes what left calls of other threads have begun; returns whether there were any. Reads /proc for each that is
// under way.
bool undo_left_calls();
// In the child of a fork: the parent's other threads are not there.
void forget_others_undo();

}  // namespace rota
