// Creates and seals the shared pages.
#include "scheduler/server/page.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif

namespace rota::server {
namespace {

Error failed(const char* what) {
  return {fmt::format("cannot create a shared page: {}: {}", what, strerror(errno))};
}

}  // namespace

template <typename Layout>
Page<Layout>::~Page() {
  if (layout_ != nullptr) munmap(layout_, protocol::kPageBytes);
}
template class Page<protocol::LeasePage>;
template class Page<protocol::UsagePage>;

template <typename Layout>
Result<Page<Layout>> make_page(const char* name, bool client_writes) {
  Descriptor memory(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return failed("memfd_create");
  if (ftruncate(memory.get(), protocol::kPageBytes) != 0) return failed("ftruncate");
  void* address = mmap(nullptr, protocol::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (address == MAP_FAILED) return failed("mmap");
  Page<Layout> page;
  page.layout_ = static_cast<Layout*>(address);  // all 0, as it begins; touched only where it is used
  page->magic = protocol::kMagic;
  page->version = protocol::kPageVersion;
  // rotad's own writable mapping already exists: "future" writes are those of the client.
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (client_writes ? 0 : F_SEAL_FUTURE_WRITE);
  if (fcntl(memory.get(), F_ADD_SEALS, seals) != 0) return failed("F_ADD_SEALS");
  if (!client_writes) {
    // A descriptor opened for reading on top of the seal. Without /proc there is only the seal.
    Descriptor readable(open(fmt::format("/proc/self/fd/{}", memory.get()).c_str(), O_RDONLY | O_CLOEXEC));
    if (readable) memory = std::move(readable);
  }
  page.passed_ = std::move(memory);
  return page;
}

Result<Page<protocol::LeasePage>> make_lease_page() {
  return make_page<protocol::LeasePage>("rota-lease", false);
}
Result<Page<protocol::UsagePage>> make_usage_page() {
  return make_page<protocol::UsagePage>("rota-usage", true);
}

}  // namespace rota::server
