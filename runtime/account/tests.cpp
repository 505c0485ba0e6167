// What test frameworks' plugins call (test_interface.h).
#include <atomic>
#include <cstring>

#include "runtime/account/account.h"
#include "runtime/account/calls.h"
#include "runtime/account/test_interface.h"

namespace rota::account {
namespace {

using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;

constinit std::atomic<void (*)(bool)> teller{nullptr};

void set_running(Header& header, const char* name) {
  header.test_changes.fetch_add(1, memory_order_release);
  std::strncpy(header.running_test, name, sizeof header.running_test - 1);
  header.test_changes.fetch_add(1, memory_order_release);
}

void sum_up(const Header& header, RotaTestAccount& sum) {
  for (const Gpu& gpu : header.gpus) {
    // Memory of these kinds belongs to no module.
    for (const MemoryKind kind : {MemoryKind::kPhysical, MemoryKind::kGraph}) {
      sum.used_bytes += gpu.kinds[static_cast<std::size_t>(kind)].bytes.load(memory_order_relaxed);
    }
    sum.peak_bytes += gpu.lap_peak_bytes.load(memory_order_relaxed);
  }
  for (const Module& module : header.modules) {
    sum.allocations += module.allocations.load(memory_order_relaxed);
    sum.used_bytes += module.live_bytes.load(memory_order_relaxed);
    sum.live += module.live.load(memory_order_relaxed);
  }
  for (const Error& error : header.errors) sum.errors += error.calls.load(memory_order_relaxed);
  sum.busy_ns = header.busy_ns.load(memory_order_relaxed);
  const auto* const pages = reinterpret_cast<const std::byte*>(&header) + kHeaderBytes;
  for (std::uint32_t index = 0; index < header.thread_pages.load(memory_order_acquire); ++index) {
    const auto& page = *reinterpret_cast<const ThreadPage*>(pages + index * kThreadPageBytes);
    sum.waited_ns += page.waited_ns.load(memory_order_relaxed);
    for (const ThreadPage::Copies* copies : {&page.to_device, &page.to_host, &page.on_device, &page.by_address}) {
      sum.copies += copies->calls.load(memory_order_relaxed);
      sum.copied_bytes += copies->bytes.load(memory_order_relaxed);
    }
    for (std::size_t symbol = 0; symbol < kSymbolCount; ++symbol) {
      const std::uint64_t calls = page.calls[symbol].load(memory_order_relaxed);
      sum.calls += calls;
      const Group group = group_of(static_cast<Symbol>(symbol));
      if (group == Group::kLaunch) sum.launches += calls;
      if (group == Group::kSynchronize) sum.synchronizations += calls;
    }
  }
}

}  // namespace

void tell_of_tests(void (*told)(bool)) {
  teller.store(told, memory_order_release);
}

int mark_test(std::uint32_t version, std::uint32_t what, const char* name, RotaTestAccount* account) {
  if (version != kRotaTestVersion || account == nullptr || name == nullptr || what > kRotaTestEnds) return 2;
  Header* const header = wanted() ? account::header() : nullptr;
  if (header == nullptr) return 1;
  if (auto* const told = teller.load(memory_order_acquire)) told(what == kRotaTestBegins);
  if (what == kRotaTestBegins) {
    for (Gpu& gpu : header->gpus) gpu.lap_peak_bytes.store(gpu.used_bytes.load());
  }
  *account = {};
  sum_up(*header, *account);
  set_running(*header, what == kRotaTestBegins ? name : "");
  return 0;
}

}  // namespace rota::account
