#include "runtime/account/objects.h"

#include <mutex>
#include <unordered_map>

#include "runtime/account/account.h"

namespace rota::account {
namespace objects {
namespace {

struct Living {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, Owner> owners;  // by handle
};
// Never freed: other threads may be inside a call while the process exits.
constinit Living* living = nullptr;

}  // namespace

void forget() {
  living = new Living;
}

void made(std::uint64_t handle, Owner owner) noexcept {
  if (living == nullptr || handle == 0 || owner.context == 0) return;
  const std::lock_guard lock(living->mutex);
  try {
    living->owners.insert_or_assign(handle, owner);
  } catch (...) {
  }
}

std::optional<Owner> ends(std::uint64_t handle) noexcept {
  if (living == nullptr) return std::nullopt;
  const std::lock_guard lock(living->mutex);
  const auto found = living->owners.find(handle);
  if (found == living->owners.end()) return std::nullopt;
  const Owner owner = found->second;
  living->owners.erase(found);
  return owner;
}

void context_ended(std::uint64_t context) noexcept {
  Header* const header = wanted() ? account::header() : nullptr;
  if (living == nullptr || header == nullptr || context == 0) return;
  const std::lock_guard lock(living->mutex);
  std::erase_if(living->owners, [&](const auto& entry) {
    const Owner& owner = entry.second;
    if (owner.context != context) return false;
    header->gone_with_context[static_cast<std::size_t>(owner.made_by)].fetch_add(1, std::memory_order_relaxed);
    return true;
  });
}

}  // namespace objects

void context_ended(const void* context) noexcept {
  objects::context_ended(reinterpret_cast<std::uintptr_t>(context));
}

}  // namespace rota::account
