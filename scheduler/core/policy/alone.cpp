#include "scheduler/core/policy/alone.h"

#include <algorithm>

namespace rota::scheduler {

bool Alone::wants(Client& client, bool alone, Time now) {
  Measuring& measuring = client.measuring;
  if (alone == measuring.asks) return false;
  if (alone) {
    if (settings_.mode != Mode::kAutomatic || may_stay(client)) return false;
    measuring.asks = true;
    asking_.push_back(&client);
    books_.mark_changed(client.state.held);
    return false;
  }
  const bool was_alone = measuring.until != Time{};
  if (measuring.presses_since != Time{}) {
    measuring.taken.add(measuring.presses_since, now);
    for_each_gpu(measuring.gpus, [&](GpuIndex index) { taken_[index].add(measuring.presses_since, now); });
  }
  books_.mark_changed(client.state.held | measuring.gpus);
  measuring.asks = false;
  measuring.presses_since = measuring.until = Time{};
  measuring.gpus = 0;
  std::erase(asking_, &client);
  find_first();
  client.state.alone_until = {};
  return was_alone;
}

// The client that asked first is served first, and keeps all its GPUs from others that want some of them.
void Alone::find_first() {
  first_.fill(nullptr);
  gpus_ = 0;
  for (const Client* client : asking_) {
    const GpuMask gpus = client->state.held;
    if ((gpus & gpus_) != 0) continue;
    gpus_ |= gpus;
    for_each_gpu(gpus, [&](GpuIndex index) { first_[index] = client; });
  }
}

bool Alone::is_first(const Client& client) const {
  const GpuMask gpus = client.state.held;
  return gpus != 0 && first_[static_cast<GpuIndex>(std::countr_zero(gpus))] == &client;
}

// The first client whose turn to press has come, but that has used up its time, or for which pressing would be futile.
Client* Alone::first_without_time(Time now) {
  for (Client* client : asking_) {
    const bool presses_now = client->measuring.presses_since == Time{} && is_first(*client);
    if (presses_now && (left(*client, now) < 2 * kLongest || futile(*client, now))) return client;
  }
  return nullptr;
}

bool Alone::others_hold(const Client& client) const {
  bool others = false;
  for_each_gpu(client.state.held, [&](GpuIndex index) {
    const std::vector<Client*>& holders = books_.gpu(index).holders;
    others |= std::any_of(holders.begin(), holders.end(),
                          [&](const Client* holder) { return holder != &client && !may_stay(*holder); });
  });
  return others;
}

// Whether others have lately not yielded one of its GPUs in time, and still hold it.
bool Alone::futile(const Client& client, Time now) const {
  bool any = false;
  for_each_gpu(client.state.held, [&](GpuIndex index) { any |= now < futile_[index].until; });
  return any && others_hold(client);
}

void Alone::pressing_failed(const Client& client, Time now) {
  for_each_gpu(client.measuring.gpus, [&](GpuIndex index) {
    Futile& gpu = futile_[index];
    const bool again = now - gpu.until < gpu.pause;
    gpu.pause = again ? std::min(gpu.pause * 2, kLongestAfterFutile) : kAfterFutile;
    gpu.until = now + gpu.pause;
  });
}

// How much time is left of what it, and all clients of its GPUs together, may take.
Time Alone::left(Client& client, Time now) {
  Time left = protocol::kMostAlone - client.measuring.taken.lately(now);
  for_each_gpu(client.state.held,
               [&](GpuIndex index) { left = std::min(left, protocol::kMostAloneOfAll - taken_[index].lately(now)); });
  return left;
}

// Returns whether it has exclusive use from now on.
bool Alone::begins(Client& client, Time now) {
  Measuring& measuring = client.measuring;
  if (measuring.until != Time{} || !is_first(client)) return false;
  if (measuring.presses_since == Time{}) measuring.presses_since = now;
  measuring.gpus |= client.state.held;
  if (others_hold(client)) return false;
  for_each_gpu(measuring.gpus, [&](GpuIndex index) { futile_[index] = {}; });
  measuring.until = now + kLongest;
  client.state.alone_until = measuring.until;
  return true;
}

std::optional<Time> Alone::next_deadline() const {
  std::optional<Time> next;
  for (const Client* client : asking_) {
    const Time until = undisturbed_until(*client);
    if (until != Time{} && (!next || until < *next)) next = until;
  }
  return next;
}

Client* Alone::first_over(Time now) const {
  for (Client* client : asking_) {
    const Time until = undisturbed_until(*client);
    if (until != Time{} && until <= now) return client;
  }
  return nullptr;
}

}  // namespace rota::scheduler
