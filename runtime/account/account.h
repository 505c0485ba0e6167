// This process's account (format.h): where the counters, the ledger, the gate and the monitor write what they see.
//
// The file is made at the process's first CUDA call, so that a child that only executes another program leaves none. A
// forked child makes its own. Where it cannot be made, or grown, one line says so and the program goes on: counts then
// go to a page that nobody reads, so that no caller has to ask.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/account/format.h"

struct RotaTestAccount;  // test_interface.h

namespace rota::account {

// Begins if ROTA_REPORT names a folder. `test`: what the test runner called the test, see Header::test; may be null.
// Called once, before any other thread of the process is in rota. False: there is no account.
bool begin(const char* test);
// Whether begin() succeeded. In its child, whether it has for the parent.
bool wanted() noexcept;

// This process's header; null without an account. Stays valid, but after fork() is the parent's: ask again each time.
Header* header() noexcept;

// The calling thread's page; never null.
extern constinit thread_local ThreadPage* own_page __attribute__((tls_model("initial-exec")));
ThreadPage& take_page() noexcept;
inline ThreadPage& page() noexcept {
  ThreadPage* const own = own_page;
  return own != nullptr ? *own : take_page();
}

// Only the thread that a page belongs to adds to it.
inline void add(Word& word, std::uint64_t amount) noexcept {
  word.store(word.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}
void raise_to(Word& word, std::uint64_t value) noexcept;

// --- what happened; all of these do nothing without an account, and may be called by any thread

void failed(Symbol function, std::uint32_t code) noexcept;
void found(FindingKind kind, Symbol function, Symbol ended_by, std::uint64_t value) noexcept;
void refused(OutOfMemory reason) noexcept;
// A thread begins to wait at the gate (nothing), or has waited there this long.
void waited(std::optional<std::chrono::nanoseconds> so_long) noexcept;
// `weight`: the time that a sample of this process's turn represents.
void sampled(bool busy, std::chrono::nanoseconds weight) noexcept;

// A GPU of this process, before it is used. `uuid`: 16 bytes.
void touches(int device, const void* uuid, const char* name, std::uint64_t total_bytes) noexcept;
// What this process has there now.
struct Memory {
  std::uint64_t used_bytes;
  std::uint64_t reserved_bytes;
  std::uint64_t by_kind[kMemoryKinds];
};
void memory_changed(int device, const Memory& memory) noexcept;

// The context, and with it what was made in it, has ended.
void context_ended(const void* context) noexcept;

// Called on the thread that says that a test begins in this process (true) or has ended. May be null.
void tell_of_tests(void (*told)(bool begins));
// What rota_core_test answers (test_interface.h).
int mark_test(std::uint32_t version, std::uint32_t what, const char* name, RotaTestAccount* account);

// --- what is unfinished (the monitor)

// Whether somebody asks, and has not been answered: with the number to answer with. The account says that the process
// lived at this moment.
std::optional<std::uint32_t> streams_asked() noexcept;
// Streams that threads have launched on and that have not been destroyed since, the last launch on each.
struct Launched {
  std::uint64_t stream;
  std::uint64_t function;  // 0: a graph
  std::uint32_t tid;
};
std::vector<Launched> launched();
struct Unfinished {
  Launched last;
  StreamState state;
  std::string name;  // of the kernel
};
void answer_streams(std::uint32_t asked, const std::vector<Unfinished>& streams) noexcept;

// --- whose code allocates (modules.cpp)

// Number of a module, 0: not known.
using ModuleNumber = std::uint16_t;
// Who the calling thread allocates for: set by the counters around a call that allocates.
extern constinit thread_local ModuleNumber allocating_module __attribute__((tls_model("initial-exec")));
// The module of the nearest caller that is not CUDA's or rota's; or, without a walk up the stack, of `address` itself.
ModuleNumber module_of_caller() noexcept;
ModuleNumber module_at(const void* address) noexcept;
// At the beginning, and in the child of a fork: another thread may have held a lock.
void forget_modules();
void allocated(ModuleNumber module, std::uint64_t bytes) noexcept;
void freed(ModuleNumber module, std::uint64_t bytes) noexcept;

}  // namespace rota::account
