// Which limits apply to a client: those of its process, session, user and cgroup, and what is left of the host's
// memory.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/limits/quota.h"
#include "scheduler/protocol/protocol.h"
#include "scheduler/server/config.h"
#include "scheduler/server/trust_domain.h"

namespace rota::server {

// Lines for the log: names in the configuration that do not exist, and settings that publish what others hide.
std::vector<std::string> warnings_about(const Configuration& configuration);

class LimitBook {
 public:
  // Tests put `root` in front of /proc and /sys.
  explicit LimitBook(LimitSettings settings, std::string root = {});

  // The settings of a configuration that has been read again.
  void change(LimitSettings settings);
  const LimitSettings& settings() const { return settings_; }

  // The accounts to which this process is charged from its hello on. `pid` 0: it cannot be seen, so its cgroup is not
  // known. `user`: the user's name, as UserNames has it; empty: its number.
  std::vector<scheduler::Quota::Membership> memberships(scheduler::ClientId client, pid_t pid, uid_t uid,
                                                        const TrustDomain& domain, std::string user = {}) const;
  // And those from the moment at which it names its session.
  scheduler::Quota::Membership membership(const protocol::Session& session, const TrustDomain& domain) const;
  // Calls `set` for the host and for cgroups with a memory limit, where what is left now changes their limits.
  void follow_host(const scheduler::Quota& quota,
                   const std::function<void(const std::string& account, const scheduler::Limits& limits)>& set) const;

 private:
  std::vector<scheduler::Quota::Membership> cgroups_of(pid_t pid) const;
  std::optional<std::uint64_t> left_in_cgroup(const std::string& path) const;

  LimitSettings settings_;
  const std::string root_;
  // Users that the configuration names, by number: looked up once for each reading of it, since that may query a
  // server.
  std::map<uid_t, std::string> named_;
};

}  // namespace rota::server
