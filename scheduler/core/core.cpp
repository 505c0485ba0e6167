// How the core decides. Every step changes the state by one event and then settles: find GPUs whose holders have grown
// too large together, serve the queue from its head, and tell the holders that are in somebody's way.
//
// The sums per GPU are kept up to date with every change rather than added up in each step: with a thousand clients a
// step has to stay well below a microsecond or two.
#include "scheduler/core/core.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace rota::scheduler {
namespace {

constexpr GpuMask bit(GpuIndex gpu) {
  return GpuMask{1} << gpu;
}

template <typename Visit>
void for_each_gpu(GpuMask mask, Visit visit) {
  for (; mask != 0; mask &= mask - 1) visit(static_cast<GpuIndex>(std::countr_zero(mask)));
}

}  // namespace

// One client's memory on one GPU.
struct Core::Share {
  GpuIndex gpu;
  Bytes context;
  Bytes used = 0;
  Bytes fixed = 0;
  Bytes peak = 0;  // what it counts with: the most it used within the memory window
  Time peak_at{};
};

struct Core::Client {
  ClientId id;
  ClientState state;
  std::uint32_t last_grant = 0;
  std::vector<Share> shares;
  GpuMask yields = 0;  // held GPUs on which the holders have grown too large together, and this one was granted last
  Time pressed_since{};
  Time deadline{};            // its entry in deadlines_; 0: none
  std::list<Client*> parked;  // this client's queue node while it does not wait: queueing allocates nothing
  std::list<Client*>::iterator node;

  Share* share(GpuIndex gpu) {
    const auto found = std::find_if(shares.begin(), shares.end(), [gpu](const Share& s) { return s.gpu == gpu; });
    return found == shares.end() ? nullptr : &*found;
  }
  const Share* share(GpuIndex gpu) const { return const_cast<Client*>(this)->share(gpu); }
};

struct Core::Gpu {
  Bytes total = 0;
  Bytes contexts = 0;    // of all clients that touch it: a context stays whether its client runs or not
  Bytes used = 0;        // of all clients
  Bytes fixed = 0;       // of all clients
  Bytes held = 0;        // counted bytes of the holders
  Bytes held_fixed = 0;  // fixed bytes of the holders
  Bytes interested = 0;  // counted bytes of holders and waiters
  std::uint32_t clients = 0;
  std::uint32_t waiters = 0;
  bool crowded = false;
  Time latest_grant{};
  std::vector<Client*> holders;

  // Room for the memory of those who run, if those whose fixed bytes sum to `running_fixed` do; a GPU on which it did
  // not fit keeps an eighth free before it goes back to running everybody: otherwise it would flap at the edge.
  Bytes room(Bytes running_fixed) const {
    const Bytes taken = contexts + (fixed - running_fixed);
    const Bytes free = total > taken ? total - taken : 0;
    return crowded ? free - free / 8 : free;
  }
};

Core::Core(const Settings& settings) : settings_(settings), gpus_(protocol::kMaxGpus) {
  assert(settings.quantum.count() > 0);
}

Core::~Core() = default;

const std::vector<Decision>& Core::step(const Event& event, Time now) {
  decisions_.clear();
  dirty_ = 0;
  std::visit([this, now](const auto& which) { on(which, now); }, event);
  settle(now);
  return decisions_;
}

std::optional<Time> Core::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

const ClientState* Core::client(ClientId id) const {
  const Client* found = find(id);
  return found == nullptr ? nullptr : &found->state;
}

GpuState Core::gpu(GpuIndex index) const {
  const Gpu& gpu = gpus_.at(index);
  return {.total = gpu.total,
          .used = gpu.used,
          .clients = gpu.clients,
          .holders = static_cast<std::uint32_t>(gpu.holders.size()),
          .waiters = gpu.waiters,
          .crowded = gpu.crowded};
}

Bytes Core::counted_bytes(ClientId id, GpuIndex gpu) const {
  const Client* client = find(id);
  const Share* share = client == nullptr ? nullptr : client->share(gpu);
  return share == nullptr ? 0 : share->peak;
}

Core::Client* Core::find(ClientId id) const {
  const auto found = clients_.find(id);
  return found == clients_.end() ? nullptr : found->second.get();
}

// ---- events

void Core::on(const event::Join& join, Time) {
  auto client = std::make_unique<Client>();
  client->id = join.client;
  client->parked.push_back(client.get());
  client->node = client->parked.begin();
  clients_.emplace(join.client, std::move(client));
}

void Core::on(const event::AddGpu& add, Time) {
  Client* client = find(add.client);
  if (client == nullptr || add.gpu >= gpus_.size()) return;
  Gpu& gpu = gpus_[add.gpu];
  if (gpu.clients == 0) gpu.total = add.total;
  const Bytes context = std::min(add.context != 0 ? add.context : assumed_context(gpu.total), gpu.total);
  Share* share = client->share(add.gpu);
  if (share == nullptr) {
    client->shares.push_back({.gpu = add.gpu, .context = 0});
    share = &client->shares.back();
    client->state.touched |= bit(add.gpu);
    ++gpu.clients;
  }
  gpu.contexts += context - share->context;
  share->context = context;
  dirty_ |= bit(add.gpu);
}

void Core::on(const event::Want& want, Time now) {
  Client* client = find(want.client);
  if (client == nullptr) return;
  const GpuMask gpus = want.gpus & client->state.touched;
  if ((gpus & ~client->state.held) == 0) {
    // Withdrawn, or already held.
    set_wanted(*client, 0, now);
  } else if (want.running) {
    grant(*client, gpus, now);
  } else {
    set_wanted(*client, gpus, now);
  }
}

void Core::on(const event::GiveBack& back, Time) {
  Client* client = find(back.client);
  if (client == nullptr || client->state.grant == 0 || client->state.grant != back.grant) return;
  end_grant(*client, Change::kEnded);
}

void Core::on(const event::Usage& usage, Time now) {
  Client* client = find(usage.client);
  Share* share = client == nullptr ? nullptr : client->share(usage.gpu);
  if (share == nullptr) return;
  Gpu& gpu = gpus_[usage.gpu];
  const Bytes used = std::min(usage.used, gpu.total);
  const Bytes fixed = std::min(usage.fixed, used);
  Bytes peak = share->peak;
  if (used >= peak || now - share->peak_at > settings_.memory_window) peak = used;
  if (used >= peak) share->peak_at = now;
  if (used == share->used && fixed == share->fixed && peak == share->peak) return;
  const bool holds = (client->state.held & bit(usage.gpu)) != 0;
  const bool wants = (client->state.wanted & bit(usage.gpu)) != 0;
  gpu.used += used - share->used;
  gpu.fixed += fixed - share->fixed;
  if (holds) {
    gpu.held += peak - share->peak;
    gpu.held_fixed += fixed - share->fixed;
  }
  if (holds || wants) gpu.interested += peak - share->peak;
  share->used = used;
  share->fixed = fixed;
  share->peak = peak;
  dirty_ |= bit(usage.gpu);
}

void Core::on(const event::Leave& leave, Time now) {
  Client* client = find(leave.client);
  if (client == nullptr) return;
  set_wanted(*client, 0, now);
  if (client->state.grant != 0) end_grant(*client, Change::kEnded);
  for (const Share& share : client->shares) {
    Gpu& gpu = gpus_[share.gpu];
    gpu.contexts -= share.context;
    gpu.used -= share.used;
    gpu.fixed -= share.fixed;
    if (--gpu.clients == 0) gpu.crowded = false;
    dirty_ |= bit(share.gpu);
  }
  clients_.erase(leave.client);
}

void Core::on(const event::Tick&, Time now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Client* late = find(deadlines_.begin()->second);
    end_grant(*late, Change::kRevoked);  // takes its entry out of deadlines_
  }
}

// ---- changes of the state, with the sums that follow from it

void Core::set_held(Client& client, GpuMask gpus, Time now) {
  const GpuMask changed = client.state.held ^ gpus;
  for_each_gpu(changed, [&](GpuIndex index) {
    Gpu& gpu = gpus_[index];
    const Share& share = *client.share(index);
    if ((gpus & bit(index)) != 0) {
      gpu.holders.push_back(&client);
      gpu.held += share.peak;
      gpu.held_fixed += share.fixed;
      if ((client.state.wanted & bit(index)) == 0) gpu.interested += share.peak;
    } else {
      gpu.holders.erase(std::find(gpu.holders.begin(), gpu.holders.end(), &client));
      gpu.held -= share.peak;
      gpu.held_fixed -= share.fixed;
      if ((client.state.wanted & bit(index)) == 0) gpu.interested -= share.peak;
    }
  });
  for_each_gpu(gpus, [&](GpuIndex index) { gpus_[index].latest_grant = now; });
  client.state.held = gpus;
  dirty_ |= changed;
}

void Core::set_wanted(Client& client, GpuMask gpus, Time now) {
  const GpuMask changed = client.state.wanted ^ gpus;
  if (changed == 0) return;
  for_each_gpu(changed, [&](GpuIndex index) {
    Gpu& gpu = gpus_[index];
    const bool wants = (gpus & bit(index)) != 0;
    if ((client.state.held & bit(index)) == 0) {
      const Bytes peak = client.share(index)->peak;
      gpu.interested += wants ? peak : -peak;
    }
    gpu.waiters += wants ? 1 : -1;
    if (gpu.waiters == 0) {
      waited_ &= ~bit(index);
    } else {
      waited_ |= bit(index);
    }
  });
  if (client.state.wanted == 0) {
    client.state.wanted_since = now;
    queue_.splice(queue_.end(), client.parked, client.node);
  } else if (gpus == 0) {
    client.parked.splice(client.parked.end(), queue_, client.node);
  }
  client.state.wanted = gpus;
  dirty_ |= changed;
}

void Core::grant(Client& client, GpuMask gpus, Time now) {
  set_wanted(client, 0, now);
  set_held(client, client.state.held | gpus, now);
  if (++client.last_grant == 0) ++client.last_grant;
  client.state.grant = client.last_grant;
  client.state.held_since = now;
  ++grants_;
  decisions_.push_back({Change::kGranted, client.id, client.state.grant});
}

void Core::end_grant(Client& client, Change change) {
  decisions_.push_back({change, client.id, client.state.grant});
  set_held(client, 0, {});
  client.state.grant = 0;
  client.state.waiters = 0;
  client.state.drain_at = {};
  client.yields = 0;
  if (client.deadline.count() != 0) deadlines_.erase({client.deadline, client.id});
  client.deadline = {};
}

// ---- decisions

bool Core::conflicts(const Client& client, GpuIndex index) {
  Gpu& gpu = gpus_[index];
  const bool holds = (client.state.held & bit(index)) != 0;
  if (gpu.holders.size() <= (holds ? 1U : 0U)) return false;
  switch (settings_.mode) {
    case Mode::kConcurrent:
      return false;
    case Mode::kExclusive:
      return true;
    case Mode::kAutomatic:
      break;
  }
  const Share& share = *client.share(index);
  const Bytes together = gpu.held + (holds ? 0 : share.peak);
  if (together <= gpu.room(gpu.held_fixed + (holds ? 0 : share.fixed))) return false;
  gpu.crowded = true;
  return true;
}

// From the head of the queue: grant who can run; who cannot reserves its whole set against those behind.
void Core::serve_queue(Time now) {
  GpuMask reserved = 0;
  pressed_ = 0;
  for (auto next = queue_.begin(); next != queue_.end() && (waited_ & ~reserved) != 0;) {
    Client& client = **next++;  // granting takes the client out of the queue
    GpuMask blocked = client.state.wanted & reserved;
    for_each_gpu(client.state.wanted, [&](GpuIndex index) {
      if (!conflicts(client, index)) return;
      blocked |= bit(index);
      pressed_ |= bit(index);
    });
    if (blocked == 0) {
      grant(client, client.state.wanted, now);
    } else {
      reserved |= client.state.wanted;
    }
  }
}

// Holders whose memory has grown beyond the GPU, or who claimed it from a daemon that died: those granted last yield,
// until the rest fits. One holder always may stay, however large.
void Core::find_excess(GpuIndex index) {
  Gpu& gpu = gpus_[index];
  if ((excess_ & bit(index)) != 0) {
    for (Client* holder : gpu.holders) holder->yields &= ~bit(index);
    excess_ &= ~bit(index);
  }
  if (gpu.crowded && gpu.interested <= gpu.room(gpu.fixed)) gpu.crowded = false;
  if (settings_.mode == Mode::kConcurrent || gpu.holders.size() < 2) return;
  // Without the margin of a crowded GPU: the margin is for letting somebody in, not for sending somebody away.
  const Bytes others = gpu.contexts + gpu.fixed - gpu.held_fixed;
  Bytes room = gpu.total > others ? gpu.total - others : 0;
  Bytes staying = gpu.held;
  // The holders are in the order of their grants.
  for (std::size_t i = gpu.holders.size(); i > 1; --i) {
    Client& last = *gpu.holders[i - 1];
    if (settings_.mode == Mode::kAutomatic && staying <= room) return;
    const Share& share = *last.share(index);
    staying -= share.peak;
    room -= std::min(room, share.fixed);
    last.yields |= bit(index);
    excess_ |= bit(index);
    if (settings_.mode == Mode::kAutomatic) gpu.crowded = true;
  }
}

void Core::refresh_pressure(Client& client, Time now) {
  std::uint32_t waiters = 0;
  Time drain_at{};
  for_each_gpu(client.state.held & pressed_, [&](GpuIndex index) {
    const Gpu& gpu = gpus_[index];
    waiters = std::max(waiters, gpu.waiters);
    drain_at = std::max(drain_at, gpu.latest_grant + settings_.quantum);
  });
  if (client.yields != 0) {
    const Time own = client.state.held_since + settings_.quantum;
    drain_at = waiters == 0 ? own : std::min(drain_at, own);
    waiters = std::max(waiters, 1U);
  }
  ClientState& state = client.state;
  const bool was_pressed = state.waiters != 0;
  if (was_pressed == (waiters != 0) && state.drain_at == drain_at) return;
  if (!was_pressed) client.pressed_since = now;
  state.waiters = waiters;
  state.drain_at = drain_at;
  if (client.deadline.count() != 0) deadlines_.erase({client.deadline, client.id});
  client.deadline = {};
  if (waiters != 0) {
    client.deadline = std::max(drain_at, client.pressed_since) + settings_.grace;
    deadlines_.emplace(client.deadline, client.id);
  }
  decisions_.push_back({Change::kPressure, client.id, state.grant});
}

void Core::settle(Time now) {
  const GpuMask before = pressed_ | excess_;
  if (dirty_ == 0) return;
  for_each_gpu(dirty_, [this](GpuIndex index) { find_excess(index); });
  serve_queue(now);
  // Whoever was granted by serve_queue was found to fit, so the excess need not be looked for again.
  for_each_gpu(before | pressed_ | excess_, [&](GpuIndex index) {
    for (Client* holder : gpus_[index].holders) refresh_pressure(*holder, now);
  });
}

}  // namespace rota::scheduler
