#include "scheduler/server/trust_domain.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/nsfs.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "scheduler/base/descriptor.h"

namespace rota::server {
namespace {

// Unique texts; empty: it cannot be determined.
struct Namespaces {
  std::string user;
  std::string pid;
  bool known() const { return !user.empty() && !pid.empty(); }
  bool operator==(const Namespaces&) const = default;
};

std::string name_of(const struct stat& file) {
  return fmt::format("{}:{}", file.st_dev, file.st_ino);
}

std::string name_of_namespace(const std::string& process, const char* kind) {
  struct stat file{};
  return stat(fmt::format("/proc/{}/ns/{}", process, kind).c_str(), &file) == 0 ? name_of(file) : std::string();
}

Namespaces namespaces_of(const std::string& process) {
  return {name_of_namespace(process, "user"), name_of_namespace(process, "pid")};
}

const Namespaces& own() {
  static const Namespaces namespaces = namespaces_of("self");
  return namespaces;
}

bool is_alive(const Descriptor& process) {
  pollfd ended{process.get(), POLLIN, 0};
  return poll(&ended, 1, 0) == 0;
}

Namespaces namespaces_of(const Peer& peer) {
  // Its pid can belong to another process only if it is dead.
  if (peer.pid == 0) return {};
  const Namespaces namespaces = namespaces_of(std::to_string(peer.pid));
  return peer.process && !is_alive(peer.process) ? Namespaces() : namespaces;
}

// Who made the outermost user namespace between this process and rotad's own; nothing: that is not known.
std::optional<uid_t> maker_of_user_namespace(pid_t pid) {
  constexpr int kMostNested = 33;  // Linux has at most 32 levels
  Descriptor outermost(open(fmt::format("/proc/{}/ns/user", pid).c_str(), O_RDONLY | O_CLOEXEC));
  for (int level = 0; outermost && level < kMostNested; ++level) {
    Descriptor parent(ioctl(outermost.get(), NS_GET_PARENT));
    struct stat file{};
    if (!parent || fstat(parent.get(), &file) != 0) return std::nullopt;
    if (name_of(file) == own().user) {
      uid_t maker = 0;
      if (ioctl(outermost.get(), NS_GET_OWNER_UID, &maker) != 0) return std::nullopt;
      return maker;
    }
    outermost = std::move(parent);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Trust> parse_trust(const std::string& text) {
  if (text == "none") return Trust::kNone;
  if (text == "user") return Trust::kUser;
  if (text == "user-everywhere") return Trust::kUserEverywhere;
  if (text == "machine") return Trust::kMachine;
  return std::nullopt;
}

TrustDomain TrustDomain::of(const Peer& peer, Trust trust) {
  TrustDomain domain(peer.uid);
  if (trust == Trust::kMachine) domain.key_ = domain.payer_ = "machine";
  if (trust == Trust::kMachine || trust == Trust::kUserEverywhere) return domain;
  const Namespaces namespaces = namespaces_of(peer);
  domain.exchanges_memory_ = trust == Trust::kUser && namespaces.known() && peer.process;
  if (namespaces.known() && namespaces == own()) return domain;
  domain.key_ = namespaces.known() ? fmt::format("{}@{}/{}", peer.uid, namespaces.user, namespaces.pid)
                                   : fmt::format("{}@unseen", peer.uid);
  domain.payer_ = domain.key_;
  if (namespaces.known() && namespaces.user != own().user) {
    // Each container of an engine that runs as root is a payer of its own.
    if (const auto maker = maker_of_user_namespace(peer.pid); maker && *maker != 0)
      domain.payer_ = std::to_string(*maker);
  }
  return domain;
}

bool is_in_own_container(const Peer& peer, Trust trust) {
  if (trust == Trust::kMachine || trust == Trust::kUserEverywhere) return true;
  return !own().known() || namespaces_of(peer) == own();
}

}  // namespace rota::server
