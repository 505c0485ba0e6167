// What is charged on each GPU for contexts that nothing measures, of users who could invent processes to have more of
// them. All of these contexts together count as a quarter of the GPU at most, or several users could make a GPU look
// full of contexts. Nobody gets more than three quarters of what the others leave of that quarter, as in budget.h. A
// context that counts for less than it takes refuses nobody memory; the driver may then refuse what rotad has granted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "scheduler/core/event.h"

namespace rota::server {

class AssumedContexts {
 public:
  // Of all users' together, a part of the GPU.
  static constexpr scheduler::Bytes kPart = 4;

  // What one more context of this user's may count as on a GPU of `total` bytes, whatever it counts as now.
  scheduler::Bytes left(scheduler::ClientId client, const std::string& payer, std::uint32_t gpu,
                        scheduler::Bytes total) const {
    const auto found = gpus_.find(gpu);
    if (found == gpus_.end()) return most(total / kPart);
    const Gpu& here = found->second;
    const auto user = here.of_user.find(payer);
    const auto before = here.of_client.find(client);
    const scheduler::Bytes now = before == here.of_client.end() ? 0 : before->second.second;
    const scheduler::Bytes own = user == here.of_user.end() ? 0 : user->second;
    const scheduler::Bytes others = here.sum - own;
    const scheduler::Bytes may = most(total / kPart - std::min(total / kPart, others));
    return may - std::min(may, own - now);
  }
  // What the client's context counts as. 0: it is measured, or has ended.
  void set(scheduler::ClientId client, const std::string& payer, std::uint32_t gpu, scheduler::Bytes bytes) {
    const auto found = bytes == 0 ? gpus_.find(gpu) : gpus_.try_emplace(gpu).first;
    if (found == gpus_.end()) return;
    Gpu& here = found->second;
    const auto before = here.of_client.find(client);
    if (bytes != 0) {
      scheduler::Bytes& of_user = here.of_user[payer];  // first: there may be no memory for it
      auto& counted = before != here.of_client.end()
                          ? before->second
                          : here.of_client.emplace(client, std::pair(payer, 0)).first->second;
      here.sum += bytes - counted.second;  // unsigned arithmetic is correct for decreases, too
      of_user += bytes - counted.second;
      counted.second = bytes;
    } else if (before != here.of_client.end()) {
      here.sum -= before->second.second;
      const auto user = here.of_user.find(before->second.first);
      user->second -= before->second.second;
      if (user->second == 0) here.of_user.erase(user);
      here.of_client.erase(before);
      if (here.of_client.empty()) gpus_.erase(found);
    }
  }

 private:
  struct Gpu {
    scheduler::Bytes sum = 0;
    std::map<std::string, scheduler::Bytes> of_user;
    std::map<scheduler::ClientId, std::pair<std::string, scheduler::Bytes>> of_client;
  };
  static scheduler::Bytes most(scheduler::Bytes left) { return left - left / 4; }

  std::map<std::uint32_t, Gpu> gpus_;
};

}  // namespace rota::server
