// The GPUs that this daemon manages at the moment: UUID to index, each under a lock that excludes other daemons.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "scheduler/protocol/protocol.h"
#include "scheduler/server/lock_file.h"

namespace rota::server {

struct GpuEntry {
  protocol::Uuid uuid;
  std::string name;
  std::uint32_t clients = 0;
  LockFile lock;
};

class GpuTable {
 public:
  // `owner` is what the lock files say about this daemon.
  GpuTable(LockPlace locks, std::string owner) : locks_(std::move(locks)), owner_(std::move(owner)) {}

  // The index of the GPU for one more client; the first client takes the GPU's lock. The error is for the client:
  // another daemon has the GPU, or there is no room.
  Result<std::uint32_t> add_client(const protocol::Uuid& uuid, const std::string& name);
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
