// The contexts of this process, the stream captures under way in them, and the events by which the monitor learns how
// far the GPU has come. One lock, the closing lock, is held
//  - by the program's threads while a context is destroyed and while a capture begins or ends, and
//  - by the monitor while it touches the contexts.
// So the monitor never works on a context that is being destroyed, and records no event while anything captures in any
// context: cuCtxRecordEvent on a context that takes part in a capture fails and destroys the capture, and a capture can
// span contexts and GPUs (both measured). The monitor only tries the lock: a destruction may itself wait for work that
// the closed gate holds back. The lock is recursive: a recapture runs a callback of the program, which may begin a
// capture itself.
//
// The lists are changed and read under a second lock, taken inside the first and never held while the driver may wait
// for the GPU: creating and destroying streams takes only that one.
//
// Drivers before CUDA 12.5 have no cuCtxRecordEvent. An event on the legacy stream would cover most of a context, but
// later work in blocking streams waits for it: a kernel that waits for another stream's next one would never end. So
// rota tracks streams, and each gets its own events; for the legacy stream's work they go into a blocking stream of
// rota's own, for which nothing waits. No event of the monitor can show the progress of the threads' own default
// streams: whether they are idle is known by a query of the legacy stream, which covers all but non-blocking streams.
//
// A handle does not identify a context: the driver reuses it for a new one, and a primary context may have the same
// handle after a reset. So each *life* of a context has a number of its own. Whatever the monitor has made in a context
// (streams, events, modules, host memory) belongs to that life and ends with it: it is only used within() the same
// life, and afterwards forgotten without a driver call, since the driver may have given those handles to the program.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/core/devices.h"
#include "runtime/core/function_ref.h"
#include "runtime/driver/call.h"

namespace rota::driver {

// One life of a context: from when it was made, or its GPU reset, until it ends or the next reset.
struct ContextLife {
  api::CUcontext context = nullptr;
  std::uint64_t number = 0;  // of no other life in this process; 0: of none

  explicit operator bool() const { return number != 0; }
  bool operator==(const ContextLife&) const = default;
};

class Contexts {
 public:
  Contexts();

  // --- program's threads
  // Returns whether it is a new one.
  bool add(api::CUcontext context, int device, bool primary);
  bool known(api::CUcontext context) const;
  // Runs a call that may end `context` under the closing lock; the context is forgotten if `ended` returns true for the
  // call's result. `ended` runs under that lock, too, and add() of a new context waits for it: so its bookkeeping for a
  // handle that has ended is done before another thread gets the same handle for a new context.
  api::CUresult end_context(api::CUcontext context, FunctionRef<api::CUresult()> call,
                            FunctionRef<bool(api::CUresult)> ended);
  // Called in `ended`: everything in the context has ended, but its handle is valid; a new life begins.
  void begin_anew(api::CUcontext context);
  // Called in `ended`: whether the handle of a context now means the one that was added, another one, or none, as far
  // as the driver says (from CUDA 12.0 on).
  enum class Handle { kSame, kOthers, kNobodys };
  Handle handle_now(api::CUcontext context) const;
  // The primary context of a device as last seen, or null.
  api::CUcontext primary(int device) const;

  // Run the real call under the closing lock and track the captures. `per_thread`: a _ptsz form.
  api::CUresult begin_capture(api::CUstream stream, bool per_thread, FunctionRef<api::CUresult()> call);
  api::CUresult end_capture(api::CUstream stream, bool per_thread, FunctionRef<api::CUresult()> call);
  api::CUresult destroy_stream(api::CUstream stream, FunctionRef<api::CUresult()> call);
  // After the driver has created a stream in the current context.
  void stream_made(api::CUstream stream);
  // Counted from before the driver's call that begins one.
  std::uint32_t captures() const { return capture_count_.load(std::memory_order_acquire); }
  // Waits for the work of a context by cuCtxSynchronize, or does nothing where it is not the current one or was not
  // added (a green context is not all of a primary one), and once another thread of this process has ever captured.
  // That call would end a capture of any mode in its context, also one that another thread begins meanwhile (cuMemFree
  // ends only GLOBAL ones). Returns the driver's result.
  std::optional<api::CUresult> synchronize(api::CUcontext context);
  // Whether a call submits nothing to the GPU: it goes into a capture, or there is no context.
  bool submits_nothing(const Call& call) const;

  // --- the monitor (a thread in RELAXED capture mode, all signals blocked)
  enum class Mark {
    kMarked,     // an event has been recorded behind all work submitted so far, in every context of these GPUs
    kCapturing,  // a capture is under way somewhere in this process: nothing was marked
    kUnknown,    // the driver refused an event in some context: nothing is known about its work
    kBusy,       // a context is being created or destroyed: try again
  };
  Mark mark(Devices devices = kAllDevices);
  struct Progress {
    bool looked = false;  // false: the lock was not available
    bool done = false;    // everything before the last mark of these GPUs has finished
    // How many marks have been passed in these contexts, except for those that the GPU passed at once: changes while it
    // makes progress.
    std::uint64_t reached = 0;
  };
  Progress progress(Devices devices = kAllDevices);
  // Whether there is no context of a device.
  bool none(int device) const;
  // The device of a context that has been added; negative: it has not been.
  int device_of(api::CUcontext context) const;
  // Some context of a GPU; null: there is none. It may be destroyed at any time.
  api::CUcontext some(int device) const;
  // Some live context of a device, or none.
  ContextLife any(int device) const;
  // The life of a context that has been added, or none.
  ContextLife life_of(api::CUcontext context) const;
  // Contexts of a device whose work an error has ended permanently. None while the lock is not available or a capture
  // is under way.
  std::vector<api::CUcontext> failed(int device) const;
  // Runs `work` with the context current, unless that life of it has ended, or the driver refuses to make it current:
  // `error` says why.
  enum class Within { kRan, kGone, kBusy, kRefused };
  Within within(const ContextLife& life, FunctionRef<void()> work, api::CUresult* error = nullptr);
  // The same for work that needs no current context; false: that life has ended. Waits while a context is being made or
  // ended.
  bool while_alive(const ContextLife& life, FunctionRef<void()> work);
  // Runs `work` while no context ends; returns false and does nothing if one is ending or the process is exiting.
  bool while_all_live(FunctionRef<void()> work);
  // After this the monitor's calls do nothing: the process is exiting. Waits up to a second for one that is under way.
  void shut();

  // Whether the driver (before CUDA 12.5) cannot tell when all of a context is done, so that each stream has to be
  // known.
  bool needs_streams();

 private:
  // Events behind work that completes in order: that of a context as a whole, or of one of its streams.
  struct Track {
    api::CUstream stream = nullptr;    // null: the whole context, or the work before rota's own stream
    std::deque<api::CUevent> pending;  // recorded, oldest first
    std::size_t waited_for = 0;        // how many of them, from the oldest on, had not been reached at the last check
  };
  static constexpr std::size_t kFewLast = 8;
  struct Context {
    api::CUcontext handle = nullptr;
    std::uint64_t life = 0;       // its number
    std::uint64_t driver_id = 0;  // the driver's own number for it; 0: it does not say
    int device = 0;
    bool primary = false;
    std::vector<Track> tracks = std::vector<Track>(1);  // the first belongs to the whole context
    api::CUstream own = nullptr;      // before CUDA 12.5: rota's own blocking stream, once it was created
    std::vector<api::CUevent> last;   // behind the work of destroyed streams, in no order
    std::size_t check_at = kFewLast;  // how many of them make a check worthwhile
    std::vector<api::CUevent> spare;
    std::uint64_t reached = 0;  // marks, see Progress
  };
  struct Capture {
    api::CUstream stream = nullptr;
    api::CUcontext context = nullptr;
    pid_t tid = 0;  // of a per-thread stream, whose handle is the same in every thread; otherwise 0
    std::uint64_t number = 0;
  };
  // Marks stored per track: enough to show progress within a long queue, few enough to cost nothing.
  static constexpr std::size_t kMarkers = 32;

  struct State {
    std::recursive_mutex closing;
    std::mutex lists;  // guards everything below except `shut`; the closing lock alone is enough to read the handles in
                       // `contexts`
    std::vector<Context> contexts;
    std::vector<Capture> captures;
    std::uint64_t captures_begun = 0;
    std::uint64_t lives = 0;  // that have begun
    bool shut = false;
  };

  enum class Recorded {
    kYes,
    kRunsNothing,  // the context has ended or failed permanently
    kUnknown,      // the driver refused, and work may still be running there
  };
  Recorded record(Context& context, Track& track);
  static bool alive(const State& state, const ContextLife& life);
  static Context born(State& state, api::CUcontext context, int device, bool primary);
  void drop_captures_of(State& state, api::CUcontext context);
  bool end_track(State& state, Context& context, api::CUstream stream);
  static bool sweep_last(Context& context);
  bool anything_captures(State& state);
  void forbid_synchronizing();
  void drop_captures(State& state, FunctionRef<bool(const Capture&)> gone);

  std::unique_ptr<State> state_;
  std::atomic<std::uint32_t> capture_count_{0};
  static constexpr pid_t kSeveral = -1;
  std::atomic<pid_t> capturer_{0};  // the thread that has captured or is about to; 0: none
  std::atomic<std::uint32_t> synchronizing_{0};
  std::atomic<int> driver_version_{0};  // 0: not asked yet
};

}  // namespace rota::driver
