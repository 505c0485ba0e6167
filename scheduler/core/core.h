// The scheduler's core: who runs, who yields. A pure state machine: events and the time go in, decisions come out. It
// reads no clock, does no I/O and starts no thread, so the daemon, the tests and a planner drive the very same code.
//
// Clients touch GPUs, want a set of them, get the whole set at once (a grant) and give it back. The queue is first come
// first served, and a waiter that cannot run yet *reserves* its whole set: nobody behind it gets a GPU of that set. So
// a client that wants many GPUs is not starved by those that want one.
//
// A waiter cannot run on a GPU if it *conflicts* with those that hold it:
//   exclusive   somebody else holds it
//   automatic   somebody else holds it and their memory and this client's do not fit the GPU together
//   concurrent  never
// Only a conflict puts *pressure* on holders: they give back when idle, and begin to drain when their quantum ends.
// Nobody gives anything back while nobody waits. Holders of a GPU that ran together end their turn together.
//
// A holder that has not given back `grace` after its time was up loses its grant (it is *revoked*); others run beside
// it.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "scheduler/core/settings.h"

namespace rota::scheduler {

using ClientId = std::uint32_t;
using GpuIndex = std::uint32_t;  // below protocol::kMaxGpus
using GpuMask = std::uint64_t;
using Bytes = std::uint64_t;

namespace event {
// A new client. The number must not be in use.
struct Join {
  ClientId client;
};
// The client touched a GPU. The first client to name a GPU says how large it is, until nobody touches it any more.
struct AddGpu {
  ClientId client;
  GpuIndex gpu;
  Bytes total;
  Bytes context;  // 0: unknown, see assumed_context()
};
// Queue the client for a set. A later want replaces the set and keeps the place in the queue; the empty set withdraws.
struct Want {
  ClientId client;
  GpuMask gpus;
  // The client's work already runs there, by a grant of a daemon that died: granted at once, whoever waits.
  bool running = false;
};
// The grant's work has drained. Ignored unless `grant` is the one in force.
struct GiveBack {
  ClientId client;
  std::uint32_t grant;
};
// What the client's live allocations on a GPU sum to; `fixed` of it cannot leave the GPU.
struct Usage {
  ClientId client;
  GpuIndex gpu;
  Bytes used;
  Bytes fixed = 0;
};
// The client's process is dead: everything that it held or wanted is gone.
struct Leave {
  ClientId client;
};
// Time has passed: due at next_deadline().
struct Tick {};
}  // namespace event

using Event =
    std::variant<event::Join, event::AddGpu, event::Want, event::GiveBack, event::Usage, event::Leave, event::Tick>;

enum class Change {
  kGranted,   // the client holds a new grant (replacing the one it may have held)
  kEnded,     // the client gave back
  kPressure,  // waiters or drain_at changed
  kRevoked,   // the client did not give back in time
};

// One client whose lease changed in this step; read the outcome with client() (null after a Leave).
struct Decision {
  Change change;
  ClientId client;
  std::uint32_t grant;  // the grant concerned
};

// What a client's lease page shows, and what `rota status` needs.
struct ClientState {
  GpuMask touched = 0;
  GpuMask held = 0;
  GpuMask wanted = 0;       // waiting for these; 0: not waiting
  std::uint32_t grant = 0;  // in force; 0: none
  Time held_since{};
  Time wanted_since{};
  std::uint32_t waiters = 0;  // not 0 while somebody needs what this client holds
  Time drain_at{};            // when it has to begin to drain; 0 while nobody waits
};

struct GpuState {
  Bytes total = 0;
  Bytes used = 0;  // by all clients that touch it
  std::uint32_t clients = 0;
  std::uint32_t holders = 0;
  std::uint32_t waiters = 0;
  bool crowded = false;  // automatic mode: the memory of those who wanted it did not fit
};

// What a context costs where the client does not know: some 500 MiB on real GPUs, in proportion on small ones.
constexpr Bytes assumed_context(Bytes total) {
  constexpr Bytes kMeasured = Bytes{500} << 20;
  return kMeasured < total / 16 ? kMeasured : total / 16;
}

// Not thread-safe: one owner drives it.
class Core {
 public:
  // settings.quantum must be positive.
  explicit Core(const Settings& settings);
  ~Core();

  // Takes one event at a time that never runs backwards. Events about clients or GPUs that are not known are ignored.
  // The decisions are in the order they were made and live until the next call.
  const std::vector<Decision>& step(const Event& event, Time now);

  // When step() wants a Tick at the latest; nothing while no grace period runs.
  std::optional<Time> next_deadline() const;

  // Null if there is no such client.
  const ClientState* client(ClientId client) const;
  GpuState gpu(GpuIndex gpu) const;
  // What this client counts with on the GPU: the most it used lately, without its context.
  Bytes counted_bytes(ClientId client, GpuIndex gpu) const;
  std::uint64_t grants() const { return grants_; }

 private:
  struct Share;
  struct Client;
  struct Gpu;

  void on(const event::Join&, Time);
  void on(const event::AddGpu&, Time);
  void on(const event::Want&, Time);
  void on(const event::GiveBack&, Time);
  void on(const event::Usage&, Time);
  void on(const event::Leave&, Time);
  void on(const event::Tick&, Time);

  Client* find(ClientId client) const;
  void set_held(Client& client, GpuMask gpus, Time now);
  void set_wanted(Client& client, GpuMask gpus, Time now);
  void grant(Client& client, GpuMask gpus, Time now);
  void end_grant(Client& client, Change change);
  bool conflicts(const Client& client, GpuIndex gpu);
  void serve_queue(Time now);
  void find_excess(GpuIndex gpu);
  void refresh_pressure(Client& client, Time now);
  void settle(Time now);

  const Settings settings_;
  std::unordered_map<ClientId, std::unique_ptr<Client>> clients_;
  std::vector<Gpu> gpus_;
  std::list<Client*> queue_;  // those who wait, in order of arrival
  GpuMask waited_ = 0;        // GPUs that somebody in the queue wants
  GpuMask pressed_ = 0;       // GPUs at which a waiter conflicts with the holders
  GpuMask excess_ = 0;  // GPUs with holders that must yield although nobody waits: together they have grown too large
  GpuMask dirty_ = 0;   // GPUs whose holders, waiters or memory changed in this step
  std::set<std::pair<Time, ClientId>> deadlines_;  // when a holder under pressure is revoked
  std::vector<Decision> decisions_;
  std::uint64_t grants_ = 0;
};

}  // namespace rota::scheduler
