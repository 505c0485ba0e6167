// Tells the gate on which GPU memory is, by the ledger.
#pragma once

#include "runtime/gate/reached.h"
#include "runtime/memory/residency.h"

namespace rota::monitor {

class LedgerPlaces final : public gate::MemoryPlaces {
 public:
  explicit LedgerPlaces(memory::Residency& memory) : memory_(memory), ledger_(memory.ledger()) {}
  std::uint64_t changes() const override { return ledger_.changes(); }
  int device_of(std::uint64_t address, bool* booked) const override { return memory_.device_of(address, booked); }
  int device_of_array(const void* handle) const override { return memory_.device_of_array(handle); }

 private:
  const memory::Residency& memory_;
  const memory::Ledger& ledger_;
};

}  // namespace rota::monitor
