#include "scheduler/limits/room_queue.h"

#include <algorithm>

namespace rota::scheduler {

RoomQueue::Unit RoomQueue::unit_of(ClientId client) const {
  const auto found = clients_.find(client);
  const std::uint32_t gang = found == clients_.end() ? 0 : found->second.gang;
  return gang != 0 ? Unit{gang, 0} : Unit{0, client};
}

void RoomQueue::Freed::at(Time now, const Unit& unit) {
  if (unit != by) by_others = latest;
  latest = now;
  by = unit;
}

bool RoomQueue::comes_back(GpuIndex gpu, Time now) const {
  return freed_[gpu].latest != Time{} && now < freed_[gpu].latest + kComesBack;
}

RoomQueue::View RoomQueue::view(Time now) const {
  View view;
  for (const auto& [id, client] : clients_) view.ages.try_emplace(unit_of(id), id);  // the oldest comes first
  for (const Request& each : requests_) view.gpus[each.gpu];
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
    if (gpu != view.gpus.end() && now < trying.begun + kTries) goes(gpu->second, unit_of(of.first));
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
  known.gang = gang;
  Bytes& before = known.stays[gpu];
  if (stays < before) freed_[gpu].at(now, unit_of(client));
  before = stays;
}

void RoomQueue::moves(ClientId client, GpuIndex gpu, Bytes bytes, Time now) {
  const auto found = clients_.find(client);
  if (found == clients_.end() && bytes == 0) return;
  Bytes& before = clients_[client].moves[gpu];
  if (bytes < before) freed_[gpu].at(now, unit_of(client));
  before = bytes;
}

void RoomQueue::await(const Request& request) {
  std::erase_if(requests_, [&](const Request& each) {
    const bool same = each.client == request.client && each.gpu == request.gpu && each.number == request.number;
    if (same) --waiting_on_[each.gpu];
    return same;
  });
  clients_[request.client];
  trying_.erase({request.client, request.gpu});
  requests_.push_back(request);
  ++waiting_on_[request.gpu];
}

void RoomQueue::leave(ClientId client, Time now) {
  const auto found = clients_.find(client);
  std::erase_if(requests_, [&](const Request& each) {
    if (each.client != client) return false;
    --waiting_on_[each.gpu];
    return true;
  });
  std::erase_if(trying_, [&](const auto& each) { return each.first.first == client; });
  if (found == clients_.end()) return;
  const Unit unit = unit_of(client);
  for (const auto* of : {&found->second.stays, &found->second.moves}) {
    for (const auto& [gpu, bytes] : *of) {
      if (bytes != 0) freed_[gpu].at(now, unit);
    }
  }
  clients_.erase(found);
  const auto is_of_unit = [&](const auto& each) { return unit_of(each.first) == unit; };
  const bool last = std::ranges::none_of(clients_, is_of_unit);
  std::erase_if(refused_at_, [&](const auto& each) {
    return each.first.first == Unit{0, client} || (last && each.first.first == unit);
  });
}

RoomQueue::Verdict RoomQueue::verdict(const View& view, const Request& request, Time now) const {
  const View::Gpu& gpu = view.gpus.at(request.gpu);
  const Unit unit = unit_of(request.client);
  const Time freed = freed_[request.gpu].latest;
  const Time deadline = request.since + patience_;
  const std::map<Unit, Bytes>& in_way = view.in_way(request);
  const auto own = in_way.find(unit);
  const Bytes has = own == in_way.end() ? 0 : own->second;
  if (has > request.most || request.bytes > request.most - has) return Verdict::kRefuse;
  if (now >= deadline) return request.tried >= deadline ? Verdict::kRefuseFutile : Verdict::kAgain;
  const auto refused = refused_at_.find({unit, request.gpu});
  if (refused != refused_at_.end() && refused->second >= freed_[request.gpu].except(unit)) return Verdict::kRefuse;
  const bool unknown = request.others && now < request.since + kComesBack;
  const bool returns = unknown || comes_back(request.gpu, now);
  if (!view.has_others(request, unit) && !returns) {
    return freed > request.tried ? Verdict::kAgain : Verdict::kRefuse;
  }
  if (gpu.first < view.ages.at(unit)) return Verdict::kWait;
  const bool due = freed > request.tried || now >= request.tried + (returns ? kTries : kLooks);
  return due ? Verdict::kAgain : Verdict::kWait;
}

// The youngest with memory of the units that wait for more than would be free without each other's memory. None as long
// as the first unit there has not tried since something was freed, or freed memory may not have reached the driver.
std::optional<RoomQueue::Unit> RoomQueue::youngest_in_deadlock(const View& view, Time now) const {
  std::set<Unit> deadlock;
  for (const Request& each : requests_) {
    const Unit unit = unit_of(each.client);
    const bool first = view.ages.at(unit) <= view.gpus.at(each.gpu).first;
    if (comes_back(each.gpu, now) || (first && freed_[each.gpu].latest > each.tried)) continue;
    deadlock.insert(unit);
  }
  // No more would be free than what is now, which its `most` bounds, and what units outside of the deadlock have.
  const auto blocked = [&](const Request& each) {
    const Unit unit = unit_of(each.client);
    if (!view.has_others(each, unit)) return false;
    Bytes all = 0;
    Bytes outside = 0;
    for (const auto& [of, bytes] : view.in_way(each)) {
      all += bytes;
      if (of != unit && !deadlock.contains(of)) outside += bytes;
    }
    const Bytes free = each.most - std::min(each.most, all);
    return outside == 0 || each.bytes > free + outside;
  };
  for (bool changed = true; changed;) {
    std::set<Unit> remaining;
    for (const Request& each : requests_) {
      if (deadlock.contains(unit_of(each.client)) && blocked(each)) remaining.insert(unit_of(each.client));
    }
    changed = remaining.size() != deadlock.size();
    deadlock = std::move(remaining);
  }
  // The end of a unit without memory would help nobody.
  std::erase_if(deadlock, [&](const Unit& unit) {
    return std::ranges::none_of(view.gpus, [&](const auto& gpu) { return gpu.second.has.contains(unit); });
  });
  if (deadlock.empty()) return std::nullopt;
  return *std::ranges::max_element(deadlock, {}, [&](const Unit& unit) { return view.ages.at(unit); });
}

void RoomQueue::answer(const Request& request, Verdict verdict, Time now) {
  if (verdict == Verdict::kAgain) trying_[{request.client, request.gpu}] = {request, now};
  if (verdict == Verdict::kRefuseFutile) refused_at_[{unit_of(request.client), request.gpu}] = now;
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
  if (const auto youngest = youngest_in_deadlock(seen, now)) {
    answer_if([&](const Request& each) {
      return unit_of(each.client) == *youngest ? Verdict::kRefuseFutile : Verdict::kWait;
    });
  }
  return answers;
}

const RoomQueue::Request* RoomQueue::waits(ClientId client, GpuIndex gpu, Time now) const {
  const auto found =
      std::ranges::find_if(requests_, [&](const Request& each) { return each.client == client && each.gpu == gpu; });
  if (found != requests_.end()) return &*found;
  const auto trying = trying_.find({client, gpu});
  return trying != trying_.end() && now < trying->second.begun + kTries ? &trying->second.request : nullptr;
}

std::optional<Time> RoomQueue::next_deadline() const {
  if (requests_.empty()) return std::nullopt;
  Time due = decided_ + kLooks;
  for (const Request& each : requests_) {
    const bool unknown = each.others && decided_ < each.since + kComesBack;
    if (unknown || comes_back(each.gpu, decided_)) due = std::min(due, decided_ + kTries);
    if (decided_ < each.since + patience_) due = std::min(due, each.since + patience_);
  }
  return due;
}

}  // namespace rota::scheduler
