// See objects.h.
#include "tools/rota/trace/objects.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace rota::tool {
namespace {

// Calls overlap by microseconds; an address is not handed out many times within one call.
constexpr std::size_t kMostVersions = 4;

}  // namespace

ObjectNames::Object* ObjectNames::find(Versions& versions, const Moment& moment) {
  for (std::size_t i = versions.size(); i-- > 0;) {
    if (known_to(versions[i], moment)) return &versions[i];
  }
  // Seen by another thread before its creation returned: the creator has passed it on meanwhile.
  return versions.empty() ? nullptr : &versions.back();
}

ObjectNames::Object& ObjectNames::add(const Handle& handle, Versions& versions, const Moment* made_by) {
  if (versions.size() == kMostVersions) versions.erase(versions.begin());
  Object& object = versions.emplace_back();
  object.number = ++numbers_[handle.handle_class];
  if (made_by != nullptr) {
    object.thread = made_by->thread;
    object.born_begin = made_by->begin_ns;
    object.born_end = made_by->end_ns;
  }
  return object;
}

std::string ObjectNames::handle(const Handle& handle, const Moment& moment, bool written, const Handle* parent) {
  Versions& versions = objects_[handle.handle_class][handle.value];
  Object* object = find(versions, moment);
  const bool reappears = object != nullptr && written && object->gone <= moment.begin_ns;
  if (object == nullptr || reappears) {
    object = &add(handle, versions, reappears ? &moment : nullptr);
    if (parent != nullptr) {
      Versions& above = objects_[parent->handle_class][parent->value];
      if (Object* const owner = find(above, moment)) owner->children.push_back(handle);
    }
  }
  return fmt::format("{}#{}", handle.handle_class, object->number);
}

void ObjectNames::made(const Handle& handle, const Moment& moment) {
  Versions& versions = objects_[handle.handle_class][handle.value];
  if (!versions.empty() && inside(versions.back(), moment)) return;
  add(handle, versions, &moment);
}

void ObjectNames::ended(const Handle& handle, const Moment& moment) {
  Object* const object = find(objects_[handle.handle_class][handle.value], moment);
  if (object == nullptr) return;
  object->gone = std::min(object->gone, moment.end_ns);
  for (const Handle& child : std::exchange(object->children, {})) ended(child, moment);
}

void ObjectNames::set_label(const Handle& handle, const Moment& moment, const std::string& label) {
  Versions& versions = objects_[handle.handle_class][handle.value];
  Object* object = find(versions, moment);
  if (object == nullptr) object = &add(handle, versions, nullptr);
  if (!object->label.empty() && object->label != label) object = &add(handle, versions, &moment);
  object->label = label;
}

std::string ObjectNames::label(const Handle& handle, const Moment& moment) {
  const Object* const object = find(objects_[handle.handle_class][handle.value], moment);
  return object == nullptr ? std::string() : object->label;
}

bool ObjectNames::known(const Handle& handle) const {
  const auto all = objects_.find(handle.handle_class);
  if (all == objects_.end()) return false;
  const auto versions = all->second.find(handle.value);
  return versions != all->second.end() && !versions->second.empty();
}

std::string ObjectNames::symbol(std::uint64_t address) const {
  const auto found = symbols_.find(address);
  return found == symbols_.end() ? std::string() : found->second;
}

ObjectNames::Memory* ObjectNames::find_memory(std::uint64_t address, const Moment& moment) {
  auto after = memory_.upper_bound(address);
  if (after == memory_.begin()) return nullptr;
  Memory* const memory = std::prev(after)->second.get();
  if (address - memory->address >= memory->bytes) return nullptr;
  if (known_to(*memory, moment)) return memory;
  for (const auto& before : memory->before) {
    if (address >= before->address && address - before->address < before->bytes) return before.get();
  }
  return memory;
}

std::shared_ptr<ObjectNames::Memory> ObjectNames::add_memory(std::uint64_t address, std::uint64_t bytes, bool host) {
  auto memory = std::make_shared<Memory>();
  memory->address = address;
  memory->bytes = std::max<std::uint64_t>(bytes, 1);
  if (memory->bytes > ~address) memory->bytes = std::max<std::uint64_t>(~address, 1);  // a damaged record
  memory->host = host;
  memory->number = ++numbers_[host ? "hostptr" : "dptr"];
  // Overlapping memory has been freed, or a record was wrong.
  auto first = memory_.upper_bound(address);
  if (first != memory_.begin() && address - std::prev(first)->first < std::prev(first)->second->bytes) --first;
  while (first != memory_.end() && (first->first < address || first->first - address < memory->bytes)) {
    count(*first->second, false);
    first->second->before.clear();
    memory->before.push_back(std::move(first->second));
    first = memory_.erase(first);
  }
  return memory_[address] = memory;
}

void ObjectNames::count(Memory& memory, bool lives) {
  if (memory.counted == lives) return;
  memory.counted = lives;
  std::uint64_t& allocations = memory.host ? live_.host_allocations : live_.device_allocations;
  std::uint64_t& bytes = memory.host ? live_.host_bytes : live_.device_bytes;
  allocations += lives ? 1 : std::uint64_t(-1);
  bytes += lives ? memory.bytes : 0 - memory.bytes;
}

ObjectNames::Live ObjectNames::live() const {
  Live live = live_;
  for (const auto& [kind, all] : objects_) {
    for (const auto& [value, versions] : all) {
      for (const Object& object : versions) {
        if (object.born_end != 0 && object.gone == ~0ULL) ++live.objects[kind];
      }
    }
  }
  return live;
}

void ObjectNames::memory_made(std::uint64_t address, std::uint64_t bytes, bool host, bool fresh, const Moment& moment,
                              bool own) {
  if (address == 0) return;
  Memory* const known = find_memory(address, moment);
  if (known != nullptr && inside(*known, moment) && known->born_end != 0) {
    // The runtime's call did not say how much it asks the driver for (cudaMalloc3D).
    if (own && !known->counted && bytes > known->bytes) known->bytes = bytes;
    if (own && known->gone == ~0ULL) count(*known, true);
    return;
  }
  if (known != nullptr && !fresh && known->gone > moment.begin_ns) return;
  const auto memory = add_memory(address, bytes, host);
  memory->thread = moment.thread;
  memory->born_begin = moment.begin_ns;
  memory->born_end = moment.end_ns;
  if (own && bytes != 0) count(*memory, true);
}

void ObjectNames::memory_freed(std::uint64_t address, const Moment& moment) {
  Memory* const memory = find_memory(address, moment);
  if (memory == nullptr || memory->address != address) return;
  memory->gone = std::min(memory->gone, moment.end_ns);
  count(*memory, false);
}

std::string ObjectNames::memory(std::uint64_t address, const Moment& moment, bool device, bool written) {
  const Memory* memory = find_memory(address, moment);
  // A host address in freed memory gets no name.
  if (memory != nullptr && !device && memory->gone <= moment.begin_ns) memory = nullptr;
  if (memory == nullptr) {
    if (!device || !written) return {};
    memory = add_memory(address, 1, false).get();
  }
  const std::uint64_t offset = address - memory->address;
  const char* const name = memory->host ? "hostptr" : "dptr";
  return offset == 0 ? fmt::format("{}#{}", name, memory->number)
                     : fmt::format("{}#{}+0x{:x}", name, memory->number, offset);
}

}  // namespace rota::tool
