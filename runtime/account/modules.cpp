// Whose code allocates: the nearest caller that is neither CUDA's nor rota's.
#include <link.h>
#include <unwind.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>
#include <vector>

#include "runtime/account/account.h"

namespace rota::account {

[[gnu::tls_model("initial-exec")]] constinit thread_local ModuleNumber allocating_module = 0;

namespace {

// A module that passes calls on: its caller is searched for.
constexpr ModuleNumber kPassesOn = 0xffff;
constexpr int kMostFrames = 64;

struct Range {
  std::uintptr_t begin;
  std::uintptr_t end;
  ModuleNumber module;
};

struct Known {
  std::mutex mutex;
  std::vector<Range> ranges;  // sorted
  const Header* header = nullptr;
  unsigned long long unloads = 0;  // that the loader had made
};
// Never freed: other threads may be inside a call while the process exits.
constinit Known* known = nullptr;

bool passes_on(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') == std::string_view::npos ? 0 : path.rfind('/') + 1);
  return name.starts_with("libcuda.so") || name.starts_with("libcudart.so") || name.starts_with("librota");
}

// How many libraries have been unloaded so far. Asked with each frame of a walk, which costs 5 to 10 ns of its 0.2 us:
// too little to keep the answer for.
unsigned long long unloads() {
  unsigned long long count = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        *static_cast<unsigned long long*>(to) = info->dlpi_subs;
        return 1;  // every entry says the same
      },
      &count);
  return count;
}

struct Search {
  std::uintptr_t address;
  Range range;
  std::string_view path;
  bool found;
};

int look(dl_phdr_info* info, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (search.address < begin || search.address - begin >= part.p_memsz) continue;
    search.range = {begin, begin + part.p_memsz, 0};
    search.path = info->dlpi_name;
    search.found = true;
    return 1;
  }
  return 0;
}

// In the table of this process's account; the last entry is for all modules beyond the table.
ModuleNumber number_of(Header& header, std::string_view path) {
  const std::string_view shown = path.empty() ? std::string_view("(program)") : path;
  const std::uint32_t count = std::max(header.module_count.load(std::memory_order_relaxed), 1u);  // 0 is nobody
  for (std::uint32_t index = 1; index < count; ++index) {
    const Module& module = header.modules[index];
    if (shown.substr(0, sizeof module.path - 1) == module.path) return static_cast<ModuleNumber>(index);
  }
  const std::uint32_t index = std::min<std::uint32_t>(count, kMaxModules - 1);
  Module& module = header.modules[index];
  const std::string_view text = index == kMaxModules - 1 ? std::string_view("(others)") : shown;
  std::memcpy(module.path, text.data(), std::min(text.size(), sizeof module.path - 1));
  header.module_count.store(index + 1, std::memory_order_release);
  return static_cast<ModuleNumber>(index);
}

ModuleNumber look_up(std::uintptr_t address) noexcept {
  Header* const header = account::header();
  if (header == nullptr) return 0;
  try {
    Known& all = *known;
    const std::lock_guard lock(all.mutex);
    // The first look-up, a child's, or another library may lie where one was.
    if (const auto now = unloads(); all.header != header || all.unloads != now) {
      all.ranges.clear();
      all.header = header;
      all.unloads = now;
    }
    const auto after = std::upper_bound(all.ranges.begin(), all.ranges.end(), address,
                                        [](std::uintptr_t at, const Range& range) { return at < range.begin; });
    if (after != all.ranges.begin() && address < std::prev(after)->end) return std::prev(after)->module;
    Search search{address, {}, {}, false};
    dl_iterate_phdr(look, &search);
    if (!search.found) return 0;
    search.range.module = passes_on(search.path) ? kPassesOn : number_of(*header, search.path);
    std::erase_if(all.ranges,
                  [&](const Range& old) { return old.begin < search.range.end && search.range.begin < old.end; });
    all.ranges.insert(std::upper_bound(all.ranges.begin(), all.ranges.end(), search.range.begin,
                                       [](std::uintptr_t at, const Range& range) { return at < range.begin; }),
                      search.range);
    return search.range.module;
  } catch (...) {
    return 0;  // no memory
  }
}

struct Walk {
  int frames = 0;
  ModuleNumber module = 0;
};

_Unwind_Reason_Code step(_Unwind_Context* context, void* data) {
  auto& walk = *static_cast<Walk*>(data);
  const std::uintptr_t address = _Unwind_GetIP(context);
  if (address == 0 || ++walk.frames > kMostFrames) return _URC_END_OF_STACK;
  const ModuleNumber module = look_up(address - 1);  // inside the call
  if (module == kPassesOn) return _URC_NO_REASON;
  walk.module = module;
  return _URC_END_OF_STACK;
}

}  // namespace

void forget_modules() {
  known = new Known;
}

ModuleNumber module_at(const void* address) noexcept {
  const ModuleNumber module = look_up(reinterpret_cast<std::uintptr_t>(address) - 1);
  return module == kPassesOn ? 0 : module;
}

ModuleNumber module_of_caller() noexcept {
  Walk walk;
  _Unwind_Backtrace(step, &walk);
  return walk.module;
}

void allocated(ModuleNumber module, std::uint64_t bytes) noexcept {
  Header* const header = account::header();
  if (header == nullptr || module >= kMaxModules) return;
  Module& entry = header->modules[module];
  entry.allocations.fetch_add(1, std::memory_order_relaxed);
  entry.live.fetch_add(1, std::memory_order_relaxed);
  entry.live_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

void freed(ModuleNumber module, std::uint64_t bytes) noexcept {
  Header* const header = account::header();
  if (header == nullptr || module >= kMaxModules) return;
  Module& entry = header->modules[module];
  entry.live.fetch_sub(1, std::memory_order_relaxed);
  entry.live_bytes.fetch_sub(bytes, std::memory_order_relaxed);
}

}  // namespace rota::account
