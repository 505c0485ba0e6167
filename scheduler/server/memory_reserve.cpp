#include "scheduler/server/memory_reserve.h"

#include <sys/mman.h>

#include <atomic>
#include <new>

namespace rota::server {
namespace {

// Address space and a promise of memory, of which no page is used. Any thread may need it.
std::atomic<void*> reserve = nullptr;

void use_reserve() {
  void* const memory = reserve.exchange(nullptr);
  if (memory == nullptr) throw std::bad_alloc();
  munmap(memory, MemoryReserve::kBytes);
}

}  // namespace

MemoryReserve::MemoryReserve() {
  is_whole();
  std::set_new_handler(use_reserve);
}

MemoryReserve::~MemoryReserve() {
  std::set_new_handler(nullptr);
  if (void* const memory = reserve.exchange(nullptr); memory != nullptr) munmap(memory, kBytes);
}

bool MemoryReserve::is_whole() {
  if (reserve.load() != nullptr) return true;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  reserve = memory;
  return true;
}

}  // namespace rota::server
