// What the ledger knows of where memory lies, for the gate.
#pragma once

#include "runtime/gate/reached.h"
#include "runtime/memory/memory.h"

namespace rota::turn {

class LedgerPlaces final : public MemoryPlaces {
 public:
  explicit LedgerPlaces(memory::Memory& memory) : memory_(memory) {}
  std::uint64_t changes() const override { return memory_.ledger().changes(); }
  int device_of(std::uint64_t address, bool* booked) const override { return memory_.device_of(address, booked); }
  int device_of_array(const void* handle) const override { return memory_.device_of_array(handle); }

 private:
  memory::Memory& memory_;
};

}  // namespace rota::turn
