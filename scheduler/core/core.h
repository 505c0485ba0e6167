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
// With measured turns there are more conflicts in automatic mode: of programs that share a GPU better in turns than at
// once (sharing.h). The queue is then in the order of what clients have had, and who comes back after a pause and has
// had less than a holder does not wait for the end of its turn.
//
// Who is in a hurry (event::Want::urgent) goes to the head of the queue, and holders that are in its way begin to drain
// at once. Its turn is short, and its place in the queue stays what it was.
//
// Who measures (event::Want::alone) has what it holds to itself for a moment: others leave it at once (alone.h).
//
// Only a conflict puts *pressure* on holders: they give back when idle, and begin to drain when their quantum ends.
// Nobody gives anything back while nobody waits. Holders of a GPU that ran together end their turn together.
//
// A client that asks for room before it takes it (event::Join) is *promised* bytes with each grant, and more when it
// asks and they fit; until then others are under pressure (admission.h). So those who hold a GPU together fit it at
// every moment, but for what nobody could ask for: a context that appears, memory of those who do not hold the GPU that
// cannot leave it, clients that do not ask, and work that a new daemon finds running.
//
// A holder that has not given back `grace` after its time was up loses its grant (it is *revoked*); others run beside
// it.
//
// Each question has a part of its own: whose bytes lie where (bookkeeping.h), who may run beside whom (admission.h),
// and how they share a GPU that they fit (sharing.h), who measures there (alone.h), who is next (order.h), who has to
// yield and until when (pressure.h), whose swap memory leaves a GPU (clearing.h). This class is what connects them.
#pragma once

#include <optional>
#include <vector>

#include "scheduler/core/admission.h"
#include "scheduler/core/alone.h"
#include "scheduler/core/bookkeeping.h"
#include "scheduler/core/clearing.h"
#include "scheduler/core/event.h"
#include "scheduler/core/order.h"
#include "scheduler/core/pressure.h"
#include "scheduler/core/settings.h"
#include "scheduler/core/sharing.h"

namespace rota::scheduler {

// Not thread-safe: one owner drives it.
class Core {
 public:
  // settings.quantum must be positive.
  explicit Core(const Settings& settings);
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Takes one event at a time that never runs backwards. Events about clients or GPUs that are not known are ignored.
  // The decisions are in the order they were made and live until the next call.
  const std::vector<Decision>& step(const Event& event, Time now);

  // When step() wants a Tick at the latest; nothing while no grace period runs and nobody is asked to clear.
  std::optional<Time> next_deadline() const;

  // Null if there is no such client.
  const ClientState* client(ClientId client) const;
  GpuState gpu(GpuIndex gpu) const;
  SharingWhy sharing_why(GpuIndex gpu) const;
  // Nothing is known of a client that does not touch the GPU.
  ClientUse use(ClientId client, GpuIndex gpu, Time now) const;
  // What this client counts with on the GPU, without its context: its promise, or the most it used lately.
  Bytes counted_bytes(ClientId client, GpuIndex gpu) const;
  // What it may have there, and what it has asked for in all. 0 where it does not hold the GPU or does not ask.
  Bytes promised_bytes(ClientId client, GpuIndex gpu) const;
  Bytes asked_bytes(ClientId client, GpuIndex gpu) const;
  // What the client counts with there beside its allocations.
  Bytes context_bytes(ClientId client, GpuIndex gpu) const;
  // How much of a client's memory there has to leave the GPU.
  // A holder's, with its lease, for the memory of who comes next to fit: its part, where several holders go. 0 while it
  // need not go, and for one that swaps: it gives back first and clears then, while the next one's memory comes. What
  // others who do not hold the GPU still have there is not counted where it is Unified Memory: the driver pushes that
  // out first, since it was used longest ago. What swaps counts, less what its owners will be asked for.
  // Of one that does not hold it: what it is asked for (clearing.h), of resident_bytes().
  Bytes bytes_to_clear(ClientId client, GpuIndex gpu) const;
  // What a client that swaps has there now, as far as it has said.
  Bytes resident_bytes(ClientId client, GpuIndex gpu) const;
  // What it lacks there of its memory although it holds the GPU and swaps, as far as it has said.
  Bytes lacking_bytes(ClientId client, GpuIndex gpu) const;
  // Where some client is to clear memory for those who hold the GPU, and is at it as far as is known.
  GpuMask clearing_gpus() const { return clearing_.under_way(); }
  // Where samples are taken of who keeps the GPU busy, and where it matters who calls: several clients touch it.
  GpuMask sampling_gpus() const { return sharing_.sampling(); }
  GpuMask shared_gpus() const { return settings_.measured_turns ? books_.shared() : 0; }
  // Where programs should measure undisturbed, since others use the GPU too; and where they may ask to have it alone.
  GpuMask timed_gpus() const { return settings_.mode == Mode::kConcurrent ? 0 : books_.shared(); }
  GpuMask alone_gpus() const { return settings_.mode == Mode::kAutomatic ? books_.shared() : 0; }
  // Where little may be in flight, since several programs are active and may take turns.
  GpuMask metered_gpus() const { return sharing_.metered(); }
  // Where clients that do not hold the GPU have memory that could be cleared, whether or not they are at it.
  GpuMask movable_gpus() const { return books_.movable(); }
  // Of one that is the first to wait for a GPU: when those who are in its way begin to drain, or began; 0 of any other.
  Time next_turn(ClientId client) const;
  // Who waits first there; nothing: nobody waits.
  std::optional<ClientId> first_waiting(GpuIndex gpu) const;
  GpuMask waited_gpus() const { return books_.waited(); }
  // When its grant is taken away; 0 while it need not go.
  Time give_back_by(ClientId client) const;
  std::uint64_t grants() const { return grants_; }
  const Settings& settings() const { return settings_; }

 private:
  void on(const event::Join&, Time);
  void on(const event::Session&, Time);
  void on(const event::AddGpu&, Time);
  void on(const event::Want&, Time);
  void on(const event::GiveBack&, Time);
  void on(const event::Usage&, Time);
  void on(const event::Ask&, Time);
  void on(const event::Leave&, Time);
  void on(const event::Tick&, Time);
  void on(const event::Configure&, Time);
  void on(const event::Measured&, Time);
  void on(const event::Unmeasured&, Time);
  void on(const event::Activity&, Time now);

  void set_wanted(Client& client, GpuMask gpus, Time now);
  void move_back(const Share& had);
  void hurry(Client& client, Time now);
  void grant(Client& client, GpuMask gpus, Time now);
  void end_grant(Client& client, Change change, Time now);
  void told_alone(const Client& client, Time now);
  void settle(Time now);
  const Share* share(ClientId client, GpuIndex gpu) const;

  Settings settings_;  // the parts look at these
  Bookkeeping books_;
  Sharing sharing_;
  Alone alone_;
  Admission admission_;
  Order order_;
  Pressure pressure_;
  Clearing clearing_;
  GpuMask pressed_ = 0;        // GPUs at which a waiter conflicts with the holders
  GpuMask alone_pressed_ = 0;  // GPUs that were left to one who measures
  std::vector<Decision> decisions_;
  std::uint64_t grants_ = 0;
};

}  // namespace rota::scheduler
