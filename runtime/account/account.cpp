#include "runtime/account/account.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "runtime/account/file.h"
#include "runtime/account/objects.h"
#include "runtime/account/timeline.h"
#include "runtime/core/log.h"

namespace rota::account {

[[gnu::tls_model("initial-exec")]] constinit thread_local ThreadPage* own_page = nullptr;

namespace {

using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;

enum class State : int { kOff, kNotMade, kMade, kFailed };

constinit std::atomic<State> state{State::kOff};
constinit std::atomic<File*> file{nullptr};
// For threads that have no page, and for all while there is no account.
constinit ThreadPage nobodys{};
constinit std::mutex making;
constinit Timeline timeline;
pthread_key_t at_thread_end{};
bool told_of_thread_ends = false;

// Read once: the program may change its environment and its folder.
struct Wanted {
  std::string folder;
  std::string outer;  // of the session around this one; empty: there is none
  char test[sizeof Header::test] = {};
};
constinit Wanted* asked = nullptr;

std::uint32_t own_tid() {
  return static_cast<std::uint32_t>(syscall(SYS_gettid));
}

void thread_ends(void* page) {
  own_page = nullptr;
  auto& own = *static_cast<ThreadPage*>(page);
  own.function.store(0, memory_order_relaxed);
  own.waits_since_ns.store(0, memory_order_relaxed);
  own.tid.store(0, memory_order_release);
}

std::int64_t monotonic_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

File* make() noexcept {
  const std::lock_guard lock(making);
  if (state.load(memory_order_acquire) != State::kNotMade) return file.load(memory_order_acquire);
  try {
    std::string problem;
    File* const made = File::create(asked->folder, problem);
    if (made == nullptr) {
      state.store(State::kFailed, memory_order_release);
      File::mark_lost(asked->folder);
      log::warn("no report of this process: {}; give `rota run --report` a folder that the program can write to",
                problem);
      return nullptr;
    }
    Header& header = made->header();
    describe_self(header);
    std::memcpy(header.test, asked->test, sizeof header.test);
    timeline.begin(header);
    std::uint64_t magic = 0;
    std::memcpy(&magic, kMagic, sizeof magic);
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(header.magic), magic, __ATOMIC_RELEASE);
    if (!asked->outer.empty()) made->share(asked->outer);
    file.store(made, memory_order_release);
    state.store(State::kMade, memory_order_release);
    return made;
  } catch (...) {
    state.store(State::kFailed, memory_order_release);  // no memory
    return nullptr;
  }
}

File* own_file() noexcept {
  if (File* const known = file.load(memory_order_acquire)) return known;
  return state.load(memory_order_acquire) == State::kNotMade ? make() : nullptr;
}

// The parent's mapping must not be written to. Called by the thread that forked, the child's only one.
void start_afresh_in_child() noexcept {
  own_page = nullptr;
  new (&making) std::mutex;
  if (state.load(memory_order_relaxed) == State::kOff) return;
  // Never freed: some call of the parent's may still have a reference to it on this thread's stack.
  file.store(nullptr, memory_order_relaxed);
  timeline.forget();
  forget_modules();
  objects::forget();
  state.store(State::kNotMade, memory_order_relaxed);
}

void process_ends() {
  if (File* const known = file.load(memory_order_acquire)) known->header().ended_monotonic_ns.store(monotonic_ns());
}

}  // namespace

bool begin(const char* test) {
  if (wanted()) return true;
  const char* const folder = getenv("ROTA_REPORT");
  if (folder == nullptr || *folder == '\0') return false;
  asked = new Wanted;
  // The program may change its working directory before its first call.
  char* const absolute = realpath(folder, nullptr);
  asked->folder = absolute != nullptr ? absolute : folder;
  free(absolute);
  if (const char* const outer = getenv("ROTA_REPORT_OUTER")) asked->outer = outer;
  if (test != nullptr) std::strncpy(asked->test, test, sizeof asked->test - 1);
  forget_modules();
  objects::forget();
  told_of_thread_ends = pthread_key_create(&at_thread_end, thread_ends) == 0;
  pthread_atfork(nullptr, nullptr, start_afresh_in_child);
  std::atexit(process_ends);
  state.store(State::kNotMade, memory_order_release);
  return true;
}

bool wanted() noexcept {
  return state.load(memory_order_relaxed) != State::kOff;
}

Header* header() noexcept {
  File* const known = own_file();
  return known != nullptr ? &known->header() : nullptr;
}

ThreadPage& take_page() noexcept {
  File* const known = own_file();
  if (known == nullptr) {
    own_page = &nobodys;
    return nobodys;
  }
  const std::uint32_t tid = own_tid();
  Header& header = known->header();
  const std::lock_guard lock(making);
  const std::uint32_t count = header.thread_pages.load(memory_order_relaxed);
  ThreadPage* found = nullptr;
  for (std::uint32_t index = 0; index < count && found == nullptr; ++index) {
    if (known->thread_page(index).tid.load(memory_order_acquire) == 0) found = &known->thread_page(index);
  }
  if (found == nullptr) {
    if (!known->grow(count + 1)) {
      header.uncounted_threads.store(1, memory_order_relaxed);
      own_page = &nobodys;
      return nobodys;
    }
    found = &known->thread_page(count);
    header.thread_pages.store(count + 1, memory_order_release);
  }
  found->tid.store(tid, memory_order_relaxed);
  own_page = found;
  if (told_of_thread_ends) pthread_setspecific(at_thread_end, found);
  return *found;
}

void raise_to(Word& word, std::uint64_t value) noexcept {
  std::uint64_t before = word.load(memory_order_relaxed);
  while (before < value && !word.compare_exchange_weak(before, value, memory_order_relaxed)) {
  }
}

void failed(Symbol function, std::uint32_t code) noexcept {
  Header* const header = account::header();
  if (header == nullptr) return;
  const auto number = static_cast<std::uint32_t>(function);
  for (Error& error : header->errors) {
    // A new entry is taken by its code, which is never 0.
    std::uint32_t taken = error.code.load(memory_order_acquire);
    if (taken == 0 && error.code.compare_exchange_strong(taken, code)) {
      error.function.store(number, memory_order_release);
      taken = code;
    }
    if (taken != code || error.function.load(memory_order_acquire) != number) continue;
    error.calls.fetch_add(1, memory_order_relaxed);
    return;
  }
  header->errors_lost.store(1, memory_order_relaxed);
}

void found(FindingKind kind, Symbol function, Symbol ended_by, std::uint64_t value) noexcept {
  Header* const header = account::header();
  if (header == nullptr) return;
  const auto number = static_cast<std::uint32_t>(function);
  const ModuleNumber module = module_of_caller();
  const std::lock_guard lock(making);
  for (Finding& finding : header->findings) {
    if (finding.calls.load(memory_order_relaxed) == 0) {
      finding.kind.store(static_cast<std::uint32_t>(kind), memory_order_relaxed);
      finding.function.store(number, memory_order_relaxed);
      finding.ended_by.store(static_cast<std::uint32_t>(ended_by), memory_order_relaxed);
      finding.module.store(module, memory_order_relaxed);
      finding.value.store(value, memory_order_relaxed);
    } else if (finding.kind.load(memory_order_relaxed) != static_cast<std::uint32_t>(kind) ||
               finding.function.load(memory_order_relaxed) != number ||
               finding.module.load(memory_order_relaxed) != module) {
      continue;
    }
    finding.calls.fetch_add(1, memory_order_release);
    return;
  }
  header->findings_lost.store(1, memory_order_relaxed);
}

void refused(OutOfMemory reason) noexcept {
  if (Header* const known = wanted() ? header() : nullptr) {
    known->oom_reason.store(static_cast<std::uint32_t>(reason), memory_order_relaxed);
  }
}

void waited(std::optional<std::chrono::nanoseconds> so_long) noexcept {
  if (!wanted()) return;
  ThreadPage& own = page();
  if (!so_long) {
    own.waits_since_ns.store(static_cast<std::uint64_t>(monotonic_ns()), memory_order_relaxed);
    return;
  }
  own.waits_since_ns.store(0, memory_order_relaxed);
  add(own.waits, 1);
  add(own.waited_ns, static_cast<std::uint64_t>(so_long->count()));
  if (Header* const known = header()) timeline.waited(*known, monotonic_ns(), *so_long);
}

void sampled(bool busy, std::chrono::nanoseconds weight) noexcept {
  Header* const known = wanted() ? header() : nullptr;
  if (known == nullptr) return;
  add(known->samples, 1);
  if (!busy) return;
  add(known->busy_samples, 1);
  add(known->busy_ns, static_cast<std::uint64_t>(weight.count()));
  timeline.busy(*known, monotonic_ns(), weight);
}

void touches(int device, const void* uuid, const char* name, std::uint64_t total_bytes) noexcept {
  Header* const known = wanted() ? header() : nullptr;
  if (known == nullptr || device < 0 || device >= static_cast<int>(kMaxGpus)) return;
  Gpu& gpu = known->gpus[device];
  std::strncpy(gpu.name, name, sizeof gpu.name - 1);
  gpu.total_bytes = total_bytes;
  std::memcpy(gpu.uuid, uuid, sizeof gpu.uuid);
}

void memory_changed(int device, const Memory& memory) noexcept {
  Header* const known = header();
  if (known == nullptr || device < 0 || device >= static_cast<int>(kMaxGpus)) return;
  Gpu& gpu = known->gpus[device];
  gpu.used_bytes.store(memory.used_bytes, memory_order_relaxed);
  raise_to(gpu.used_peak_bytes, memory.used_bytes);
  raise_to(gpu.lap_peak_bytes, memory.used_bytes);
  raise_to(gpu.reserved_peak_bytes, memory.reserved_bytes);
  for (std::size_t kind = 0; kind < kMemoryKinds; ++kind) {
    gpu.kinds[kind].bytes.store(memory.by_kind[kind], memory_order_relaxed);
    raise_to(gpu.kinds[kind].peak_bytes, memory.by_kind[kind]);
  }
  std::uint64_t together = 0;
  for (const Gpu& each : known->gpus) together += each.used_bytes.load(memory_order_relaxed);
  timeline.used(*known, monotonic_ns(), together);
}

}  // namespace rota::account
