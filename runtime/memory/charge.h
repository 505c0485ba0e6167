// Changes that an allocation or a free makes to the ledger before it calls the driver, and that are undone unless the
// call succeeds.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/core/undo.h"
#include "runtime/memory/ledger.h"

namespace rota::memory {

// Bytes that are reserved in the ledger for an allocation; false: none are. commit() once they belong to an entry.
class Charge : public Undo {
 public:
  // For bytes that are about to be reserved: begin() once they are. `frame`: of the function that holds the charge.
  Charge(Ledger& ledger, int device, std::uint64_t bytes, Kind kind, const void* frame = __builtin_dwarf_cfa())
      : Undo(&release, &ledger, device, bytes,
             static_cast<std::uint32_t>(kind.route) << 8 | static_cast<std::uint32_t>(kind.backing), frame),
        ledger_(ledger),
        device_(device),
        bytes_(bytes),
        kind_(kind) {}
  void commit() {
    if (over()) ledger_.settle(device_, bytes_, kind_);
  }

 private:
  static void release(void* ledger, int device, std::uint64_t bytes, std::uint32_t kind) {
    static_cast<Ledger*>(ledger)->cancel(device, bytes,
                                         {static_cast<Route>(kind >> 8), static_cast<Backing>(kind & 0xff)});
  }
  Ledger& ledger_;
  int device_;
  std::uint64_t bytes_;
  Kind kind_;
};

// The entry that begins at an address, while it is being freed: it is live again unless commit() is called.
class Freeing {
 public:
  Freeing(Ledger& ledger, std::uint64_t address) : ledger_(ledger), taken_(ledger.begin_free(address)), open_(taken_) {}
  ~Freeing() { cancel(); }
  Freeing(const Freeing&) = delete;
  Freeing& operator=(const Freeing&) = delete;

  // False: no entry begins there, or another thread is freeing it.
  explicit operator bool() const { return taken_.has_value(); }
  const Allocation& operator*() const { return *taken_; }
  const Allocation* operator->() const { return &*taken_; }
  // The memory is freed, or will be.
  void commit() { open_ = false; }
  void cancel() {
    if (open_) ledger_.cancel_free(*taken_);
    open_ = false;
  }

 private:
  Ledger& ledger_;
  const std::optional<Allocation> taken_;
  bool open_;
};

}  // namespace rota::memory
