// What a call has begun and is to be undone unless it succeeds: if it fails, if an exception or a cancellation leaves
// it, and also if its thread leaves it while it waits without any of them (siglongjmp in a handler, as watchdogs do; a
// coroutine that nobody resumes). No destructor runs then, so what is to be undone is kept off the stack as well, and
// is undone by the thread's next call, by its end, or by undo_left_calls().
#pragma once

#include <cstdint>

namespace rota {

class Undo {
 public:
  using Work = void (*)(void* of, int device, std::uint64_t bytes, std::uint32_t detail);

  // `work` may run on another thread, as long as `of` lives. `frame`: that of the function with this object.
  Undo(Work work, void* of, int device, std::uint64_t bytes, std::uint32_t detail = 0,
       const void* frame = __builtin_dwarf_cfa());
  ~Undo();
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;

  // It has begun.
  void begin();
  // There is nothing to undo any more.
  void keep() { over(); }

 private:
  bool over();
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

// Undoes what calls of other threads have begun that have been left; returns whether there were any. Reads /proc for
// each that is under way.
bool undo_left_calls();
// In the child of a fork: the parent's other threads are not there.
void forget_others_undo();

}  // namespace rota
