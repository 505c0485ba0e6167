// One lock file per GPU, named by its UUID.
#include "scheduler/server/gpu_table.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "scheduler/server/decode.h"
#include "scheduler/server/log.h"

namespace rota::server {

namespace {

constexpr mode_t kLockMode = 0644;

}  // namespace

std::string GpuTable::lock_of(const Uuid& uuid) const {
  return fmt::format("{}/{}.lock", locks_.folder, uuid_text(uuid));
}

std::optional<std::uint32_t> GpuTable::index_of(const Uuid& uuid) const {
  for (std::uint32_t i = 0; i < gpus_.size(); ++i) {
    if (gpus_[i] && gpus_[i]->uuid == uuid) return i;
  }
  return std::nullopt;
}

Result<std::optional<LockFile::Taken>> GpuTable::take(const Uuid& uuid, const std::string& payer) {
  if (index_of(uuid)) return std::optional<LockFile::Taken>();
  const auto free = std::ranges::find_if(gpus_, [](const auto& entry) { return !entry; });
  if (free == gpus_.end())
    return Error{fmt::format("this rotad already serves {} GPUs, the most that it can", protocol::kMaxGpus)};
  const auto all_free = std::ranges::count_if(gpus_, [](const auto& entry) { return !entry; });
  const auto of_user = std::ranges::count_if(
      gpus_, [&](const auto& entry) { return entry && !entry->confirmed && entry->first == payer; });
  if (of_user >= std::min<std::ptrdiff_t>(protocol::kMaxGpus / 4, (all_free + 1) / 2)) {
    return Error{fmt::format(
        "this rotad serves {} GPUs that programs of user {} have named and NVML does not confirm, and no more of them: "
        "end some of these programs",
        of_user, payer)};
  }
  Lock own;
  if (const auto kept = kept_.find(uuid); kept != kept_.end() && kept->second) {
    own = std::move(*std::exchange(kept->second, std::nullopt));
  } else {
    auto fresh = lock(uuid);
    if (!fresh) return fresh.error();
    if (auto* taken = std::get_if<LockFile::Taken>(&*fresh)) return std::optional(std::move(*taken));
    own = std::move(std::get<Lock>(*fresh));
  }
  GpuEntry entry{.uuid = uuid,
                 .name = {},
                 .first = payer,
                 .said_bytes = {},
                 .clients = 0,
                 .door = std::move(own.door),
                 .lock = std::move(own.file)};
  free->emplace(std::move(entry));
  return std::optional<LockFile::Taken>();
}

Result<std::variant<GpuTable::Lock, LockFile::Taken>> GpuTable::lock(const Uuid& uuid) {
  using Either = std::variant<Lock, LockFile::Taken>;
  if (const auto place = renew_place(); !place) return place.error();
  const std::string path = lock_of(uuid);
  auto lock = locks_.files ? LockFile::take_with_name(path, owner_, kLockMode) : LockFile::take_name(path);
  if (!lock) return lock.error();
  if (auto* taken = std::get_if<LockFile::Taken>(&*lock)) return Either(std::move(*taken));
  Lock own{.door = nullptr, .file = std::move(std::get<LockFile>(*lock))};
  if (Descriptor name(fcntl(own.file.name_socket(), F_DUPFD_CLOEXEC, 0)); name) {
    own.door =
        std::make_unique<LockDoor>(io_, std::move(name), workers_, [this, uuid] { return holder_of(uuid); }, asked_);
  }
  return Either(std::move(own));
}

bool GpuTable::keep(const Uuid& uuid) {
  std::optional<Lock>& kept = kept_[uuid];
  if (kept || has(uuid)) return true;
  auto own = lock(uuid);
  if (!own || !std::holds_alternative<Lock>(*own)) return false;
  kept = std::move(std::get<Lock>(*own));
  return true;
}

void GpuTable::remove(std::uint32_t index) {
  GpuEntry& entry = *gpus_[index];
  if (const auto kept = kept_.find(entry.uuid); kept != kept_.end()) {
    kept->second = Lock{.door = std::move(entry.door), .file = std::move(entry.lock)};
  }
  gpus_[index].reset();
}

Result<bool> GpuTable::renew_place() {
  auto made = renew(locks_);
  if (made && *made) log::info("created the lock folder {} again, which had been removed", locks_.folder);
  return made;
}

void GpuTable::keep_locks() {
  std::string problem;
  const auto keep_lock = [&](const Uuid& uuid, LockFile& lock) {
    if (!lock.has_file() || lock.is_there()) return;
    const auto place = renew_place();
    const auto other = place && locks_.files
                           ? lock.make_again(owner_, kLockMode)
                           : Result<std::optional<LockFile::Taken>>(
                                 place ? Error{fmt::format("{} is gone", locks_.folder)} : place.error());
    if (other && !*other) return log::info("created the lock file {} again, which had been removed", lock_of(uuid));
    problem = fmt::format("the lock file {} is gone, and rotads of other containers may take the GPU: {}",
                          lock_of(uuid), other ? (*other)->owner + " has made another" : other.error().text);
  };
  for (std::optional<GpuEntry>& entry : gpus_) {
    if (entry) keep_lock(entry->uuid, entry->lock);
  }
  for (auto& [uuid, lock] : kept_) {
    if (lock) keep_lock(uuid, lock->file);
  }
  if (std::exchange(lock_problem_, problem) != problem && !problem.empty()) log::warn("{}", problem);
}

void GpuTable::confirm(std::uint32_t index, std::uint64_t bytes, std::optional<std::uint32_t> number) {
  if (index >= gpus_.size() || !gpus_[index]) return;
  gpus_[index]->confirmed = true;
  gpus_[index]->measured_bytes = bytes;
  if (number) gpus_[index]->number = *number;
}

std::uint32_t GpuTable::number(std::uint32_t index) const {
  const GpuEntry* entry = at(index);
  return entry != nullptr ? entry->number : index;
}

bool GpuTable::says(std::uint32_t index, const std::string& payer, std::uint64_t bytes, bool trusted) {
  GpuEntry& entry = *gpus_[index];
  if (trusted && entry.trusted_bytes == 0) entry.trusted_bytes = bytes;
  entry.said_bytes.emplace(payer, bytes);
  return bytes != this->bytes(index) && !std::exchange(entry.contradicted, true);
}

std::uint64_t GpuTable::bytes(std::uint32_t index) const {
  const GpuEntry& entry = *gpus_[index];
  const std::uint64_t measured = entry.measured_bytes;
  if (measured == 0 && entry.trusted_bytes != 0) return entry.trusted_bytes;
  std::map<std::uint64_t, std::size_t> users;
  for (const auto& [payer, bytes] : entry.said_bytes) {
    if (measured == 0 || (bytes >= measured - measured / 8 && bytes <= measured + measured / 8)) ++users[bytes];
  }
  std::uint64_t most = measured;
  std::size_t votes = 0;
  for (const auto& [bytes, count] : users) {  // ascending
    if (count >= votes) most = bytes;
    votes = std::max(votes, count);
  }
  return most;
}

std::uint64_t GpuTable::least_bytes(std::uint32_t index) const {
  const GpuEntry& entry = *gpus_[index];
  if (entry.measured_bytes != 0) return entry.measured_bytes;
  if (entry.trusted_bytes != 0) return entry.trusted_bytes;
  std::uint64_t least = bytes(index);
  for (const auto& [payer, bytes] : entry.said_bytes) least = std::min(least, bytes);
  return least;
}

void GpuTable::drop(const Uuid& uuid) {
  const auto index = index_of(uuid);
  if (index && gpus_[*index]->clients == 0) remove(*index);
}

std::uint32_t GpuTable::add_client(const protocol::AddGpu& gpu) {
  const std::uint32_t index = *index_of(gpu.uuid);
  GpuEntry& entry = *gpus_[index];
  if (entry.name.empty()) {
    entry.name = gpu.name;
    if (!entry.confirmed) entry.number = gpu.number;
  }
  ++entry.clients;
  return index;
}

bool GpuTable::remove_client(std::uint32_t index) {
  if (--gpus_[index]->clients != 0) return false;
  remove(index);
  return true;
}

const GpuEntry* GpuTable::at(std::uint32_t index) const {
  return index < gpus_.size() && gpus_[index] ? &*gpus_[index] : nullptr;
}

protocol::DoorHolder GpuTable::holder_of(const Uuid& uuid) const {
  protocol::DoorHolder holder{.machine = machine_ ? 1U : 0U, .programs = 0, .uuid = uuid, .name = {}, .socket = {}};
  if (const auto index = index_of(uuid)) {
    holder.programs = gpus_[*index]->clients;
    set_text(holder.name, gpus_[*index]->name);
  }
  set_text(holder.socket, socket_);
  return holder;
}

void GpuTable::tell(const protocol::DoorYielded& yielded) {
  for (const std::optional<GpuEntry>& entry : gpus_) {
    if (entry && entry->door) entry->door->tell(yielded);
  }
}

}  // namespace rota::server
