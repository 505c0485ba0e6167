// The virtual clock (clock.h).
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <limits>
#include <list>
#include <mutex>
#include <thread>

#include "tools/simgpu/state/blocked_signals.h"
#include "tools/simgpu/state/clock.h"
#include "tools/simgpu/thread_object.h"

namespace rota::sim {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

constexpr int64_t kLook = 500'000;  // the watchdog's polling interval

// A thread asleep at this many polls is waiting for another; one that has computed for this long is probably spinning.
struct Patience {
  int looks_asleep;
  int64_t spinning;
};
// For the program's code between two calls. A pause of this length is the only thing that makes modelled times depend
// on the machine.
constexpr Patience kWithProgram = {4, 20'000'000};
// For the driver's code, which sleeps only when the machine makes it wait (a lock whose owner is not scheduled, a
// starting thread), and computes as long as copies and kernels take. The limit ends the wait of a kernel that waits for
// the program without busy(), which would otherwise hang.
constexpr Patience kWithDriver = {100'000, 60'000'000'000};

struct Participant {
  uint64_t number = 0;
  bool stream = false;     // otherwise a thread of the program
  bool in_driver = false;  // runs the driver's code (and kernels), not the program's
  bool blocked = false;    // in the clock; otherwise it has the turn or is outside
  int64_t due = kNever;
  const std::function<bool()>* predicate = nullptr;
  std::condition_variable turn;
  pid_t thread = 0;
  // The watchdog's notes about this thread's current turn.
  uint64_t turns = 0;
  uint64_t seen_turn = 0;
  int64_t cpu_at_first = 0;
  int asleep = 0;
};

// State letter and processor time of a thread of this process. False: it has ended.
bool thread_use(pid_t thread, char* state, int64_t* cpu) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return false;
  char text[1024];
  size_t length = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[length] = '\0';
  const char* end = std::strrchr(text, ')');
  if (end == nullptr || end[1] != ' ') return false;
  *state = end[2];
  // The clock of that thread (CLOCK_THREAD_CPUTIME_ID of another one), as the kernel encodes it.
  auto clock = static_cast<clockid_t>((~static_cast<unsigned>(thread) << 3) | 6U);
  timespec used{};
  if (clock_gettime(clock, &used) != 0) return false;
  *cpu = int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
  return true;
}

class VirtualClock : public Clock {
 public:
  VirtualClock() {
    BlockedSignals blocked;
    watchdog_ = std::thread([this] { watch(); });
  }
  ~VirtualClock() override {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_watchdog_.notify_one();
    watchdog_.join();
  }

  int64_t now() override { return now_.load(std::memory_order_acquire); }
  bool is_virtual() const override { return true; }

  void sleep_until(int64_t when) override { block(when, nullptr); }
  void wait(const std::function<bool()>& predicate) override {
    if (predicate()) return;
    block(kNever, &predicate);
    catch_up_timeline();
  }

  void call(int64_t nanoseconds) override {
    Participant* self = mine();
    if (self == nullptr) self = &join();
    if (!self->stream) block(now() + nanoseconds, nullptr);
  }
  void returned() override {
    Participant* self = mine();
    if (self != nullptr && !self->stream) runs(*self, false);
  }

  uint64_t enlist() override {
    std::lock_guard lock(mutex_);
    Participant& made = add();
    made.stream = true;
    made.in_driver = true;
    made.blocked = true;  // without a condition, until it has begun
    made.predicate = &always_;
    return made.number;
  }

  void enter(uint64_t number) override {
    std::unique_lock lock(mutex_);
    for (Participant& participant : participants_) {
      if (participant.number != number) continue;
      participant.thread = static_cast<pid_t>(syscall(SYS_gettid));
      mine_slot() = {this, &participant};
      if (turn_ == nullptr) next();
      wait_for_turn(participant, lock);
      return;
    }
  }

  void leave() override {
    Participant* self = mine();
    if (self == nullptr) return;
    std::lock_guard lock(mutex_);
    mine_slot() = {};
    bool had = turn_ == self;
    participants_.remove_if([self](const Participant& participant) { return &participant == self; });
    if (had) {
      turn_ = nullptr;
      next();
    }
  }

  void kick() override {
    std::lock_guard lock(mutex_);
    if (turn_ == nullptr) next();
  }

  void program_code(bool begins) override {
    Participant* self = mine();
    if (self == nullptr) return;
    bool has_turn = runs(*self, !begins);
    if (!begins && !has_turn) block(now(), nullptr);  // the watchdog let others run meanwhile
  }

 private:
  struct Slot {
    VirtualClock* clock = nullptr;
    Participant* participant = nullptr;
  };
  static Slot& mine_slot() {
    thread_local Slot slot;
    return slot;
  }
  Participant* mine() {
    Slot& slot = mine_slot();
    return slot.clock == this ? slot.participant : nullptr;
  }

  // The thread continues in the driver's code or in the program's, and the watchdog starts over. Returns whether it has
  // the turn.
  bool runs(Participant& self, bool in_driver) {
    std::lock_guard lock(mutex_);
    self.in_driver = in_driver;
    self.seen_turn = 0;
    return turn_ == &self;
  }

  // Under the mutex.
  Participant& add() {
    Participant& made = participants_.emplace_back();
    made.number = ++last_number_;
    return made;
  }

  // A thread of the program calls for the first time.
  Participant& join() {
    struct Leaver {
      VirtualClock* clock = nullptr;
      pid_t process = 0;
      ~Leaver() {
        // In a forked child the clock's mutex may be held forever, by a thread that exists only in the parent.
        if (clock != nullptr && process == getpid()) clock->leave();
      }
    };
    auto& leaver = ThreadObject<Leaver>::get();
    std::lock_guard lock(mutex_);
    Participant& made = add();
    made.thread = static_cast<pid_t>(syscall(SYS_gettid));
    mine_slot() = {this, &made};
    leaver.clock = this;
    leaver.process = getpid();
    return made;
  }

  void block(int64_t due, const std::function<bool()>* predicate) {
    Participant* self = mine();
    std::unique_lock lock(mutex_);
    if (self == nullptr) {
      // A thread that the clock does not know takes part while it is blocked.
      Participant& guest = add();
      guest.blocked = true;
      guest.due = due;
      guest.predicate = predicate;
      if (turn_ == nullptr) next();
      wait_for_turn(guest, lock);
      participants_.remove_if([&guest](const Participant& participant) { return &participant == &guest; });
      turn_ = nullptr;
      next();
      return;
    }
    self->blocked = true;
    self->in_driver = true;
    self->due = due;
    self->predicate = predicate;
    if (turn_ == self) turn_ = nullptr;
    if (turn_ == nullptr) next();
    wait_for_turn(*self, lock);
  }

  void wait_for_turn(Participant& participant, std::unique_lock<std::mutex>& lock) {
    participant.turn.wait(lock, [&] { return turn_ == &participant; });
  }

  // Gives the turn to the thread that is due first. Under the mutex, while no thread has it.
  void next() {
    int64_t now = now_.load(std::memory_order_relaxed);
    Participant* chosen = nullptr;
    for (Participant& participant : participants_) {
      if (!participant.blocked) continue;
      if (participant.predicate != nullptr && (*participant.predicate)()) {
        participant.predicate = nullptr;
        participant.due = now;
      }
      if (participant.due == kNever) continue;
      bool earlier = chosen == nullptr || participant.due < chosen->due ||
                     (participant.due == chosen->due && participant.stream && !chosen->stream);
      if (earlier) chosen = &participant;  // the list is in order of the numbers
    }
    if (chosen == nullptr) return;  // a thread outside has to act first
    if (chosen->due > now) now_.store(chosen->due, std::memory_order_release);
    chosen->blocked = false;
    ++chosen->turns;
    turn_ = chosen;
    chosen->turn.notify_one();
  }

  void watch() {
    pthread_setname_np(pthread_self(), "simgpu-clock");
    std::unique_lock lock(mutex_);
    while (!ending_) {
      wake_watchdog_.wait_for(lock, std::chrono::nanoseconds(turn_ != nullptr ? kLook : 2 * kLook));
      if (turn_ == nullptr) {
        next();  // a store by the program may have made a predicate true
      } else if (turn_->thread != 0) {
        look_at(*turn_);
      }
    }
  }

  // Under the mutex.
  void look_at(Participant& participant) {
    char state = '?';
    int64_t cpu = 0;
    bool there = thread_use(participant.thread, &state, &cpu);
    if (participant.seen_turn != participant.turns) {
      participant.seen_turn = participant.turns;
      participant.cpu_at_first = cpu;
      participant.asleep = 0;
      return;
    }
    if (state == 'S') ++participant.asleep;
    const Patience& patience = participant.in_driver ? kWithDriver : kWithProgram;
    int64_t spinning = cpu - participant.cpu_at_first;
    if (there && participant.asleep < patience.looks_asleep && spinning < patience.spinning) return;
    if (there && participant.in_driver) {
      std::fprintf(stderr,
                   "simgpu: %s made no progress for a minute on the virtual clock: the clock advances without it, and "
                   "other runs "
                   "may show other times (a kernel that waits for the host must call busy())\n",
                   participant.stream ? "a stream" : "a call of the driver");
    }
    turn_ = nullptr;
    next();
  }

  const std::function<bool()> always_ = [] { return true; };
  std::mutex mutex_;
  std::atomic<int64_t> now_{1};  // 0 means "no time" in some places
  std::list<Participant> participants_;
  Participant* turn_ = nullptr;  // the thread that has it; null: all are blocked or outside
  uint64_t last_number_ = 0;
  bool ending_ = false;
  std::condition_variable wake_watchdog_;
  std::thread watchdog_;
};

}  // namespace

std::unique_ptr<Clock> make_virtual_clock() {
  return std::make_unique<VirtualClock>();
}

}  // namespace rota::sim
