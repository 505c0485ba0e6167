// The GPUs that this daemon manages at the moment: UUID to index, each under a lock that excludes other daemons.
//
// A client can name GPUs that do not exist, and where NVML is missing nothing tells them from others. So a user has a
// budget of GPUs that nothing confirms: a quarter of all, and never more than half of what is still free, so that
// users who come later find some.
#pragma once

#include <sys/types.h>

#include <array>
#include <optional>
#include <string>

#include "scheduler/protocol/protocol.h"
#include "scheduler/server/lock_file.h"

namespace rota::server {

struct GpuEntry {
  protocol::Uuid uuid;
  std::string name;
  uid_t first = 0;         // whose client named it first: it counts in that user's budget
  bool confirmed = false;  // the driver knows it
  std::uint32_t clients = 0;
  LockFile lock;
};

class GpuTable {
 public:
  // `owner` is what the lock files say about this daemon.
  GpuTable(LockPlace locks, std::string owner) : locks_(std::move(locks)), owner_(std::move(owner)) {}

  // The index of the GPU for one more client; the first client takes the GPU's lock. The error is for the client:
  // another daemon has the GPU, or there is no room for one more, or not for one of this user's.
  Result<std::uint32_t> add_client(const protocol::Uuid& uuid, const std::string& name, uid_t user);
  // NVML knows the GPU.
  void confirm(std::uint32_t index);
  // With its last client the GPU is removed and its lock released.
  void remove_client(std::uint32_t index);
  // Nothing where no GPU has this index now.
  const GpuEntry* at(std::uint32_t index) const;

 private:
  LockPlace locks_;
  std::string owner_;
  std::array<std::optional<GpuEntry>, protocol::kMaxGpus> gpus_;
};

}  // namespace rota::server
