// The GPUs that this daemon manages at the moment: UUID to index, each under a lock that excludes other daemons.
//
// Programs say how large a GPU is, and may lie. If NVML knows the GPU, a figure that differs from NVML's by more than
// an eighth does not count (CUDA and NVML do not agree to the byte about what the driver sets aside). Otherwise what
// root or rotad's own user says counts, and if neither says anything the figure that the most users give, of two the
// larger one. Too small a figure would refuse memory that is there; with one that is too large the driver refuses.
//
// A client can name GPUs that do not exist, and where NVML is missing nothing tells them from others. So a user has a
// budget of GPUs that nothing confirms: a quarter of all, and never more than half of what is still free, so that
// users who come later find some.
#pragma once

#include <sys/types.h>

#include <array>
#include <asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "scheduler/protocol/protocol.h"
#include "scheduler/server/lock_door.h"
#include "scheduler/server/lock_file.h"

namespace rota::server {

struct GpuEntry {
  Uuid uuid;
  std::string name;
  std::uint32_t number = 0;                         // nvidia-smi's, by NVML or else by the first program
  std::string first;                                // whose client named it first: it counts in that payer's budget
  bool confirmed = false;                           // the driver knows it
  std::uint64_t measured_bytes = 0;                 // its size by NVML; 0: not known
  std::map<std::string, std::uint64_t> said_bytes;  // by programs, the first of each user (TrustDomain::payer)
  std::uint64_t trusted_bytes = 0;                  // by the first program of root or of rotad's user; 0: not known
  bool contradicted = false;                        // some program has said something else than what counted then
  std::uint32_t clients = 0;
  std::unique_ptr<LockDoor> door;  // destroyed last: it tells others that the GPU is free
  LockFile lock;
};

class GpuTable {
 public:
  // `owner` is what the lock files say about this daemon. `socket`, `machine`: what is said at the locks' doors.
  // `asked`: root, or another rotad of this user, asks for the GPUs.
  GpuTable(asio::io_context& io, Workers& workers, LockPlace locks, std::string owner, std::string socket, bool machine,
           std::function<void(uid_t)> asked)
      : io_(io),
        workers_(workers),
        locks_(std::move(locks)),
        owner_(std::move(owner)),
        socket_(std::move(socket)),
        machine_(machine),
        asked_(std::move(asked)) {}

  // The path of a GPU's lock (LockFile).
  std::string lock_of(const Uuid& uuid) const;
  // Takes the lock, without a client so far; or says who else has it. The error: the table or this user's part of it is
  // full, or the lock cannot be taken.
  Result<std::optional<LockFile::Taken>> take(const Uuid& uuid, const std::string& payer);
  // NVML knows the GPU, and says how large it is and which number it has.
  void confirm(std::uint32_t index, std::uint64_t bytes, std::optional<std::uint32_t> number = {});
  // The number that people use: nvidia-smi's.
  std::uint32_t number(std::uint32_t index) const;
  // A program of this user says how large it is; `trusted`: of root or of rotad's own user. Returns whether this is the
  // first time that a program contradicts what counts.
  bool says(std::uint32_t index, const std::string& payer, std::uint64_t bytes, bool trusted = false);
  // How large it is, as far as is known.
  std::uint64_t bytes(std::uint32_t index) const;
  // The least that anybody says, or NVML: what is assumed of all contexts must not grow with a claim.
  std::uint64_t least_bytes(std::uint32_t index) const;
  bool has(const Uuid& uuid) const { return index_of(uuid).has_value(); }
  // Gives it back unless it has clients.
  void drop(const Uuid& uuid);
  // From now on the lock of this GPU stays here, whether or not it has clients. Returns whether it is here already:
  // otherwise another daemon has it, and this is to be tried again.
  bool keep(const Uuid& uuid);
  // From now on no lock stays here without clients.
  void keep_none() { kept_.clear(); }
  // The index of a GPU that was taken, for one more client.
  std::uint32_t add_client(const protocol::AddGpu& gpu);
  // With its last client the GPU is removed and its lock released. Returns whether that was the last.
  bool remove_client(std::uint32_t index);
  // Nothing where no GPU has this index now.
  const GpuEntry* at(std::uint32_t index) const;
  // Creates lock files again that something has removed, with their folder; names hold the locks until then. Logs what
  // it did, and each new reason why it could not.
  void keep_locks();
  // Tells those that have asked that these GPUs are about to be free.
  void tell(const protocol::DoorYielded& yielded);

 private:
  // A lock, and what answers those who ask for it.
  struct Lock {
    std::unique_ptr<LockDoor> door;  // destroyed last, as in GpuEntry
    LockFile file;
  };
  std::optional<std::uint32_t> index_of(const Uuid& uuid) const;
  Result<std::variant<Lock, LockFile::Taken>> lock(const Uuid& uuid);
  void remove(std::uint32_t index);
  Result<bool> renew_place();
  protocol::DoorHolder holder_of(const Uuid& uuid) const;

  asio::io_context& io_;
  Workers& workers_;
  LockPlace locks_;
  std::string lock_problem_;  // the last that was logged
  std::string owner_;
  std::string socket_;
  bool machine_;
  std::function<void(uid_t)> asked_;
  std::array<std::optional<GpuEntry>, protocol::kMaxGpus> gpus_;
  // GPUs that stay here; with their locks while they have no clients.
  std::map<Uuid, std::optional<Lock>> kept_;
};

}  // namespace rota::server
