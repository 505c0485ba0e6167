// The two pages that rotad shares with each client. Both are created here and sealed against resizing, so that neither
// side can make the other fault; the page that only rotad writes is also sealed against new writable mappings.
#pragma once

#include "scheduler/base/descriptor.h"
#include "scheduler/base/result.h"
#include "scheduler/protocol/pages.h"

namespace rota::server {

// One page, mapped for reading and writing on this side.
template <typename Layout>
class Page {
 public:
  Page() = default;
  Page(Page&& other) noexcept : layout_(std::exchange(other.layout_, nullptr)), passed_(std::move(other.passed_)) {}
  Page& operator=(Page&& other) noexcept {
    std::swap(layout_, other.layout_);
    passed_ = std::move(other.passed_);
    return *this;
  }
  ~Page();

  Layout* operator->() const { return layout_; }
  Layout& operator*() const { return *layout_; }

  // What the client gets. forget_descriptor() closes it: the mapping holds the page, and descriptors are scarce.
  int descriptor() const { return passed_.get(); }
  void forget_descriptor() { passed_ = Descriptor(); }

 private:
  template <typename L>
  friend Result<Page<L>> make_page(const char* name, bool client_writes);

  Layout* layout_ = nullptr;
  Descriptor passed_;
};

// Both name the system call that failed.
Result<Page<protocol::LeasePage>> make_lease_page();
Result<Page<protocol::UsagePage>> make_usage_page();

}  // namespace rota::server
