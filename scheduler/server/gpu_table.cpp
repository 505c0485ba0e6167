// One lock file per GPU, named by its UUID.
#include "scheduler/server/gpu_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "scheduler/server/decode.h"

namespace rota::server {

Result<std::uint32_t> GpuTable::add_client(const protocol::Uuid& uuid, const std::string& name, uid_t user) {
  std::uint32_t free = protocol::kMaxGpus;
  std::uint32_t all_free = 0;
  std::uint32_t of_user = 0;
  for (std::uint32_t i = 0; i < gpus_.size(); ++i) {
    if (gpus_[i] && !gpus_[i]->confirmed && gpus_[i]->first == user) ++of_user;
    if (!gpus_[i]) {
      ++all_free;
      if (free == protocol::kMaxGpus) free = i;
    } else if (gpus_[i]->uuid == uuid) {
      ++gpus_[i]->clients;
      return i;
    }
  }
  if (free == protocol::kMaxGpus)
    return Error{fmt::format("this rotad already serves {} GPUs, the most that it can", protocol::kMaxGpus)};
  if (of_user >= std::min<std::size_t>(protocol::kMaxGpus / 4, (all_free + 1) / 2)) {
    return Error{fmt::format(
        "this rotad serves {} GPUs that programs of user {} have named and NVML does not confirm, and no more of them: "
        "end some of these programs",
        of_user, user)};
  }
  const std::string text = uuid_text(uuid);
  const std::string path = fmt::format("{}/{}.lock", locks_.folder, text);
  auto lock = locks_.files ? LockFile::take_with_name(path, owner_, 0644) : LockFile::take_name(path);
  if (!lock) return lock.error();
  if (const auto* taken = std::get_if<LockFile::Taken>(&*lock)) {
    return Error{fmt::format("{} is managed by {}: use that (ROTA_SOCKET) or stop it", text, taken->owner)};
  }
  gpus_[free] =
      GpuEntry{.uuid = uuid, .name = name, .first = user, .clients = 1, .lock = std::move(std::get<LockFile>(*lock))};
  return free;
}

void GpuTable::confirm(std::uint32_t index) {
  if (index < gpus_.size() && gpus_[index]) gpus_[index]->confirmed = true;
}

void GpuTable::remove_client(std::uint32_t index) {
  if (--gpus_[index]->clients == 0) gpus_[index].reset();
}

const GpuEntry* GpuTable::at(std::uint32_t index) const {
  return index < gpus_.size() && gpus_[index] ? &*gpus_[index] : nullptr;
}

}  // namespace rota::server
