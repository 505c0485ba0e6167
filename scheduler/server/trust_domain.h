// Which programs trust each other, according to the kernel and never to the program: those of one user in one container
// (a user namespace and a pid namespace), unless the administrator says otherwise. It is the unit of everything that
// one program may do to another: who sees whom, who joins whose session, who takes over whose memory, and how much of
// rotad a user may take. The roots of two containers are two.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "scheduler/server/peer.h"

namespace rota::server {

// rotad.toml's and the command line's `trust`.
enum class Trust {
  kNone,            // as kUser, but no program takes over memory that another has used
  kUser,            // one user in one container
  kUserEverywhere,  // one user, in whichever container
  kMachine,         // all programs
};
std::optional<Trust> parse_trust(const std::string& text);
inline constexpr const char* kTrusts = "user, user-everywhere, machine or none";

class TrustDomain {
 public:
  // A user in rotad's own container.
  TrustDomain(uid_t user) : key_(std::to_string(user)), payer_(key_) {}  // NOLINT(google-explicit-constructor)
  static TrustDomain of(const Peer& peer, Trust trust);

  // The same for all programs of the domain, and for no others. Without spaces.
  const std::string& key() const { return key_; }
  // Who is charged for what the domain takes of rotad and of the machine. A user can make any number of user
  // namespaces: together they get what the user gets.
  const std::string& payer() const { return payer_; }
  // Whether its programs take over each other's memory. Not if it is not known where they are.
  bool exchanges_memory() const { return exchanges_memory_; }

  bool operator==(const TrustDomain& other) const { return key_ == other.key_; }

 private:
  std::string key_;
  std::string payer_;
  bool exchanges_memory_ = true;
};

// Whether a peer is in the container in which rotad is, or `trust` makes that irrelevant: only there root, and the user
// and group that rotad runs as, are what they say.
bool is_in_own_container(const Peer& peer, Trust trust);

}  // namespace rota::server
