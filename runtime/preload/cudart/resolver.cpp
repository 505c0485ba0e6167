// The first call of a traced process to a libcudart ends here: find the libcudart of that major that the program
// loaded, ask the core for the trace, fill the major's slots, go on. Where the core is missing or does not trace, slots
// go straight to libcudart. A process may use several majors; each is resolved by its own first call.
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

#include "generated/trace_schema.h"
#include "runtime/preload/cuda/thin.h"
#include "runtime/preload/cudart/tracers.h"
#include "runtime/preload/object.h"
#include "runtime/preload/off.h"
#include "runtime/trace/thread.h"

using rota::runtime_tracers::kMajors;
using rota::runtime_tracers::kSymbols;
using rota::runtime_tracers::Major;
using rota::runtime_tracers::symbol_names;

extern "C" {
// Written once, before any slot leads to a tracer.
ROTA_HIDDEN void* rota_cudart_real[kSymbols];
ROTA_HIDDEN extern void* rota_cudart_slots[kSymbols];
ROTA_HIDDEN void* rota_cudart_resolve(uint32_t index) noexcept;
}

namespace rota::trace {
namespace {

const Interface* core = nullptr;
[[gnu::tls_model("initial-exec")]] thread_local Thread* own_thread = nullptr;

}  // namespace

// The core's record of this thread, which both libraries write through.
Thread& this_thread() {
  if (own_thread == nullptr) own_thread = core->thread();
  return *own_thread;
}
std::byte* reserve_slowly(Thread& thread, std::uint32_t bytes) {
  return core->reserve_slowly(&thread, bytes);
}
void refresh(Thread& thread, std::uint64_t ticks) {
  core->refresh(&thread, ticks);
}

}  // namespace rota::trace

namespace {

constexpr int kSymbolNotFound = 500;  // cudaErrorSymbolNotFound

int not_found() noexcept {
  return kSymbolNotFound;
}
const char* no_text() noexcept {
  return "unknown: libcudart has no such function";
}

using Open = void*(const char*, int);

// A copy under another file name, as wheels rename what they bundle ("libcudart-9f1b.so.13.0").
struct Renamed {
  const char* suffix;  // ".so.13"
  const char* path;
};
int find_renamed(dl_phdr_info* info, size_t, void* data) noexcept {
  auto* const renamed = static_cast<Renamed*>(data);
  const char* const slash = strrchr(info->dlpi_name, '/');
  const char* const name = slash != nullptr ? slash + 1 : info->dlpi_name;
  if (strncmp(name, "libcudart", 9) != 0 || strstr(name, renamed->suffix) == nullptr) return 0;
  renamed->path = info->dlpi_name;
  return 1;
}

// By SONAME among what is loaded, RTLD_LOCAL or not; else by file name; else load it, since the caller needs one.
void* open_library(Open* open, const Major& major) noexcept {
  void* handle = open(major.library, RTLD_LAZY | RTLD_NOLOAD);
  if (handle != nullptr) return handle;
  Renamed renamed{strstr(major.library, ".so."), nullptr};
  dl_iterate_phdr(find_renamed, &renamed);
  if (renamed.path != nullptr) handle = open(renamed.path, RTLD_LAZY | RTLD_NOLOAD);
  return handle != nullptr ? handle : open(major.library, RTLD_LAZY | RTLD_LOCAL);
}

// The core next to this library, if it traces and has the same function tables.
const rota::trace::Interface* open_core(Open* open) noexcept {
  if (rota::thin::is_off()) return nullptr;
  char path[rota::thin::kPathBytes];
  if (!rota::thin::path_beside_us("librota-core.so", path)) return nullptr;
  void* const handle = open(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  auto* const function =
      reinterpret_cast<rota::trace::InterfaceFunction*>(rota::thin::foreign_symbol(handle, "rota_core_trace"));
  if (function == nullptr) return nullptr;
  const rota::trace::Interface* const interface = function(rota::trace::kInterfaceVersion);
  const bool usable = interface != nullptr && interface->bytes == sizeof(rota::trace::Interface) &&
                      interface->runtime_schema == rota::trace::kRuntimeSchema;
  return usable ? interface : nullptr;
}

const Major& major_of(uint32_t index) noexcept {
  size_t major = 0;
  while (index - kMajors[major].first >= kMajors[major].count) ++major;
  return kMajors[major];
}

// Any number of threads may run this at once, each writes the same; no lock of ours is held while the loader works,
// since a thread may come from a constructor that runs under the loader's.
void resolve(const Major& major) noexcept {
  auto* const open = reinterpret_cast<Open*>(rota::thin::next_symbol("dlopen"));
  void* const library = open != nullptr ? open_library(open, major) : nullptr;
  const size_t end = major.first + major.count;
  for (size_t i = major.first; i < end; ++i) {
    void* function = library != nullptr ? rota::thin::foreign_symbol(library, symbol_names[i]) : nullptr;
    if (function == nullptr) {
      const bool text =
          strcmp(symbol_names[i], "cudaGetErrorString") == 0 || strcmp(symbol_names[i], "cudaGetErrorName") == 0;
      function = text ? reinterpret_cast<void*>(&no_text) : reinterpret_cast<void*>(&not_found);
    }
    __atomic_store_n(&rota_cudart_real[i], function, __ATOMIC_RELAXED);
  }
  const rota::trace::Interface* const interface = open != nullptr ? open_core(open) : nullptr;
  __atomic_store_n(&rota::trace::core, interface, __ATOMIC_RELEASE);
  for (size_t i = major.first; i < end; ++i) {
    void* const tracer = interface != nullptr ? rota::runtime_tracers::table[i] : nullptr;
    __atomic_store_n(&rota_cudart_slots[i], tracer != nullptr ? tracer : rota_cudart_real[i], __ATOMIC_RELEASE);
  }
}

}  // namespace

void* rota_cudart_resolve(uint32_t index) noexcept {
  resolve(major_of(index));
  return __atomic_load_n(&rota_cudart_slots[index], __ATOMIC_ACQUIRE);
}
