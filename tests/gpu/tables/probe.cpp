// Watches what a program does through the driver's private tables (cuGetExportTable), on a machine with a GPU.
//
// Preloaded into a program that runs without rota, it replaces every function of the named tables, in the tables
// themselves, by a stub that notes the call and goes on to the real function. Around a call it looks at three things:
//   submission  every write that starts work on a GPU goes to pages of the driver's device files (a channel's doorbell,
//               its queue). While the call is under way these pages cannot be written; the first write to each is a
//               SIGSEGV that notes it, allows it and lets the call go on;
//   memory      the device's free memory before and after, as cuMemGetInfo says (in steps of 2 MiB);
//   context     the calling thread's current context before and after.
// Another thread that submits meanwhile allows the pages too: such calls are counted as blinded. A function's first
// calls are watched and then one in a hundred, since each takes some 100 us.
//
//   ROTA_PROBE_TABLES   identifiers, separated by commas, as in [export_tables] of cuda_headers/policy.toml
//   ROTA_PROBE_OUT      a folder; each process writes PID.tsv there when it ends
//
// One table stays as it is: libcudart has the driver's answer of its function checked against that function's address,
// and refuses to work where they do not fit.
//
// For tests only: a page that is closed while another thread uses it costs that thread a signal. x86-64 Linux.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>

namespace {

constexpr unsigned kMostFunctions = 8192;
constexpr unsigned kSelfTest = 0;  // the slot of rota_probe_begin() and rota_probe_end()
constexpr unsigned kWatchedAtFirst = 200;
constexpr unsigned kThenOneIn = 100;

using GetExportTable = int (*)(const void**, const unsigned char*);
using MemGetInfo = int (*)(std::size_t*, std::size_t*);
using CtxGetCurrent = int (*)(void**);

struct Driver {
  GetExportTable get_export_table = nullptr;
  MemGetInfo memory = nullptr;
  CtxGetCurrent current = nullptr;
};

// What was seen of one function of a table.
struct Function {
  char table[40] = {};
  unsigned index = 0;
  void* real = nullptr;
  std::atomic<std::uint64_t> calls{0}, watched{0}, blinded{0}, submitted{0}, written{0}, context_changed{0};
  std::atomic<std::int64_t> most_taken{0}, most_given{0};  // bytes of free memory, of one call
  std::atomic<std::uint64_t> took{0}, gave{0};             // calls
};

struct Mapping {
  std::uintptr_t begin, end;
  int protection;
  bool device;  // of /dev/nvidia0 and so on, where doorbells lie; otherwise of nvidiactl
};

struct Watch {
  unsigned slot = ~0U;  // what this thread is inside of
  unsigned depth = 0;
  bool watching = false;
  std::size_t free_before = 0;
  void* context_before = nullptr;
  std::uint64_t strangers_before = 0;
  bool wrote = false, rang = false;
};

Driver driver;
constinit std::array<Function, kMostFunctions> functions;  // used before constructors of this library run
unsigned function_count = 1;
std::mutex one_at_a_time;  // watched calls: the pages are the process's
std::array<Mapping, 4096> mappings;
std::atomic<unsigned> mapping_count{0};
std::atomic<std::uint64_t> strangers{0};  // writes of other threads to closed pages
struct sigaction before_ours;
thread_local Watch watch __attribute__((tls_model("initial-exec")));

void on_fault(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (unsigned index = 0; index < mapping_count.load(); ++index) {
    const Mapping& mapping = mappings[index];
    if (address < mapping.begin || address >= mapping.end) continue;
    if (watch.watching)
      (mapping.device ? watch.rang : watch.wrote) = true;
    else
      strangers.fetch_add(1);
    mprotect(reinterpret_cast<void*>(mapping.begin), mapping.end - mapping.begin, mapping.protection);
    return;
  }
  if ((before_ours.sa_flags & SA_SIGINFO) != 0 && before_ours.sa_sigaction != nullptr)
    return before_ours.sa_sigaction(signal, info, context);
  ::signal(SIGSEGV, SIG_DFL);
}

void stand_at_faults() {
  struct sigaction now{};
  sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault) return;
  before_ours = now;
  struct sigaction ours{};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &ours, nullptr);
}

// The writable pages of the driver's device files, closed.
void close_pages() {
  mapping_count = 0;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return;
  char line[512];
  unsigned count = 0;
  while (count < mappings.size() && std::fgets(line, sizeof line, maps) != nullptr) {
    const char* path = std::strstr(line, "/dev/nvidia");
    if (path == nullptr || std::strstr(path, "uvm") != nullptr) continue;
    unsigned long begin = 0, end = 0;
    char permissions[5] = {};
    if (std::sscanf(line, "%lx-%lx %4s", &begin, &end, permissions) != 3 || permissions[1] != 'w') continue;
    mappings[count++] = {begin, end, PROT_WRITE | (permissions[0] == 'r' ? PROT_READ : 0),
                         path[sizeof "/dev/nvidia" - 1] != 'c'};
  }
  std::fclose(maps);
  mapping_count = count;
  for (unsigned index = 0; index < count; ++index)
    mprotect(reinterpret_cast<void*>(mappings[index].begin), mappings[index].end - mappings[index].begin, PROT_NONE);
}

void open_pages() {
  for (unsigned index = 0; index < mapping_count.load(); ++index)
    mprotect(reinterpret_cast<void*>(mappings[index].begin), mappings[index].end - mappings[index].begin,
             mappings[index].protection);
}

// Free bytes of the current context's device; 0 without one.
std::size_t free_bytes() {
  std::size_t free = 0, total = 0;
  return driver.memory != nullptr && driver.memory(&free, &total) == 0 ? free : 0;
}

void* current_context() {
  void* context = nullptr;
  return driver.current != nullptr && driver.current(&context) == 0 ? context : nullptr;
}

void raise_to(std::atomic<std::int64_t>& most, std::int64_t value) {
  auto seen = most.load();
  while (seen < value && !most.compare_exchange_weak(seen, value)) {
  }
}

void write_report() {
  const char* folder = std::getenv("ROTA_PROBE_OUT");
  if (folder == nullptr) return;
  std::FILE* file = std::fopen((std::string(folder) + "/" + std::to_string(getpid()) + ".tsv").c_str(), "we");
  if (file == nullptr) return;
  for (unsigned slot = 0; slot < function_count; ++slot) {
    const Function& seen = functions[slot];
    if (seen.calls == 0) continue;
    std::fprintf(file, "%s\t%u\t%lu\t%lu\t%lu\t%lu\t%lu\t%lu\t%lu\t%ld\t%lu\t%ld\n", seen.table, seen.index,
                 seen.calls.load(), seen.watched.load(), seen.blinded.load(), seen.submitted.load(),
                 seen.written.load(), seen.context_changed.load(), seen.took.load(), seen.most_taken.load(),
                 seen.gave.load(), seen.most_given.load());
  }
  std::fclose(file);
}

}  // namespace

extern "C" {

// Called by the stub; returns the real function.
__attribute__((visibility("hidden"))) void* rota_probe_before(unsigned slot) {
  Function& function = functions[slot];
  const auto call = function.calls.fetch_add(1);
  if (watch.depth++ != 0 || (call >= kWatchedAtFirst && call % kThenOneIn != 0) || !one_at_a_time.try_lock())
    return function.real;
  stand_at_faults();
  watch.slot = slot;
  watch.context_before = current_context();
  watch.free_before = free_bytes();
  watch.strangers_before = strangers;
  watch.wrote = watch.rang = false;
  watch.watching = true;
  close_pages();
  return function.real;
}

__attribute__((visibility("hidden"))) void rota_probe_after() {
  if (--watch.depth != 0 || !watch.watching) return;
  open_pages();
  watch.watching = false;
  Function& function = functions[watch.slot];
  function.watched.fetch_add(1);
  if (strangers != watch.strangers_before) function.blinded.fetch_add(1);
  if (watch.rang) function.submitted.fetch_add(1);
  if (watch.wrote) function.written.fetch_add(1);
  if (current_context() != watch.context_before) function.context_changed.fetch_add(1);
  const auto now = free_bytes();
  if (now != 0 && watch.free_before != 0 && now != watch.free_before) {
    const auto taken = static_cast<std::int64_t>(watch.free_before) - static_cast<std::int64_t>(now);
    (taken > 0 ? function.took : function.gave).fetch_add(1);
    raise_to(taken > 0 ? function.most_taken : function.most_given, taken > 0 ? taken : -taken);
  }
  one_at_a_time.unlock();
}

// Watches what the caller does until rota_probe_end(): to see that the probe sees.
__attribute__((visibility("default"))) void rota_probe_begin() {
  rota_probe_before(kSelfTest);
}
__attribute__((visibility("default"))) void rota_probe_end() {
  rota_probe_after();
}

// The common part of all stubs: the slot is on the stack, above it the caller's return address. Argument registers and
// 256 bytes of stacked arguments are handed on as they came; both result registers come back as they are.
void rota_probe_common();
asm(R"(
  .text
  .hidden rota_probe_common
  .globl rota_probe_common
  .type rota_probe_common, @function
rota_probe_common:
  push %rbp
  mov %rsp, %rbp
  sub $512, %rsp
  and $-16, %rsp
  mov %rdi, -8(%rbp)
  mov %rsi, -16(%rbp)
  mov %rdx, -24(%rbp)
  mov %rcx, -32(%rbp)
  mov %r8, -40(%rbp)
  mov %r9, -48(%rbp)
  mov %rax, -56(%rbp)
  mov %r10, -64(%rbp)
  movups %xmm0, -96(%rbp)
  movups %xmm1, -112(%rbp)
  movups %xmm2, -128(%rbp)
  movups %xmm3, -144(%rbp)
  movups %xmm4, -160(%rbp)
  movups %xmm5, -176(%rbp)
  movups %xmm6, -192(%rbp)
  movups %xmm7, -208(%rbp)
  mov 8(%rbp), %rdi
  call rota_probe_before
  mov %rax, %r11
  lea 24(%rbp), %rsi
  mov %rsp, %rdi
  mov $32, %ecx
  cld
  rep movsq
  mov -8(%rbp), %rdi
  mov -16(%rbp), %rsi
  mov -24(%rbp), %rdx
  mov -32(%rbp), %rcx
  mov -40(%rbp), %r8
  mov -48(%rbp), %r9
  mov -56(%rbp), %rax
  mov -64(%rbp), %r10
  movups -96(%rbp), %xmm0
  movups -112(%rbp), %xmm1
  movups -128(%rbp), %xmm2
  movups -144(%rbp), %xmm3
  movups -160(%rbp), %xmm4
  movups -176(%rbp), %xmm5
  movups -192(%rbp), %xmm6
  movups -208(%rbp), %xmm7
  call *%r11
  mov %rax, -8(%rbp)
  mov %rdx, -16(%rbp)
  movups %xmm0, -96(%rbp)
  movups %xmm1, -112(%rbp)
  call rota_probe_after
  mov -8(%rbp), %rax
  mov -16(%rbp), %rdx
  movups -96(%rbp), %xmm0
  movups -112(%rbp), %xmm1
  leave
  add $8, %rsp
  ret
  .size rota_probe_common, . - rota_probe_common
)");
}

namespace {

// push slot; movabs rota_probe_common, %r11; jmp *%r11
void* make_stub(unsigned char*& at, unsigned slot) {
  unsigned char* const stub = at;
  *at++ = 0x68;
  std::memcpy(at, &slot, 4);
  at += 4;
  *at++ = 0x49;
  *at++ = 0xbb;
  const auto target = reinterpret_cast<std::uint64_t>(&rota_probe_common);
  std::memcpy(at, &target, 8);
  at += 8;
  *at++ = 0x41;
  *at++ = 0xff;
  *at++ = 0xe3;
  at = stub + 32;
  return stub;
}

bool is_code(const void* address, std::uintptr_t& begin, std::uintptr_t& end) {
  const auto where = reinterpret_cast<std::uintptr_t>(address);
  if (where >= begin && where < end) return true;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  char line[512];
  bool found = false;
  while (maps != nullptr && !found && std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long first = 0, last = 0;
    char permissions[5] = {};
    if (std::sscanf(line, "%lx-%lx %4s", &first, &last, permissions) != 3 || permissions[2] != 'x') continue;
    if (where >= first && where < last && std::strstr(line, "libcuda") != nullptr)
      begin = first, end = last, found = true;
  }
  if (maps != nullptr) std::fclose(maps);
  return found;
}

std::array<unsigned char, 16> parse(std::string_view text) {
  std::array<unsigned char, 16> id{};
  unsigned at = 0;
  for (std::size_t index = 0; index + 1 < text.size() && at < id.size(); ++index) {
    if (text[index] == '-') continue;
    id[at++] = static_cast<unsigned char>(std::stoul(std::string(text.substr(index, 2)), nullptr, 16));
    ++index;
  }
  return id;
}

constexpr std::string_view kCheckedByAddress = "d4082055-bde6-704b-8d34-ba123c66e1f2";

// A table that begins with its length has that many bytes; one that does not ends with its last pointer into the
// driver.
void replace(const std::string& name, unsigned char*& stubs) {
  const void* found = nullptr;
  const auto id = parse(name);
  if (driver.get_export_table(&found, id.data()) != 0 || found == nullptr) return;
  auto** const table = static_cast<void**>(const_cast<void*>(found));
  const auto first = reinterpret_cast<std::uint64_t>(table[0]);
  const bool sized = first >= 8 && first <= 64 * 1024 && first % 8 == 0;
  const unsigned words = sized ? static_cast<unsigned>(first / 8) : 64;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(table) & ~(page - 1);
  const auto end = (reinterpret_cast<std::uintptr_t>(table + words) + page - 1) & ~(page - 1);
  if (mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_READ | PROT_WRITE) != 0) return;
  std::uintptr_t code_begin = 0, code_end = 0;
  for (unsigned index = sized ? 1 : 0; index < words && function_count < kMostFunctions; ++index) {
    if (table[index] == nullptr && sized) continue;
    if (!is_code(table[index], code_begin, code_end)) {
      if (sized) continue;
      break;
    }
    Function& function = functions[function_count];
    std::snprintf(function.table, sizeof function.table, "%s", name.c_str());
    function.index = index;
    function.real = table[index];
    table[index] = make_stub(stubs, function_count++);
  }
}

__attribute__((constructor)) void start() {
  const char* names = std::getenv("ROTA_PROBE_TABLES");
  if (names == nullptr || std::getenv("ROTA_PROBE_OUT") == nullptr) return;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return;
  driver.get_export_table = reinterpret_cast<GetExportTable>(dlsym(library, "cuGetExportTable"));
  driver.memory = reinterpret_cast<MemGetInfo>(dlsym(library, "cuMemGetInfo_v2"));
  driver.current = reinterpret_cast<CtxGetCurrent>(dlsym(library, "cuCtxGetCurrent"));
  if (driver.get_export_table == nullptr) return;
  std::snprintf(functions[kSelfTest].table, sizeof functions[kSelfTest].table, "self-test");
  void* pages =
      mmap(nullptr, kMostFunctions * 32, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return;
  auto* stubs = static_cast<unsigned char*>(pages);
  for (std::string_view rest = names; !rest.empty();) {
    const auto comma = rest.find(',');
    if (rest.substr(0, comma) != kCheckedByAddress) replace(std::string(rest.substr(0, comma)), stubs);
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
  }
  std::atexit(write_report);
}

}  // namespace
