// The configuration, read again while programs run.
#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/server/client.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/log.h"

namespace rota::server {

namespace event = scheduler::event;
using scheduler::Quota;

namespace {

bool same(const scheduler::Settings& one, const scheduler::Settings& other) {
  return one.mode == other.mode && quantum_of(one) == quantum_of(other) && one.grace == other.grace;
}

// Of several members of an account the lower limits apply, each with its remedy, as when they join.
void lower(Quota::Membership& account, const Quota::Membership& other) {
  if (other.limits.device < account.limits.device) {
    account.limits.device = other.limits.device;
    account.remedy.device = other.remedy.device;
  }
  if (other.limits.host < account.limits.host) {
    account.limits.host = other.limits.host;
    account.remedy.host = other.remedy.host;
  }
}

}  // namespace

Result<std::string> Server::reload() {
  if (!options_.reread) return Error{"this rotad cannot read its configuration again"};
  const Result<Configuration> read = options_.reread();
  if (!read) {
    log::warn("nothing has changed: {}", read.error().text);
    return Error{"nothing has changed: " + read.error().text};
  }
  const bool other_metrics = read->metrics != metrics_settings_;
  if (other_metrics) {  // first: it can fail
    if (const auto set = set_metrics(read->metrics); !set) {
      log::warn("nothing has changed: {}", set.error().text);
      return Error{"nothing has changed: " + set.error().text};
    }
  }
  for (const std::string& line : warnings_about(*read)) log::warn("{}", line);
  std::string changed;
  const auto note = [&](const char* what) { changed += fmt::format("{}{}", changed.empty() ? "" : ", ", what); };
  if (read->limits != limits_.settings()) {
    note("limits");
    change_limits(read->limits);
  }
  if (other_metrics) note("metrics");
  if (std::exchange(visibility_, read->visibility) != read->visibility) note("visibility");
  if (std::exchange(gpus_by_default_, read->gpus) != read->gpus) note("gpus");
  if (!same(read->settings, core_.settings())) {
    note("mode, quantum or grace");
    step(event::Configure{read->settings});
  }
  std::string answer = fmt::format("{}: {}", read->file.empty() ? "no rotad.toml, so the defaults" : read->file,
                                   changed.empty() ? "nothing has changed" : changed + " changed");
  if (read->trust != options_.trust) answer += "; trust takes effect after a restart";
  log::info("read {}", answer);
  return answer;
}

// Programs keep what they have beyond lower limits, and are granted no more until they have less.
void Server::change_limits(const LimitSettings& limits) {
  limits_.change(limits);
  tell_memory_wait();
  std::map<std::string, Quota::Membership> accounts;
  for (const Quota::Entry* each = quota_.account_after(""); each != nullptr; each = quota_.account_after(each->first)) {
    Quota::Membership none{.key = each->first, .name = {}, .limits = {}};
    accounts.emplace(each->first, std::move(none));
  }
  for (const auto& [id, client] : clients_) {
    auto memberships = limits_.memberships(id, client->pid, client->uid, client->domain, user_names_.of(client->uid));
    for (const protocol::Session& session : client->sessions) {
      memberships.push_back(limits_.membership(session, client->domain));
    }
    for (const Quota::Membership& each : memberships) {
      const auto [found, fresh] = accounts.emplace(each.key, each);
      if (!fresh && found->second.name.empty()) {
        found->second = each;
      } else if (!fresh) {
        lower(found->second, each);
      }
    }
    apply(limit::Join{id, std::move(memberships)});
  }
  for (const auto& [key, account] : accounts) apply(limit::Configure{account});
  follow_host();
  for (const auto& [id, client] : clients_) {
    bound_host(*client);
    publish_limits(*client);
    tighten(*client);  // what it was granted in advance may be too much
  }
  carry_out(apply(limit::Tick{}).outcome);
  limits_pass_.run();
}

}  // namespace rota::server
