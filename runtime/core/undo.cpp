#include "runtime/core/undo.h"

#include <array>
#include <atomic>
#include <new>
#include <utility>

#include "runtime/core/left.h"
#include "runtime/core/own_tid.h"

namespace rota {

// One call that is under way. Its thread writes the entry, and a thread that sees that the call was left takes it: only
// once, since each use of an entry has a state of its own.
struct UndoEntry {
  // 0: free. Odd: something is to be undone. Even: it is being undone.
  std::atomic<std::uint64_t> state{0};
  std::atomic<const void*> frame{nullptr};
  const Undo* object = nullptr;
  Undo::Work work = nullptr;
  void* of = nullptr;
  int device = 0;
  std::uint64_t bytes = 0;
  std::uint32_t detail = 0;

  // `use`: the state in which it was found. False: another thread has undone it, or the call has ended.
  bool undo(std::uint64_t use) {
    if (!state.compare_exchange_strong(use, use + 1, std::memory_order_acq_rel)) return false;
    work(of, device, bytes, detail);
    state.store(0, std::memory_order_release);
    return true;
  }
};

// A thread's calls. Never freed: another thread may be looking at it.
struct UndoRecord {
  std::atomic<pid_t> tid{0};  // 0: free
  std::array<UndoEntry, 8> entries;
  std::uint64_t uses = 0;
  UndoRecord* next = nullptr;

  void undo_all() {
    for (UndoEntry& entry : entries) {
      const std::uint64_t seen = entry.state.load(std::memory_order_acquire);
      if ((seen & 1) != 0) entry.undo(seen);
    }
  }
  // What this thread has left, as seen from a call that it makes in this frame.
  void undo_left(const Undo* object, const void* frame) {
    for (UndoEntry& entry : entries) {
      const std::uint64_t seen = entry.state.load(std::memory_order_relaxed);
      if ((seen & 1) == 0) continue;
      const void* const before = entry.frame.load(std::memory_order_relaxed);
      // Two live objects have different addresses.
      if (entry.object == object || left_on_this_stack(before, frame)) entry.undo(seen);
    }
  }
};

namespace {

constinit std::atomic<UndoRecord*> records{nullptr};

// The record of a thread, for as long as it lives.
struct Holder {
  UndoRecord* record = nullptr;
  bool over = false;
  ~Holder() {
    over = true;
    if (record == nullptr) return;
    record->undo_all();
    record->tid.store(0, std::memory_order_release);
    record = nullptr;
  }
  UndoRecord* get() {
    if (record != nullptr || over) return record;
    const pid_t self = own_tid();
    for (UndoRecord* each = records.load(std::memory_order_acquire); each != nullptr; each = each->next) {
      pid_t free = 0;
      if (each->tid.compare_exchange_strong(free, self, std::memory_order_acq_rel)) return record = each;
    }
    record = new (std::nothrow) UndoRecord;
    if (record == nullptr) return nullptr;
    record->tid.store(self, std::memory_order_relaxed);
    record->next = records.load(std::memory_order_relaxed);
    while (!records.compare_exchange_weak(record->next, record, std::memory_order_acq_rel)) {
    }
    return record;
  }
};

thread_local Holder own;

}  // namespace

Undo::Undo(Work work, void* of, int device, std::uint64_t bytes, std::uint32_t detail, const void* frame)
    : work_(work), of_(of), device_(device), bytes_(bytes), detail_(detail), frame_(frame) {
  if (own.record != nullptr) own.record->undo_left(this, frame);
}

Undo::Undo(Undo&& other) noexcept
    : work_(other.work_),
      of_(other.of_),
      device_(other.device_),
      bytes_(other.bytes_),
      detail_(other.detail_),
      frame_(other.frame_),
      entry_(std::exchange(other.entry_, nullptr)),
      use_(other.use_),
      begun_(std::exchange(other.begun_, false)) {
  // Another thread may have undone it, and the entry may serve another object by now.
  if (entry_ != nullptr && entry_->state.load(std::memory_order_relaxed) == use_) entry_->object = this;
}

void Undo::begin() {
  begun_ = true;
  UndoRecord* const record = own.get();
  if (record == nullptr) return;
  for (UndoEntry& entry : record->entries) {
    if (entry.state.load(std::memory_order_acquire) != 0) continue;
    entry.frame.store(frame_, std::memory_order_relaxed);
    entry.object = this;
    entry.work = work_;
    entry.of = of_;
    entry.device = device_;
    entry.bytes = bytes_;
    entry.detail = detail_;
    use_ = 2 * ++record->uses + 1;
    entry.state.store(use_, std::memory_order_release);
    entry_ = &entry;
    return;
  }
}

bool Undo::over() {
  if (!begun_) return false;
  begun_ = false;
  if (entry_ == nullptr) return true;
  std::uint64_t seen = use_;
  return std::exchange(entry_, nullptr)->state.compare_exchange_strong(seen, 0, std::memory_order_acq_rel);
}

void Undo::cancel() {
  if (over()) work_(of_, device_, bytes_, detail_);
}

Undo::~Undo() {
  cancel();
}

bool undo_left_calls() {
  bool undone = false;
  const pid_t self = own_tid();
  for (UndoRecord* each = records.load(std::memory_order_acquire); each != nullptr; each = each->next) {
    const pid_t tid = each->tid.load(std::memory_order_acquire);
    if (tid == 0 || tid == self) continue;
    for (UndoEntry& entry : each->entries) {
      const std::uint64_t seen = entry.state.load(std::memory_order_acquire);
      if ((seen & 1) != 0 && left_by(tid, entry.frame.load(std::memory_order_acquire))) undone |= entry.undo(seen);
    }
  }
  return undone;
}

void forget_others_undo() {
  records.store(nullptr, std::memory_order_release);
  own.record = nullptr;
}

}  // namespace rota
