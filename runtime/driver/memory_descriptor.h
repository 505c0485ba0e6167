// Descriptors of GPU memory that came from other processes or goes to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "scheduler/base/descriptor.h"

namespace rota::driver {

// A descriptor that keeps GPU memory alive, or of a socket that does so for another process's memory. The child of a
// fork must close it, so all such descriptors are in a table.
class MemoryDescriptor {
 public:
  // Empty if the process has few descriptors left or the table is full: then the descriptor has been closed.
  explicit MemoryDescriptor(Descriptor descriptor);
  ~MemoryDescriptor();
  MemoryDescriptor(const MemoryDescriptor&) = delete;
  MemoryDescriptor& operator=(const MemoryDescriptor&) = delete;

  int get() const { return descriptor_.get(); }
  explicit operator bool() const { return static_cast<bool>(descriptor_); }

  // In the child of a fork: closes the parent's. Touches no object, and takes no lock.
  static void close_inherited();

 private:
  Descriptor descriptor_;
  std::size_t place_ = 0;
};
using SharedDescriptor = std::shared_ptr<const MemoryDescriptor>;  // null: none

// An extent of a GPU's memory that another process has handed over.
struct Handed {
  std::uint64_t bytes = 0;
  SharedDescriptor memory;
};

}  // namespace rota::driver
