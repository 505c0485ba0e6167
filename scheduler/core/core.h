// The scheduler's core: decides which clients run and which yield. A pure state machine: events and the time go in,
// decisions come out. It reads no clock, does no I/O and starts no thread, so the daemon, the tests and a planner all
// run the same code.
//
// Clients touch GPUs, want a set of them, get the whole set at once (a grant) and give it back. The queue is first
// come, first served. A waiter that cannot run yet *reserves* its whole set once all holders in its way have begun to
// drain: nobody behind it gets a GPU of that set. Until then clients behind it may use those GPUs of the set that it
// could have, if their turns end when it can start (backfill.h). So a client that wants many GPUs is not starved by
// clients that want one, and GPUs do not idle while it waits for others.
//
// A waiter cannot run on a GPU if it *conflicts* with the holders:
//   exclusive   another client holds it
//   automatic   other clients hold it, and their memory and this client's do not fit the GPU together
//   concurrent  never
// With measured turns automatic mode has more conflicts: between programs that share a GPU better in turns than at once
// (sharing.h). The queue is then ordered by how much of the GPU clients have had, and a client that comes back after a
// pause and has had less than a holder does not wait for the end of the holder's turn.
//
// An urgent client (event::Want::urgent) moves to the head of the queue, and holders in its way begin to drain at once.
// Its turn is short, and its regular place in the queue does not change.
//
// A client that measures (event::Want::alone) has exclusive use of the GPUs that it holds for a moment: others yield
// them at once (policy/alone.h).
//
// Only a conflict puts *pressure* on holders: they give back when idle, and begin to drain when their quantum ends.
// Nobody gives anything back while nobody waits. Holders of a GPU that ran together end their turn together.
//
// A client asks for memory before it takes it: it is *promised* bytes with each grant, and more when it asks and they
// fit; until they fit, others are under pressure (admission.h). So the holders of a GPU fit it together at every
// moment, except for memory that no client can ask for: a new context, memory that cannot be evicted of clients that do
// not hold the GPU, and work that is already running when a new daemon starts.
//
// A holder that has not given back `grace` after its time was up loses its grant (it is *revoked*); others then run
// concurrently.
//
// Each question has its own part: how much memory each client has on each GPU (bookkeeping.h), which clients may run
// concurrently (admission.h), how they share a GPU that they fit (sharing.h), which one measures there (alone.h), which
// is next (order.h), who may run before it (backfill.h), whose turns would be futile (incomplete.h), which must yield
// and until when (pressure.h), and whose swap memory is evicted (clearing.h). This class connects them.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "scheduler/core/bookkeeping.h"
#include "scheduler/core/event.h"
#include "scheduler/core/order.h"
#include "scheduler/core/policy/admission.h"
#include "scheduler/core/policy/alone.h"
#include "scheduler/core/policy/backfill.h"
#include "scheduler/core/policy/clearing.h"
#include "scheduler/core/policy/incomplete.h"
#include "scheduler/core/policy/pressure.h"
#include "scheduler/core/policy/sharing.h"
#include "scheduler/core/settings.h"

namespace rota::scheduler {

// Not thread-safe: one owner drives it.
class Core {
 public:
  // settings.quantum must be positive.
  explicit Core(const Settings& settings);
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Applies one event. `now` never runs backwards. Events about unknown clients or GPUs are ignored. The decisions are
  // in the order in which they were made and remain valid until the next call.
  const std::vector<Decision>& step(const Event& event, Time now);

  // When step() needs a Tick at the latest; nothing while no grace period runs and no client is asked to evict memory.
  std::optional<Time> next_deadline() const;

  const Bookkeeping& books() const { return books_; }
  // Null if there is no such client.
  const ClientState* client(ClientId client) const;
  GpuState gpu(GpuIndex gpu) const;
  SharingWhy sharing_why(GpuIndex gpu) const;
  // Empty for a client that does not touch the GPU.
  ClientUse use(ClientId client, GpuIndex gpu, Time now) const;
  // What counts for this client on the GPU, without its context: its promise, or its recent peak.
  Bytes counted_bytes(ClientId client, GpuIndex gpu) const;
  // What it may have there, and the total that it has asked for. 0 if it does not hold the GPU or does not ask.
  Bytes promised_bytes(ClientId client, GpuIndex gpu) const;
  Bytes asked_bytes(ClientId client, GpuIndex gpu) const;
  // What counts for the client there in addition to its allocations.
  Bytes context_bytes(ClientId client, GpuIndex gpu) const;
  // How much of a client's memory there has to be evicted.
  //
  // For a holder: what has to be evicted before its lease goes back so that the next client's memory fits; its part of
  // that, if several holders yield. 0 while nothing has to be evicted, and for a client that swaps: that one gives back
  // first and evicts then, while the next client's memory is restored. Unified Memory that other clients without the
  // lease still have there does not count: it is least recently used, so the driver evicts it first. Their swap memory
  // counts, less what its owners will be asked for.
  //
  // For a client that does not hold the GPU: what it is asked for (clearing.h), out of resident_bytes().
  Bytes bytes_to_clear(ClientId client, GpuIndex gpu) const;
  // What a client that swaps has there now, as last reported.
  Bytes resident_bytes(ClientId client, GpuIndex gpu) const;
  void for_each_holder(GpuIndex gpu, const std::function<void(ClientId)>& visit) const;
  // Its deficit there, although it holds the GPU and swaps, as last reported.
  Bytes lacking_bytes(ClientId client, GpuIndex gpu) const;
  // GPUs on which some client has been asked to evict memory for the holders and, as far as is known, is doing so.
  GpuMask clearing_gpus() const { return clearing_.under_way(); }
  // GPUs on which clients sample how busy they keep it, and GPUs on which calls matter because several clients touch
  // them.
  GpuMask sampling_gpus() const { return sharing_.sampling(); }
  GpuMask shared_gpus() const { return settings_.measured_turns ? books_.shared() : 0; }
  // GPUs on which programs should measure undisturbed, since others use the GPU too; and those of which they may ask
  // for exclusive use.
  GpuMask timed_gpus() const { return settings_.mode == Mode::kConcurrent ? 0 : books_.shared(); }
  GpuMask alone_gpus() const { return settings_.mode == Mode::kAutomatic ? books_.shared() : 0; }
  // GPUs on which little work may be in flight, since several programs are active and may take turns.
  GpuMask metered_gpus() const { return sharing_.metered(); }
  // GPUs on which clients that do not hold them have memory that could be evicted, whether or not they are doing so.
  GpuMask movable_gpus() const { return books_.movable(); }
  // GPUs on which they have memory that is pinned temporarily.
  GpuMask later_gpus() const { return books_.later(); }
  // For the first client that waits for a GPU: when the holders in its way begin to drain, or began. 0 for any other
  // client.
  Time next_turn(ClientId client) const;
  // The first client that waits there; nothing if none does.
  std::optional<ClientId> first_waiting(GpuIndex gpu) const;
  // Whether this client shares memory or events with other processes, and so does one of those that wait for its GPUs
  // and count (`may`): they may share them with each other.
  bool sharer_waits(ClientId holder, const std::function<bool(ClientId)>& may) const;
  GpuMask waited_gpus() const { return books_.waited(); }
  // For a later rotad: what a client that touches the GPU has had there, and its place in the queue, which grows from
  // client to client and is 0 for one that does not wait; and what domains have had that have ever wanted the GPU.
  struct Carried {
    event::Returned returned;
    std::uint64_t place = 0;
  };
  std::optional<Carried> carried(ClientId client, GpuIndex gpu, Time now) const;
  std::vector<event::HadBefore> carried(GpuIndex gpu, Time now) const;
  // And what was measured of sets of clients, numbered from 0.
  std::vector<event::MeasuredBefore> measured(Time now) const { return sharing_.measured(now); }
  // When its grant will be revoked; 0 while it need not give back.
  Time give_back_by(ClientId client) const;
  std::uint64_t grants() const { return grants_; }
  const Settings& settings() const { return settings_; }

 private:
  void on(const event::Join&, Time);
  void on(const event::Session&, Time);
  void on(const event::AddGpu&, Time);
  void on(const event::Want&, Time);
  void on(const event::Withdraw&, Time);
  void on(const event::GiveBack&, Time);
  void on(const event::Usage&, Time);
  void on(const event::Ask&, Time);
  void on(const event::Leave&, Time);
  void on(const event::Tick&, Time);
  void on(const event::Configure&, Time);
  void on(const event::Measured&, Time);
  void on(const event::Unmeasured&, Time);
  void on(const event::Activity&, Time now);
  void on(const event::HadBefore&, Time now);
  void on(const event::Returned&, Time now);
  void on(const event::MeasuredBefore&, Time now);

  void set_wanted(Client& client, GpuMask gpus, Time now);
  void move_back(const Share& had);
  void calm(GpuIndex index);
  void hurry(Client& client, Time now);
  void grant(Client& client, GpuMask gpus, Time let_in_until, Time now);
  void end_grant(Client& client, Change change, Time now);
  void told_alone(const Client& client, Time now);
  void decide(Time now);
  const Share* share(ClientId client, GpuIndex gpu) const;

  Settings settings_;  // the parts refer to these
  Bookkeeping books_;
  Sharing sharing_;
  Alone alone_;
  Admission admission_;
  Order order_;
  Pressure pressure_;
  Clearing clearing_;
  Incomplete incomplete_;
  Backfill backfill_;
  GpuMask pressed_ = 0;        // GPUs at which a waiter conflicts with the holders
  GpuMask alone_pressed_ = 0;  // GPUs that others left for a client that measures
  std::vector<Decision> decisions_;
  std::uint64_t grants_ = 0;
};

}  // namespace rota::scheduler
