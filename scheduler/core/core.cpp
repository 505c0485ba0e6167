// How the core decides. Each step applies one event to the accounting and then decides anew: it finds GPUs whose
// holders no longer fit together, serves the queue from its head, tells the holders that are in another client's way,
// and asks other clients to evict memory for the holders' deficit.
#include "scheduler/core/core.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

namespace rota::scheduler {

Core::Core(const Settings& settings)
    : settings_(settings),
      sharing_(settings_, books_),
      alone_(settings_, books_),
      admission_(settings_, books_, sharing_, alone_),
      pressure_(settings_, books_, order_, sharing_, alone_),
      clearing_(books_),
      incomplete_(books_),
      backfill_(settings_, books_, sharing_, pressure_) {
  assert(settings.quantum.count() > 0);
}

const std::vector<Decision>& Core::step(const Event& event, Time now) {
  decisions_.clear();
  books_.begin_step();
  std::visit([this, now](const auto& which) { on(which, now); }, event);
  decide(now);
  return decisions_;
}

// ---- events

void Core::on(const event::Join& join, Time) {
  books_.join(join);
}

void Core::on(const event::Session& session, Time now) {
  if (Client* client = books_.find(session.client)) books_.set_session(*client, session.session, now);
}

void Core::on(const event::AddGpu& add, Time) {
  Client* client = books_.find(add.client);
  if (client == nullptr || add.gpu >= protocol::kMaxGpus) return;
  books_.add_gpu(*client, add.gpu, add.total, add.context);
  sharing_.came(add.gpu);
}

void Core::on(const event::Want& want, Time now) {
  Client* client = books_.find(want.client);
  if (client == nullptr) return;
  const GpuMask gpus = want.gpus & client->state.touched;
  if ((gpus & ~client->state.held) != 0) sharing_.wants(*client, now);
  if ((gpus & ~client->state.held) == 0) {
    // Withdrawn, or already held.
    set_wanted(*client, 0, now);
  } else if (want.running) {
    grant(*client, gpus, {}, now);
  } else {
    set_wanted(*client, gpus, now);
    if (want.urgent) hurry(*client, now);
  }
  if (alone_.wants(*client, want.alone && gpus != 0, now)) told_alone(*client, now);
}

void Core::on(const event::Withdraw& withdraw, Time now) {
  Client* client = books_.find(withdraw.client);
  if (client == nullptr || client->state.held == 0) return;
  const bool ends = withdraw.within == Time{};
  if (ends != (client->withdrawn_by.count() != 0)) return;
  client->withdrawn_at = ends ? Time{} : now;
  client->withdrawn_by = ends ? Time{} : now + withdraw.within;
  if (pressure_.refresh(*client, pressed_, now)) {
    decisions_.push_back({Change::kPressure, client->id, client->state.grant});
  }
}

void Core::on(const event::GiveBack& back, Time now) {
  Client* client = books_.find(back.client);
  if (client == nullptr || client->state.grant == 0 || client->state.grant != back.grant) return;
  end_grant(*client, Change::kEnded, now);
}

void Core::on(const event::Usage& usage, Time now) {
  Client* client = books_.find(usage.client);
  if (client == nullptr || client->share(usage.gpu) == nullptr) return;
  const bool refused = books_.use(*client, usage, settings_.memory_window, now);
  if (refused) clearing_.refused(*client, usage.gpu, now);
  Incomplete::heard(*client, *client->share(usage.gpu));
}

void Core::on(const event::Ask& ask, Time) {
  Client* client = books_.find(ask.client);
  if (client == nullptr || client->share(ask.gpu) == nullptr) return;
  books_.ask(*client, ask.gpu, ask.bytes);
}

void Core::on(const event::Leave& leave, Time now) {
  Client* client = books_.find(leave.client);
  if (client == nullptr) return;
  set_wanted(*client, 0, now);
  if (client->state.grant != 0) end_grant(*client, Change::kEnded, now);
  alone_.wants(*client, false, now);
  books_.leave(*client);
  sharing_.left(leave.client);
}

void Core::on(const event::Tick&, Time now) {
  while (const auto late = pressure_.late(now)) {
    Client& client = *books_.find(*late);
    end_grant(client, Change::kRevoked, now);  // removes its deadline
    clearing_.revoked(client, now);
  }
  alone_.end_those_over(now, [&](const Client& client) { told_alone(client, now); });
  books_.mark_changed(clearing_.due(now) | sharing_.due(now) | incomplete_.due(now));
}

void Core::on(const event::Measured& measured, Time now) {
  if (measured.gpu < protocol::kMaxGpus && books_.gpu(measured.gpu).clients != 0) books_.measure(measured, now);
}

void Core::on(const event::Unmeasured& unmeasured, Time) {
  if (unmeasured.gpu < protocol::kMaxGpus) books_.forget_measured(unmeasured.gpu);
}

void Core::on(const event::Activity& activity, Time now) {
  if (Client* client = books_.find(activity.client)) sharing_.heard(*client, activity, now);
}

void Core::on(const event::HadBefore& had, Time now) {
  if (had.gpu < protocol::kMaxGpus) books_.had_before(had, now);
}

void Core::on(const event::Returned& returned, Time now) {
  Client* client = books_.find(returned.client);
  if (client == nullptr || client->share(returned.gpu) == nullptr) return;
  if ((client->state.held | client->state.wanted) == 0) books_.returned(*client, returned, now);
}

void Core::on(const event::MeasuredBefore& before, Time now) {
  if (const Client* client = books_.find(before.client)) sharing_.measured_before(*client, before, now);
}

void Core::on(const event::Configure& configure, Time now) {
  assert(configure.settings.quantum.count() > 0);
  if (configure.settings.measured_turns != settings_.measured_turns) order_.forget_ranks();
  settings_ = configure.settings;
  sharing_.configured();
  alone_.configured(now, [&](const Client& client) { told_alone(client, now); });
  books_.mark_changed(books_.touched());
}

// ---- changes

void Core::set_wanted(Client& client, GpuMask gpus, Time now) {
  const GpuMask before = client.state.wanted;
  if (before == gpus) return;
  if (gpus == 0) client.waited_time = Bookkeeping::waited_time(client, now);
  books_.set_wanted(client, gpus, now);
  for_each_gpu(gpus & ~before, [&](GpuIndex index) {
    Share& share = *client.share(index);
    share.rank = settings_.measured_turns ? Bookkeeping::rank(share) : Rank{};
  });
  if (before == 0) {
    client.state.wanted_since = now;
    order_.enqueue(client);
  } else if (gpus == 0) {
    order_.remove(client);
    client.urgent = false;
    client.reserves_at = {};
    client.overtaken = false;
  }
}

// One client of a domain has had a turn: others of the domain that wait move back in the queue, and so do those of its
// session within the domain.
void Core::move_back(const Share& had) {
  const Group& group = *had.group;
  const Gpu& gpu = books_.gpu(had.gpu);
  const std::int64_t of_domain = group.domain.standing.waiting;
  const std::int64_t of_session = group.standing.waiting;
  const bool domains = of_domain != 0 && gpu.waiters > of_domain;
  const bool sessions = of_session != 0 && of_domain > of_session;
  if ((!domains && !sessions) || !settings_.measured_turns) return;
  for (Client* client : gpu.all) {
    Share& share = *client->share(had.gpu);
    const bool concerned = domains ? &share.group->domain == &group.domain : share.group == had.group;
    if (!concerned || (client->state.wanted & bit(had.gpu)) == 0 || client->urgent) continue;
    share.rank = Bookkeeping::rank(share);
  }
  order_.ranks_grew();
}

void Core::hurry(Client& client, Time now) {
  // Where memory moves with each turn, urgent turns must not take all of the GPU's time.
  Time between = Order::kBetweenUrgent;
  for_each_gpu(client.state.wanted, [&](GpuIndex index) {
    between = std::max(between, Sharing::kTurnPerSwitch * sharing_.switching(index));
  });
  bool too_soon = client.urgent_at != Time{} && now - client.urgent_at < between;
  // Nor may they replace all other turns, however many programs are interrupted.
  for_each_gpu(client.state.wanted,
               [&](GpuIndex index) { too_soon |= books_.gpu(index).urgent_until > now + Order::kBetweenUrgent; });
  if (client.urgent || too_soon) return;
  client.urgent_at = now;
  for_each_gpu(client.state.wanted, [&](GpuIndex index) {
    Time& until = books_.gpu(index).urgent_until;
    until = std::max(until, now) + Order::kUrgentTurns * (Pressure::kUrgentTurn + 2 * sharing_.switching(index));
  });
  order_.hurry(client);
  books_.mark_changed(client.state.wanted);
}

// An urgent client has not given back in time. Other urgent clients may do the same: from now on all wait for their
// turns.
void Core::calm(GpuIndex index) {
  bool any = false;
  for (Client* client : books_.gpu(index).all) {
    if (!client->urgent || (client->state.wanted & bit(index)) == 0) continue;
    any = true;
    client->urgent = false;
    for_each_gpu(client->state.wanted, [&](GpuIndex wanted) {
      Share& share = *client->share(wanted);
      share.rank = settings_.measured_turns ? Bookkeeping::rank(share) : Rank{};
    });
  }
  if (any) order_.ranks_grew();
}

void Core::grant(Client& client, GpuMask gpus, Time let_in_until, Time now) {
  client.urgent_turn = client.urgent;
  client.let_in_until = let_in_until;
  client.waited_time = Bookkeeping::waited_time(client, now);
  // Other clients may be on the GPUs that it gets.
  if (client.state.held != 0 && alone_.wants(client, false, now)) told_alone(client, now);
  client.held_time = Bookkeeping::held_time(client, now);
  books_.set_held(client, client.state.held | gpus, now);
  set_wanted(client, 0, now);  // afterwards: in virtual time it has never been away
  if (++client.last_grant == 0) ++client.last_grant;
  client.state.grant = client.last_grant;
  client.state.held_since = now;
  client.state.overrun = false;
  ++grants_;
  decisions_.push_back({Change::kGranted, client.id, client.state.grant});
  for_each_gpu(client.state.held, [&](GpuIndex index) {
    decisions_.push_back({Change::kPromised, client.id, client.state.grant, index, client.share(index)->promised});
  });
}

void Core::end_grant(Client& client, Change change, Time now) {
  decisions_.push_back({change, client.id, client.state.grant});
  if (alone_.wants(client, false, now)) told_alone(client, now);
  client.last_held = now;
  // A client that gives back at a pause because its turn is nearly over does not count as one that comes back after a
  // pause.
  const Time left = client.state.drain_at - now;
  const bool nearly_over = left * protocol::kLastPart <= now - client.state.held_since;
  const bool due = client.was_due || (client.state.waiters != 0 && nearly_over);
  client.woke = change == Change::kEnded && !due;
  if (client.woke) client.evidence.end_busy_period(client.evidence.last.open);
  // A turn that exceeds an urgent turn's length leaves less time for other urgent turns.
  if (const Time over = now - client.state.held_since - Pressure::kUrgentTurn; client.urgent_turn && over > Time{}) {
    for_each_gpu(client.state.held, [&](GpuIndex index) {
      Time& until = books_.gpu(index).urgent_until;
      until = std::max(until, now) + Order::kUrgentTurns * over;
      if (change == Change::kRevoked) calm(index);
    });
  }
  // An urgent turn is in addition to the regular turn that it was waiting for, and so is one that was cut short for a
  // waiter ahead of it.
  const Time let_in_until = std::exchange(client.let_in_until, Time{});
  const Time half = backfill_.turn(client.state.held) / Backfill::kKeepsPlacePart;
  const bool cut_short = let_in_until != Time{} && let_in_until - client.state.held_since < half;
  client.keeps_place = (std::exchange(client.urgent_turn, false) || cut_short) && !client.woke;
  client.held_time = Bookkeeping::held_time(client, now);
  const GpuMask had = client.state.held;
  incomplete_.ending(client, now);
  books_.set_held(client, 0, now);
  for_each_gpu(had, [&](GpuIndex index) { move_back(*client.share(index)); });
  client.state.grant = 0;
  client.state.overrun = change == Change::kRevoked;
  client.yields = 0;
  pressure_.relieve(client);
}

void Core::told_alone(const Client& client, Time now) {
  const Time left = client.state.alone_until == Time{} ? Time{} : client.state.alone_until - now;
  decisions_.push_back({Change::kAlone, client.id, client.state.grant, 0, static_cast<Bytes>(left.count())});
}

void Core::decide(Time now) {
  if (books_.changed() == 0) return;
  const GpuMask before = pressed_ | admission_.excess() | alone_pressed_;
  sharing_.judge(books_.changed(), now);
  // An answered ask may let its asker yield to others, on any GPU: then the loop runs once more.
  for_each_gpu(books_.changed(), [&](GpuIndex index) {
    if (books_.gpu(index).has_swap()) clearing_.judge(index, now);
  });
  const GpuMask undecided = books_.changed() | books_.asked();
  bool answered = false;
  do {
    answered = false;
    for_each_gpu(undecided, [&](GpuIndex index) {
      admission_.find_excess(index);
      answered |= admission_.serve_asks(index, [&](const Client& client, Bytes bytes) {
        decisions_.push_back({Change::kPromised, client.id, client.state.grant, index, bytes});
      });
    });
  } while (answered);
  alone_.judge(now, [&](const Client& client) { told_alone(client, now); });
  incomplete_.judge(now, [&](const Client& client, GpuIndex index, Bytes lacks) {
    decisions_.push_back({Change::kPassedOver, client.id, client.state.grant, index, lacks});
  });
  for_each_gpu(books_.waited() | books_.changed(), [&](GpuIndex index) { books_.gpu(index).lacks_room = false; });
  pressed_ = order_.serve(
      books_, backfill_, sharing_.beside(), now,
      [this](const Client& client, GpuIndex index) { return sharing_.open_to(client, index); },
      [this](const Client& client, GpuIndex index) { return admission_.conflicts(client, index); },
      [this, now](Client& client, Time until) { grant(client, client.state.wanted, until, now); });
  alone_.judge(now, [&](const Client& client) { told_alone(client, now); });  // it may have asked before it held
  // A client that was just granted a GPU was found to fit, so the excess need not be computed again.
  alone_pressed_ = alone_.gpus();
  const GpuMask pressing = before | pressed_ | admission_.excess() | alone_pressed_;
  for_each_gpu(pressing, [&](GpuIndex index) {
    for (Client* holder : books_.gpu(index).holders) {
      if (std::countr_zero(holder->state.held & pressing) != static_cast<int>(index)) continue;  // done, with that one
      if (pressure_.refresh(*holder, pressed_, now)) {
        decisions_.push_back({Change::kPressure, holder->id, holder->state.grant});
      }
    }
  });
  // For the current holders.
  for_each_gpu(books_.changed(), [&](GpuIndex index) {
    if (!books_.gpu(index).has_swap()) return;
    clearing_.ask(index, now, [&](const Client& client, Bytes bytes) {
      decisions_.push_back({Change::kClear, client.id, client.state.grant, index, bytes});
    });
  });
}

}  // namespace rota::scheduler
