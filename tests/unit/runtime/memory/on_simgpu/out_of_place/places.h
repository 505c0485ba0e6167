// The places at which functions of the driver take device addresses (generated/driver_addresses.inc), and calls that
// are built from such a place: every argument is zero or points to zeros, except those that a test sets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/runtime/memory/on_simgpu/machine.h"

namespace rota::test {

struct Place {
  Symbol symbol;
  const char* text;
  std::size_t parameter;
  std::vector<std::size_t> offsets;  // none: a handle, and not an address
  bool is_address() const { return !offsets.empty(); }
};
const std::vector<Place>& places();

// A symbol's name without the suffix that says which stream NULL is: one row of a table covers all these forms.
std::string_view plain_name(Symbol symbol);

class Arguments {
 public:
  // As for any call of this function: null handles and zeros, pointers to memory of zeros.
  explicit Arguments(Symbol symbol);
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  template <typename Type>
  Type& value(std::size_t parameter) {
    static_assert(sizeof(Type) <= sizeof(Value));
    return *reinterpret_cast<Type*>(values_[parameter].data());
  }
  // What the pointer there points to.
  template <typename Type>
  Type& behind(std::size_t parameter) {
    static_assert(sizeof(Type) <= sizeof(Block));
    return *static_cast<Type*>(value<void*>(parameter));
  }
  // Zeros that live as long as this object.
  template <typename Type>
  Type* more() {
    static_assert(sizeof(Type) <= sizeof(Block));
    return reinterpret_cast<Type*>(fresh());
  }
  // Writes a device address where the place says.
  void put(const Place& place, CUdeviceptr address);
  // All that the call may write.
  using Contents = std::vector<unsigned char>;
  Contents contents() const;
  void restore(const Contents& contents);

  // Through rota, as a program calls it.
  CUresult call();

 private:
  using Value = std::array<unsigned char, 256>;
  using Block = std::array<unsigned char, 4096>;
  unsigned char* fresh() { return blocks_.emplace_back().data(); }

  Symbol symbol_;
  alignas(16) std::array<Value, 20> values_{};
  std::deque<Block> blocks_;
};

// A call that is made while memory is out of place, as the driver sees it. The thread that makes it sets `at_hand`.
struct Tried {
  Symbol symbol{};
  CUdeviceptr first = 0;  // memory that is out
  CUdeviceptr last = 0;
  bool succeeds = false;   // whatever the driver would say of these arguments
  bool reached = false;    // the driver has been called
  bool in_place = false;   // everything was where its addresses lead then
  bool inside = false;     // and the thread's word was raised
  bool stood_in = false;   // simgpu lacks the function; the call succeeded all the same
  std::string handed_out;  // functions of the driver that were passed an address of memory that was out
};
extern thread_local Tried* at_hand;

// For Machine::replace: the driver's functions that take device addresses, each call of which is examined first.
void* watched(Symbol symbol, void* simulated);

}  // namespace rota::test
