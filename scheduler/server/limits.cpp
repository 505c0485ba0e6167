#include "scheduler/server/limits.h"

#include <fmt/format.h>
#include <pwd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "scheduler/base/host_memory.h"
#include "scheduler/protocol/session_list.h"

namespace rota::server {
namespace {

using scheduler::Limits;
using scheduler::Quota;

const std::string kHost = "host";
const std::string kCgroup = "cgroup ";

// The rest is for everything else on the machine or in the cgroup. A judgment.
std::uint64_t usable(std::uint64_t left) {
  return left / 10 * 9;
}

std::optional<uid_t> number_of(const std::string& name) {
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 16384> text{};
  if (getpwnam_r(name.c_str(), &entry, text.data(), text.size(), &found) != 0 || found == nullptr) return std::nullopt;
  return found->pw_uid;
}

// An entry of rotad.toml, or the account's line in a table of it; the account's name says which line.
Quota::Remedy raise_in_file(const std::string& entry) {
  return {.device = fmt::format("raise gpu in {} of rotad.toml", entry),
          .host = fmt::format("raise host in {} of rotad.toml", entry)};
}

// For host memory that the machine or a cgroup does not have.
Quota::Remedy free_host(const std::string& where) {
  return {.device = {}, .host = fmt::format("free memory {}, or let programs need less", where)};
}

bool is_within(const std::string& path, const std::string& above) {
  return path == above || above == "/" || (path.starts_with(above) && path[above.size()] == '/');
}

}  // namespace

std::vector<std::string> warnings_about(const Configuration& configuration) {
  std::vector<std::string> lines;
  for (const auto& [name, unused] : configuration.limits.users) {
    if (name.find_first_not_of("0123456789") == std::string::npos || number_of(name)) continue;
    lines.push_back(
        fmt::format("{}: there is no user '{}' on this machine, so its limits apply to nobody until it exists and the "
                    "file is read again",
                    configuration.file, name));
  }
  // A cgroup may come later, with its service or job.
  for (const auto& [path, unused] : configuration.limits.cgroups) {
    const auto exists = [&](const Cgroup& hierarchy) {
      std::error_code ignored;
      return std::filesystem::is_directory(hierarchy.mount + path, ignored);
    };
    if (std::ranges::any_of(memory_hierarchies(), exists)) continue;
    lines.push_back(
        fmt::format("{}: there is no cgroup '{}' on this machine now, so its limits apply to nobody until there is",
                    configuration.file, path));
  }
  const MetricsSettings& metrics = configuration.metrics;
  if (configuration.visibility == Visibility::kOwn && (!metrics.listen.empty() || !metrics.textfile.empty())) {
    lines.push_back(
        fmt::format("{}: visibility is \"own\", but whoever reaches {} reads the names of all users and sessions there",
                    configuration.file, metrics.listen.empty() ? metrics.textfile : metrics.listen));
  }
  return lines;
}

LimitBook::LimitBook(LimitSettings settings, std::string root) : root_(std::move(root)) {
  change(std::move(settings));
}

void LimitBook::change(LimitSettings settings) {
  settings_ = std::move(settings);
  named_.clear();
  for (const auto& [name, unused] : settings_.users) {
    if (const auto user = number_of(name)) named_.emplace(*user, name);
  }
}

std::vector<Quota::Membership> LimitBook::memberships(scheduler::ClientId client, pid_t pid, uid_t uid,
                                                      const TrustDomain& domain, std::string user_name) const {
  std::vector<Quota::Membership> all;
  // Limited further by follow_host().
  all.push_back({kHost, "the host", {}, free_host("of the host"), true});
  if (settings_.host_budget) {
    all.back().limits.host = *settings_.host_budget;
    all.back().remedy.host = "raise limits.host_memory in rotad.toml, or free host memory";
  }
  if (settings_.process != Limits{}) {
    all.push_back({fmt::format("process {}", client), fmt::format("process {}", pid), settings_.process,
                   raise_in_file("limits.process")});
  }
  Limits user = settings_.user;
  auto named = settings_.users.find(std::to_string(uid));
  if (user_name.empty()) user_name = std::to_string(uid);
  if (const auto found = named_.find(uid); named == settings_.users.end() && found != named_.end()) {
    user_name = found->second;
    named = settings_.users.find(user_name);
  }
  const bool has_line = named != settings_.users.end();
  if (has_line) user = named->second;
  if (user != Limits{}) {
    all.push_back({fmt::format("user {}", domain.payer()),
                   user_name.starts_with("uid ") ? user_name : "user " + user_name, user,
                   raise_in_file(has_line ? "limits.users" : "limits.user")});
  }
  for (Quota::Membership& cgroup : cgroups_of(pid)) all.push_back(std::move(cgroup));
  return all;
}

// The cgroups that rotad.toml limits, and those with a memory limit, into which memory that is evicted from a GPU has
// to fit.
std::vector<Quota::Membership> LimitBook::cgroups_of(pid_t pid) const {
  std::vector<Quota::Membership> all;
  if (pid == 0) return all;
  const auto add = [&](const std::string& path, const Limits& limits, const Quota::Remedy& remedy) {
    const std::string key = kCgroup + (path.empty() ? "/" : path);
    if (std::ranges::find(all, key, &Quota::Membership::key) == all.end())
      all.push_back({key, key, limits, remedy, true});
  };
  for (const Cgroup& own : rota::cgroups_of(std::to_string(pid), root_)) {
    for (const auto& [path, limits] : settings_.cgroups) {
      if (!is_within(own.path, path)) continue;
      Quota::Remedy remedy = raise_in_file("limits.cgroups");
      if (limits.host == Limits{}.host) remedy.host = free_host("in it").host;
      add(path, limits, remedy);
    }
    for (auto cgroup = std::optional(own); cgroup; cgroup = parent_of(*cgroup)) {
      if (left_in(*cgroup)) add(cgroup->path, {}, free_host("in it"));
    }
  }
  return all;
}

Quota::Membership LimitBook::membership(const protocol::Session& session, const TrustDomain& domain) const {
  Limits limits{.device = session.device_bytes, .host = session.host_bytes};
  limits.device = std::min(limits.device, settings_.session.device);
  limits.host = std::min(limits.host, settings_.session.host);
  // The lower limit is the one to raise.
  Quota::Remedy remedy = raise_in_file("limits.session");
  if (session.device_bytes <= settings_.session.device) {
    remedy.device = protocol::is_of_slurm(session.id) ? protocol::kMoreFromSlurm : "raise `rota run --gpu-mem`";
  }
  if (session.host_bytes <= settings_.session.host) remedy.host = "raise `rota run --host-mem`";
  return {fmt::format("session {} {}", domain.key(), session.id),
          fmt::format("session {}", session.name[0] == '\0' ? session.id : session.name), limits, remedy};
}

// Evicted memory is no longer available on the host although it is reserved, and its size is not known. So while
// something is reserved, the limit falls when others take host memory but rises only to what is left, as if all that is
// reserved were still to be evicted. Memory that programs could give back at once counts as left.
void LimitBook::follow_host(const Quota& quota,
                            const std::function<void(const std::string& account, const Limits& limits)>& set) const {
  for (const Quota::Entry* entry : quota.shared_accounts()) {
    const auto& [key, account] = *entry;
    std::uint64_t most = UINT64_MAX;
    std::optional<std::uint64_t> left;
    if (key == kHost) {
      left = available_to_all(root_);
      if (settings_.host_budget) most = *settings_.host_budget;
    } else if (key.starts_with(kCgroup)) {
      const std::string path = key.substr(kCgroup.size());
      if (const auto configured = settings_.cgroups.find(path); configured != settings_.cgroups.end()) {
        most = configured->second.host;
      }
      left = left_in_cgroup(path);
    }
    if (!left) {
      // As configured; it may have been lower while less was left.
      Limits limits = account.limits;
      limits.host = most;
      if (key != kHost && limits != account.limits) set(key, limits);
      continue;
    }
    *left += std::min(account.host.spare, UINT64_MAX - *left);
    const std::uint64_t need = quota.host_bytes(account);
    Limits limits = account.limits;
    const std::uint64_t now = usable(*left) > UINT64_MAX - need ? UINT64_MAX : need + usable(*left);
    limits.host = std::min(most, need == 0 ? now : std::max(std::min(limits.host, now), usable(*left)));
    if (limits != account.limits) set(key, limits);
  }
}

// Of either version's hierarchy.
std::optional<std::uint64_t> LimitBook::left_in_cgroup(const std::string& path) const {
  std::optional<std::uint64_t> left;
  for (const Cgroup& hierarchy : memory_hierarchies(root_)) {
    Cgroup cgroup = hierarchy;
    cgroup.path = path == "/" ? "" : path;
    if (const auto here = left_in(cgroup)) left = left ? std::min(*left, *here) : *here;
  }
  return left;
}

}  // namespace rota::server
