// Memory that this process has exported by legacy IPC handles of rota's (exported_handle.h), and the answers to
// processes that open it: descriptors of its extents. It is pinned from the first open to the last close, so that it
// does not move while it is open. Memory that is evicted when it is opened is restored first, in a turn that the opener
// waits for. An opener has the memory from the driver, and keeps it whatever this process does.
//
// An opener asks for one extent after another over a socket (protocol::Kind::kIntroduced), and each question is
// answered separately, by a thread that calls nothing of the program's and waits for none of its work; a second thread,
// while there is need, waits for turns. The opener keeps the socket as long as it has anything open, and tells over it
// what it closes: so this process knows what is open, even after the opener was killed.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "runtime/core/function_ref.h"
#include "runtime/memory/swap/contents.h"
#include "runtime/memory/swap/exported_handle.h"
#include "runtime/memory/swap/regions.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/protocol/protocol.h"

namespace rota::memory {

// What is said over such a socket. The two processes may run different releases of rota: one that reads another magic
// closes the socket.
namespace exports {

inline constexpr std::uint64_t kMagic = 0x31637069'61746f72;  // "rotaipc1"
// Instead of an extent's index: the opener has closed the memory, or what it has begun to open. There is no answer.
inline constexpr std::uint64_t kCloses = UINT64_MAX;

struct Question {
  std::uint64_t magic = kMagic;
  std::uint64_t number = 0;  // comes back with the answer
  std::uint64_t serial = 0;
  std::uint64_t key[2] = {};
  std::uint64_t index = 0;  // of the extent
};

// Sent with the extent's descriptor. Number 0, sent every second: the memory is still being restored.
struct Answer {
  std::uint64_t magic = kMagic;
  std::uint64_t number = 0;
  std::uint64_t known = 0;         // 0: there is no such allocation any more, or it cannot be opened
  std::uint64_t extents = 0;       // that it lies in, adjacent
  std::uint64_t extent_bytes = 0;  // of this one
  std::uint64_t offset = 0;        // of the allocation in the first one
  std::uint64_t bytes = 0;         // of the allocation
};

}  // namespace exports

class Exports {
 public:
  Exports(Regions& regions, Contents& contents) : regions_(regions), contents_(&contents) {}
  // Before there are any.
  void set_contents(Contents& contents) { contents_ = &contents; }
  // How memory is held in place: runs `work` while the memory at the address is in place. False: it is not in place or,
  // if the call `waits`, never will be. Without a Hold all memory is always in place.
  using Hold = bool (*)(std::uint64_t address, bool waits, FunctionRef<void()> work);
  void set_hold(Hold hold) { hold_ = hold; }

  // --- any thread, with no lock held

  // The handle of an allocation. `id`: no other has or had the same number. Nothing: the kernel gives no random bytes.
  std::optional<api::CUipcMemHandle> handle_of(std::uint64_t address, std::uint64_t bytes, std::uint64_t id);
  // The process's number; all zeros before the first export.
  protocol::ProcessNumber number();
  bool is_own(const ExportedHandle& handle);
  // The program has freed the allocation at this address. Processes that have it open keep it, and while any has, more
  // may open it. Returns its serial if any has it open: Contents::closed_by_others() is called once none has.
  std::optional<std::uint64_t> ends(std::uint64_t address);

  // --- the monitor

  // An opener is at the other end of the socket.
  void serve(Descriptor&& socket);
  // The process exits: gives no more answers. Waits for an answer that is being given, at most a second.
  void stop();

 private:
  struct Exported {
    ExportedHandle handle;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t id = 0;
  };
  // What is open of an allocation.
  struct Open {
    Exported what;
    std::uint64_t range = 0;  // the number of the range in which it lies
    std::size_t openers = 0;
    bool ended = false;
  };
  struct Opener {
    Descriptor socket;
    std::set<std::uint64_t> open;            // serials
    std::optional<exports::Question> asked;  // not answered yet
  };
  enum class Opens : std::uint8_t { kNo, kYes, kOut };
  struct Told {
    exports::Answer answer;
    Descriptor made;          // made for this answer,
    SharedDescriptor shared;  // or that of memory which another process had handed over
    int descriptor() const { return shared ? shared->get() : made.get(); }
  };

  static void* run(void* self);
  static void* run_restorer(void* self);
  void answer_all();
  void restore_all();
  bool hear(Opener& opener);
  bool answer(Opener& opener);
  void close_unopened(const std::vector<Opener>& openers);
  Told told(const exports::Question& question);
  Opens open(const exports::Question& question, Opener& opener);
  void begin(const Exported& what);
  void restore(std::uint64_t serial);
  void close(std::uint64_t serial, Opener& opener);
  void end(std::uint64_t serial, const Open& open);
  bool hold(std::uint64_t address, bool waits, FunctionRef<void()> work) const;
  const Exported* known(const exports::Question& question) const;

  Regions& regions_;
  Contents* contents_;
  Hold hold_ = nullptr;
  mutable std::mutex mutex_;  // the fields below
  protocol::ProcessNumber number_{};
  std::map<std::uint64_t, Exported> exported_;        // by address
  std::map<std::uint64_t, std::uint64_t> by_serial_;  // the addresses
  std::map<std::uint64_t, Open> open_;                // by serial
  std::set<std::uint64_t> to_restore_;                // serials
  std::set<std::uint64_t> lost_;                      // those that cannot be restored
  bool restores_ = false;                             // there is a thread that restores
  std::uint64_t last_serial_ = 0;
  std::vector<Descriptor> arrived_;  // sockets
  Descriptor bell_;                  // an eventfd; empty: no thread has been started
  std::mutex answering_;             // held while the driver is called
  std::atomic<bool> stopped_{false};
};

}  // namespace rota::memory
