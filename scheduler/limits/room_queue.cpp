#include "scheduler/limits/room_queue.h"

namespace rota::scheduler {

RoomQueue::Unit RoomQueue::unit_of(ClientId client) const {
  const auto found = clients_.find(client);
  const std::uint32_t gang = found == clients_.end() ? 0 : found->second.gang;
  return gang != 0 ? Unit{gang, 0} : Unit{0, client};
}

void RoomQueue::Decrease::at(Time now, const Unit& unit) {
  if (unit != by) by_others = latest;
  latest = now;
  by = unit;
}

Time RoomQueue::freed_by_others(const FreedOnGpus& freed, const Request& request) const {
  const Freed& here = freed[request.gpu];
  const bool any = request.what != What::kSwapped || request.movable_too;
  return (any ? here.any : here.staying).except(unit_of(request.client));
}

Time RoomQueue::freed(const FreedOnGpus& freed, const Request& request) const {
  return request.what == What::kSwapped ? freed_by_others(freed, request) : freed[request.gpu].any.latest;
}

bool RoomQueue::comes_back(const Request& request, Time first, Time now) const {
  const auto lately = [now](Time at) { return at != Time{} && now < at + kComesBack; };
  const Time at = freed(freed_, request);
  return lately(freed(returning_, request)) || (lately(at) && first < at);
}

Time RoomQueue::first_request(GpuIndex gpu, Time now) const {
  Time first = Time::max();
  for (const Request& each : requests_) {
    if (each.gpu == gpu) first = std::min(first, each.since);
  }
  for (const auto& [of, trying] : trying_) {
    if (of.second == gpu && now < trying.begun + kTries) first = std::min(first, trying.request.since);
  }
  return first;
}

RoomQueue::View RoomQueue::view(Time now) const {
  View view;
  for (const auto& [id, client] : clients_) {
    Age& age = view.ages.try_emplace(unit_of(id), kYoungest).first->second;
    age = std::min(age, Age{client.began, id});
  }
  for (const Request& each : requests_) view.gpus[each.gpu];
  for (auto& [index, gpu] : view.gpus) gpu.since = first_request(index, now);
  for (const auto& [id, client] : clients_) {
    for (const auto& [index, bytes] : client.stays) {
      const auto gpu = view.gpus.find(index);
      if (gpu == view.gpus.end() || bytes == 0) continue;
      gpu->second.stays[unit_of(id)] += bytes;
      gpu->second.has[unit_of(id)] += bytes;
    }
    for (const auto& [index, bytes] : client.moves) {
      const auto gpu = view.gpus.find(index);
      if (gpu != view.gpus.end() && bytes != 0) gpu->second.has[unit_of(id)] += bytes;
    }
  }
  const auto goes = [&](View::Gpu& gpu, const Unit& unit) { gpu.first = std::min(gpu.first, view.ages.at(unit)); };
  for (const Request& each : requests_) goes(view.gpus.at(each.gpu), unit_of(each.client));
  for (const auto& [of, trying] : trying_) {
    const auto gpu = view.gpus.find(of.second);
    if (gpu == view.gpus.end() || now >= trying.begun + kTries) continue;
    goes(gpu->second, unit_of(of.first));
  }
  return view;
}

auto RoomQueue::View::in_way(const Request& request) const -> const std::map<Unit, Bytes>& {
  const Gpu& gpu = gpus.at(request.gpu);
  return request.movable_too ? gpu.has : gpu.stays;
}

bool RoomQueue::View::has_others(const Request& request, const Unit& unit) const {
  const std::map<Unit, Bytes>& units = in_way(request);
  return units.size() > (units.contains(unit) ? 1U : 0U);
}

void RoomQueue::has(ClientId client, GpuIndex gpu, std::uint32_t gang, Bytes stays, Time now) {
  Client& known = clients_[client];
  const Unit former = unit_of(client);
  if (std::exchange(known.gang, gang) != gang) forget_refusals_unless_of(former);
  Bytes& before = known.stays[gpu];
  if (stays < before) note_freed(gpu, unit_of(client), true, false, now);
  before = stays;
}

void RoomQueue::blocks(ClientId client, bool blocks, Time began) {
  Client& known = clients_[client];
  known.blocks = blocks;
  known.began = began;
}

void RoomQueue::moves(ClientId client, GpuIndex gpu, Bytes bytes, Time now) {
  const auto found = clients_.find(client);
  if (found == clients_.end() && bytes == 0) return;
  Bytes& before = clients_[client].moves[gpu];
  if (bytes < before) note_freed(gpu, unit_of(client), false, false, now);
  before = bytes;
}

void RoomQueue::await(const Request& request) {
  std::erase_if(requests_, [&](const Request& each) {
    const bool same = each.client == request.client && each.gpu == request.gpu && each.number == request.number;
    if (same) --waiting_on_[each.gpu];
    return same;
  });
  std::vector<Answered>& answered = clients_[request.client].answered;
  const auto tried =
      std::ranges::find_if(answered, [&](const Answered& each) { return each.again && each.gpu == request.gpu; });
  if (tried != answered.end()) answered.erase(tried);
  trying_.erase({request.client, request.gpu});
  requests_.push_back(request);
  ++waiting_on_[request.gpu];
}

void RoomQueue::note_freed(GpuIndex gpu, const Unit& unit, bool stayed, bool ended, Time now) {
  for (FreedOnGpus* const freed : {&freed_, &returning_}) {
    if (ended && freed == &returning_) continue;
    (*freed)[gpu].any.at(now, unit);
    if (stayed) (*freed)[gpu].staying.at(now, unit);
  }
}

void RoomQueue::leave(ClientId client, Time now, bool ended) {
  const auto found = clients_.find(client);
  std::erase_if(requests_, [&](const Request& each) {
    if (each.client != client) return false;
    --waiting_on_[each.gpu];
    return true;
  });
  std::erase_if(trying_, [&](const auto& each) { return each.first.first == client; });
  if (found == clients_.end()) return;
  const Unit unit = unit_of(client);
  for (const auto& [gpu, bytes] : found->second.stays) {
    if (bytes != 0) note_freed(gpu, unit, true, ended, now);
  }
  for (const auto& [gpu, bytes] : found->second.moves) {
    if (bytes != 0) note_freed(gpu, unit, false, ended, now);
  }
  clients_.erase(found);
  forget_refusals_unless_of(unit);
}

void RoomQueue::forget_refusals_unless_of(const Unit& unit) {
  if (std::ranges::any_of(clients_, [&](const auto& each) { return unit_of(each.first) == unit; })) return;
  std::erase_if(refused_at_, [&](const auto& each) { return each.first.first == unit; });
}

Bytes RoomQueue::own(const View& view, const Request& request) const {
  const std::map<Unit, Bytes>& in_way = view.in_way(request);
  const auto found = in_way.find(unit_of(request.client));
  const Bytes own = found == in_way.end() ? 0 : found->second;
  if (request.what != What::kSwapped || request.movable_too) return own;
  const std::map<GpuIndex, Bytes>& moves = clients_.at(request.client).moves;
  const auto extents = moves.find(request.gpu);
  return own + (extents == moves.end() ? 0 : extents->second);
}

RoomQueue::Verdict RoomQueue::verdict(const View& view, const Request& request, Time now) const {
  const View::Gpu& gpu = view.gpus.at(request.gpu);
  const Unit unit = unit_of(request.client);
  const Time freed_at = freed(freed_, request);
  const Time deadline = request.since + patience_;
  const Bytes has = own(view, request);
  if (has > request.most || request.bytes > request.most - has) return Verdict::kRefuse;
  if (now >= deadline) return request.tried >= deadline ? Verdict::kRefuseFutile : Verdict::kAgain;
  const auto refused = refused_at_.find({unit, request.gpu});
  const bool futile = refused != refused_at_.end() && refused->second >= freed_by_others(freed_, request);
  if (futile && request.since >= refused->second) return Verdict::kRefuse;
  const bool unknown = request.others && now < request.since + kComesBack;
  const bool returns = unknown || comes_back(request, gpu.since, now);
  if (!view.has_others(request, unit) && !returns) {
    return freed_at > request.tried ? Verdict::kAgain : Verdict::kRefuse;
  }
  if (gpu.first < view.ages.at(unit)) return Verdict::kWait;
  const bool due = freed_at > request.tried || now >= request.tried + (returns ? kTries : kLooks);
  return due ? Verdict::kAgain : Verdict::kWait;
}

// Whether the request stays blocked even if all units outside of the deadlock free what they have. Its `most` bounds
// what is free now. The request was refused, so it does not fit into that, unless memory that was freed a moment ago is
// not back at the driver yet, or no request has been tried since.
bool RoomQueue::is_blocked(const View& view, const Request& request, const std::set<Unit>& deadlock, Time now) const {
  const Unit unit = unit_of(request.client);
  if (!view.has_others(request, unit)) return false;
  Bytes all = own(view, request);
  Bytes outside = 0;
  for (const auto& [of, bytes] : view.in_way(request)) {
    if (of == unit) continue;
    all += bytes;
    if (!deadlock.contains(of)) outside += bytes;
  }
  const Bytes free = request.most - std::min(request.most, all);
  if (request.bytes > free + outside) return true;
  const View::Gpu& gpu = view.gpus.at(request.gpu);
  const bool first = view.ages.at(unit) <= gpu.first;
  const bool untried = comes_back(request, gpu.since, now) || (first && freed(freed_, request) > request.tried);
  return outside == 0 && !untried;
}

// The largest set of units all of whose requests wait for memory of the set: they stay blocked even if all others free
// theirs. `certain`: leaves out units of which some member may not be waiting.
std::set<RoomQueue::Unit> RoomQueue::deadlock(const View& view, bool certain, Time now) const {
  std::set<Unit> deadlock;
  for (const Request& each : requests_) deadlock.insert(unit_of(each.client));
  for (const auto& [of, trying] : trying_) {
    if (now < trying.begun + kTries) deadlock.erase(unit_of(of.first));
  }
  for (const auto& [id, client] : clients_) {
    if (certain && (!client.blocks || client.may_not_have_read(now))) deadlock.erase(unit_of(id));
  }
  for (bool changed = true; changed;) {
    std::set<Unit> remaining = deadlock;
    for (const Request& each : requests_) {
      if (!is_blocked(view, each, deadlock, now)) remaining.erase(unit_of(each.client));
    }
    changed = remaining.size() != deadlock.size();
    deadlock = std::move(remaining);
  }
  return deadlock;
}

std::optional<RoomQueue::Unit> RoomQueue::to_refuse(const View& view, Time now) const {
  std::set<Unit> units = deadlock(view, true, now);
  if (units.empty()) {
    units = deadlock(view, false, now);
    const bool is_late = std::ranges::any_of(
        requests_, [&](const Request& each) { return units.contains(unit_of(each.client)) && now >= late(each); });
    if (!is_late) return std::nullopt;
  }
  // The end of a unit whose memory is in nobody's way would help nobody.
  const std::set<Unit> all = units;
  std::erase_if(units, [&](const Unit& unit) {
    return std::ranges::none_of(requests_, [&](const Request& each) {
      const Unit of = unit_of(each.client);
      return of != unit && all.contains(of) && view.in_way(each).contains(unit);
    });
  });
  if (units.empty()) return std::nullopt;
  return *std::ranges::max_element(units, {}, [&](const Unit& unit) { return view.ages.at(unit); });
}

void RoomQueue::answer(const Request& request, Verdict verdict, Time now) {
  if (verdict == Verdict::kAgain) trying_[{request.client, request.gpu}] = {request, now};
  if (verdict == Verdict::kRefuseFutile) refused_at_[{unit_of(request.client), request.gpu}] = now;
  Client& client = clients_.at(request.client);
  client.blocks = false;
  std::erase_if(client.answered, [&](const Answered& each) { return now >= each.at + kAnswerTakes; });
  client.answered.push_back({request.gpu, verdict == Verdict::kAgain, now});
  --waiting_on_[request.gpu];
}

std::vector<RoomQueue::Answer> RoomQueue::decide(Time now) {
  decided_ = now;
  std::vector<Answer> answers;
  if (requests_.empty()) return answers;
  const View seen = view(now);
  std::map<ClientId, std::size_t> waiting;
  const auto answer_if = [&](const auto& said) {
    std::erase_if(requests_, [&](const Request& each) {
      const Verdict verdict = said(each);
      if (verdict == Verdict::kWait) return false;
      answer(each, verdict, now);
      answers.push_back({.client = each.client,
                         .gpu = each.gpu,
                         .number = each.number,
                         .again = verdict == Verdict::kAgain,
                         .bytes = each.bytes,
                         .waited = now - each.since});
      return true;
    });
  };
  answer_if([&](const Request& each) {
    return ++waiting[each.client] > kMostOfClient ? Verdict::kRefuse : verdict(seen, each, now);
  });
  if (!answers.empty()) return answers;
  if (const auto youngest = to_refuse(seen, now)) {
    answer_if([&](const Request& each) {
      return unit_of(each.client) == *youngest ? Verdict::kRefuseFutile : Verdict::kWait;
    });
  }
  return answers;
}

const RoomQueue::Request* RoomQueue::waits(ClientId client, GpuIndex gpu, bool tries) const {
  const auto found =
      std::ranges::find_if(requests_, [&](const Request& each) { return each.client == client && each.gpu == gpu; });
  if (found != requests_.end()) return &*found;
  const auto trying = trying_.find({client, gpu});
  return tries && trying != trying_.end() ? &trying->second.request : nullptr;
}

std::optional<Time> RoomQueue::next_deadline() const {
  if (requests_.empty()) return std::nullopt;
  Time due = decided_ + kLooks;
  for (const auto& [id, client] : clients_) {
    for (const Answered& each : client.answered) {
      if (decided_ < each.at + kAnswerTakes) due = std::min(due, each.at + kAnswerTakes);
    }
  }
  for (const Request& each : requests_) {
    const bool unknown = each.others && decided_ < each.since + kComesBack;
    if (unknown || comes_back(each, first_request(each.gpu, decided_), decided_))
      due = std::min(due, decided_ + kTries);
    for (const Time at : {late(each), each.since + patience_}) {
      if (decided_ < at) due = std::min(due, at);
    }
  }
  return due;
}

}  // namespace rota::scheduler
