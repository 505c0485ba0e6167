// What the server stores for each client, and for each process that asked it to stay; private to the server's own
// files.
#pragma once

#include <asio/posix/stream_descriptor.hpp>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/base/paced_lines.h"
#include "scheduler/metrics/book.h"
#include "scheduler/metrics/turns.h"
#include "scheduler/server/moves.h"
#include "scheduler/server/server.h"

namespace rota::server {

// Lines about clients that are refused; a client in a loop must not fill a disk.
inline constexpr std::uint32_t kMaxRefusalsLogged = 1000;

// One client's memory on one GPU, as it was measured.
struct Measurement {
  scheduler::Bytes process = 0;           // that the driver counts for the client's process
  scheduler::Bytes context = 0;           // of that, what the client has not allocated: contexts, modules, heaps
  scheduler::Bytes fixed_when_asked = 0;  // of what it has allocated, the part that the driver counts as the process's
  unsigned passed_over = 0;               // readings in a row during which it allocated or freed
  std::optional<scheduler::Bytes> lower;  // a smaller context that the last reading showed for the first time
  unsigned absent = 0;                    // readings in a row in which the driver no longer named its process
  bool known = false;                     // has been measured
  bool current = false;                   // by the latest reading, too
};

// What is counted of a client on one GPU.
struct Tracked {
  metrics::Book::Place place;
  metrics::Turns turns;
  protocol::Moves moved{};  // there, as they were last counted
  Burst burst{};            // of them
};

struct Server::Client : Program {
  std::uint32_t connection = 0;  // 0: it closed although the process is alive
  scheduler::Time orphaned_at{};
  uid_t uid = 0;
  bool in_own_container = false;            // in rotad's container: its user is the one it names
  bool says_it_returns = false;             // Hello::returns
  bool numbered = false;                    // counts among its payer's clients in Server::domains_
  bool hands_over = false;                  // takes over memory of others in its domain, and hands it over to them
  std::vector<protocol::Session> sessions;  // that it has named, the outermost first
  std::string session;                      // the outermost of them; empty: none
  std::string innermost_session;            // the last; the same
  std::uint32_t shares = 0;                 // UsagePage::shares, as last read
  std::map<std::uint32_t, scheduler::Bytes> pinned;  // by GPU index: GpuUsage::pinned_bytes, as limits know it
  scheduler::Time connected_at{};
  // By GPU index: as told while a client waits there, and since this one was answered last.
  std::map<std::uint32_t, scheduler::Quota::Stays> stays;
  // A Tighten has been sent and not answered; another one is due after the answer.
  bool tightening = false;
  bool tighten_again = false;
  std::map<std::uint32_t, Budget::Share> asks;    // by GPU index: requests that have not been answered
  std::map<std::uint32_t, Measurement> measured;  // by GPU index
  // By GPU index: what waited there last for the programs of another rotad (movers_may_come()).
  std::map<std::uint32_t, protocol::AwaitRoom> for_movers;
  // By GPU index: why a request was refused last, where that does not count since the client waits.
  std::map<std::uint32_t, std::string> uncounted;
  std::set<std::uint32_t> took_over;    // GPUs where it has received memory from others
  protocol::ProcessNumber announced{};  // of the process, if it has exported memory; zeros: it has not
  // Of whom it has memory open, by their numbers; 0: nobody who may be asked for that has announced the number.
  std::map<protocol::ProcessNumber, scheduler::ClientId> opened;
  bool was_passed_over = false;  // and the log says so
  PacedLines revocation_lines;
  PacedLines refusal_lines;
  scheduler::Quota::HostUse host;    // as last reported
  std::uint64_t in_host_memory = 0;  // its process had at least so much, when that was last checked,
  scheduler::Time resident_at{};     // which was then
  std::uint64_t spare_said = 0;      // reclaimable bytes, when its page was last read
  Page<protocol::LeasePage> lease;
  Page<protocol::UsagePage> usage;
  Burst burst;                                            // of its moves on all GPUs
  std::optional<protocol::SeriesKey> series;              // the series in which it counts, once it uses a GPU
  std::map<std::uint32_t, Tracked> tracked;               // by GPU index
  protocol::Moves moved{};                                // as they were last counted,
  scheduler::Time moved_at{};                             // which was then
  std::optional<asio::posix::stream_descriptor> process;  // its pidfd
  bool ended = false;                                     // its process has
};

struct Server::Stayer {
  pid_t pid = 0;
  Budget::Share share;
  std::optional<asio::posix::stream_descriptor> process;
};

}  // namespace rota::server
