// Makes the arguments of driver calls from a fuzzer's bytes, and remembers what the calls gave. One for each thread of
// an input; what was learned is shared by all of them.
//
// Never made up: host pointers. They lead to buffers that outlive every input and are larger than any count or size
// that goes with them (Range), or to memory that the driver gave and still has.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <map>
#include <mutex>
#include <type_traits>
#include <typeindex>
#include <vector>

#include "generated/driver_symbols.h"
#include "tools/simgpu/driver/api.h"

namespace rota::fuzz {

using namespace rota::api;  // NOLINT(google-build-using-namespace): the names are CUDA's own

// How large a number may be.
enum class Range {
  kPlain,      // anything; as a size either small or more than any machine has
  kCount,      // of elements, at most kElements
  kBytes,      // of a host buffer, at most kDataBytes
  kSide,       // of a box: a box of four sides and its offsets fit a host buffer
  kFlags,      // a few low bits
  kDimension,  // of a launch
};

// What all threads of an input know.
struct Learned {
  std::mutex mutex;
  std::map<std::type_index, std::vector<void*>> handles;
  std::vector<uint64_t> integers[4];
  std::vector<uint64_t> addresses;
  std::vector<void*> host;
  std::vector<int> files;
  std::map<std::type_index, std::vector<std::vector<unsigned char>>> structs;
};

class Machine {
 public:
  static constexpr size_t kElements = 8;           // of an array
  static constexpr size_t kFilledElements = 2;     // of them from the input; the others are like them
  static constexpr size_t kDataBytes = 1 << 20;    // largest Range::kBytes
  static constexpr size_t kDataRegion = 16 << 20;  // pointers lead into its first MiB
  static constexpr size_t kStructRegion = 1 << 20;
  // A module with some kernels of tools/simgpu/kernels, and a variable.
  static constexpr const char* kKernelImage =
      ".version 7.0\n.target sm_52\n.address_size 64\n.global .align 4 .u32 counter = 5;\n"
      ".visible .entry _Z5saxpyifPKfPf()\n{\n  ret;\n}\n.visible .entry _Z4fillPjmj()\n{\n  ret;\n}\n"
      ".visible .entry _Z8memtouchPjmmjS_()\n{\n  ret;\n}\n.visible .entry _Z6reducePKjmPm()\n{\n  ret;\n}\n"
      ".visible .entry _Z4spinm()\n{\n  ret;\n}\n.visible .entry _Z10spin_untilPj()\n{\n  ret;\n}\n"
      ".visible .entry _Z8count_upj()\n{\n  ret;\n}\n";
  enum IntegerPool {
    CUmemGenericAllocationHandle_pool,
    CUtexObject_pool,
    CUsurfObject_pool,
    CUgraphConditionalHandle_pool
  };

  // `shared`: other threads use what was learned too, so memory of theirs may go at any time.
  Machine(Learned& learned, const uint8_t* bytes, size_t size, bool shared);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  bool empty() const { return at_ >= size_; }
  uint8_t byte() { return at_ < size_ ? bytes_[at_++] : 0; }
  size_t below(size_t count) {
    size_t value = byte();
    if (count > 256) value = value << 8 | byte();
    return value % count;
  }
  uint64_t word();

  template <class T>
  T number(Range range) {
    return static_cast<T>(whole(range));
  }
  template <class T>
  T real() {
    return static_cast<T>(static_cast<int64_t>(whole(Range::kPlain))) / T{8};
  }
  template <class T>
  T choice_exact(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }
  template <class T>
  T choice(std::initializer_list<T> values) {
    size_t chosen = below(values.size() + values.size() / 16 + 1);
    return chosen < values.size() ? values.begin()[chosen] : static_cast<T>(number<unsigned>(Range::kPlain));
  }
  template <class T>
  T handle() {
    return static_cast<T>(any_handle(typeid(T)));
  }
  uint64_t integer_handle(IntegerPool pool);
  CUdevice device();
  // Of the device, managed, pinned, registered, host; or of no memory at all, but then never of the process's own.
  uint64_t device_pointer();
  void* data();
  void* host_memory();      // as cuMemHostRegister and cuMemFreeHost take it
  void* file_as_pointer();  // a descriptor
  const void* image();
  const char* text();
  char* out_text() { return static_cast<char*>(data()); }
  void** pointers();
  void** kernel_parameters();
  void** kernel_extra();
  template <class T>
  T callback();

  template <class T>
  void clear(T& object) {
    std::memset(static_cast<void*>(&object), 0, sizeof object);
  }
  template <size_t count>
  void bytes(char (&text)[count], size_t) {
    for (size_t i = 0; i < std::min<size_t>(count, 4); ++i) text[i] = static_cast<char>(byte());
  }
  template <class T, size_t count>
  void bytes(T (&values)[count], size_t) {
    for (size_t i = 0; i < std::min<size_t>(count, 4); ++i) values[i] = static_cast<T>(byte());
  }
  template <class T, class Fill>
  T filled(Fill fill) {
    T object;
    clear(object);
    fill(object);
    return object;
  }
  template <class T, class Fill>
  void fill_or_remember(T& object, Fill fill) {
    if (!recall(typeid(T), &object, sizeof object)) fill();
  }
  // Null, or kElements of them.
  template <class T, class Fill>
  T* array(Fill fill) {
    if (byte() % 32 == 31) return nullptr;
    auto* elements = static_cast<T*>(struct_memory(kElements * sizeof(T)));
    if (elements == nullptr) return nullptr;
    for (size_t i = 0; i < kFilledElements; ++i) fill(elements[i]);
    for (size_t i = kFilledElements; i < kElements; ++i) {
      std::memcpy(static_cast<void*>(&elements[i]), static_cast<const void*>(&elements[i % kFilledElements]),
                  sizeof(T));
    }
    return elements;
  }

  template <class T>
  void learn(T* handles) {
    if (handles == nullptr) return;
    std::lock_guard lock(learned_.mutex);
    for (size_t i = 0; i < kElements; ++i) remember_in(learned_.handles[typeid(T)], static_cast<void*>(handles[i]));
  }
  template <class T>
  void learn_address(T* addresses) {
    if (addresses == nullptr) return;
    std::lock_guard lock(learned_.mutex);
    for (size_t i = 0; i < kElements; ++i) remember_in(learned_.addresses, static_cast<uint64_t>(addresses[i]));
  }
  void learn_allocated(CUdeviceptr address) {
    std::lock_guard lock(learned_.mutex);
    remember_in(learned_.addresses, static_cast<uint64_t>(address));
  }
  template <class T>
  void learn_integer(IntegerPool pool, T* handles) {
    if (handles == nullptr) return;
    std::lock_guard lock(learned_.mutex);
    remember_in(learned_.integers[pool], static_cast<uint64_t>(handles[0]));
  }
  template <class T>
  void remember(T* object) {
    if (object == nullptr) return;
    auto* from = reinterpret_cast<unsigned char*>(object);
    std::lock_guard lock(learned_.mutex);
    learned_.structs[typeid(T)].emplace_back(from, from + sizeof *object);
  }
  void learn_host(void** memory);
  void learn_file(void* descriptor);

  template <class Function, class... Arguments>
  CUresult call(Symbol symbol, Arguments... arguments) {
    if (tracing) {
      std::fprintf(stderr, "%s(", kSymbolNames[static_cast<size_t>(symbol)]);
      (trace_argument(arguments), ...);
    }
    calls_.fetch_add(1);
    in_call_.store(true);
    auto* function = reinterpret_cast<Function*>(rota_sim_table[static_cast<size_t>(symbol)]);
    CUresult result = function(arguments...);
    in_call_.store(false);
    if (tracing) std::fprintf(stderr, ") = %d\n", static_cast<int>(result));
    struct_used_ = 0;
    return result;
  }

  // For the watch: the call under way, 0 if none.
  uint64_t call_under_way() const { return in_call_.load() ? calls_.load() : 0; }
  std::atomic<bool> rescued{false};  // a call was ended from outside: the input is over
  static inline bool tracing = false;

 private:
  template <class T>
  void trace_argument(const T& argument) {
    if constexpr (std::is_pointer_v<T>) {
      std::fprintf(stderr, "%p, ", reinterpret_cast<const void*>(argument));
    } else if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
      std::fprintf(stderr, "%#llx, ", static_cast<unsigned long long>(argument));
    } else {
      std::fprintf(stderr, "{...}, ");
    }
  }
  template <class List, class Value>
  static void remember_in(List& list, Value value) {
    if (value != Value{} && (list.empty() || list.back() != value) && list.size() < 4096) list.push_back(value);
  }
  uint64_t whole(Range range);
  void* any_handle(std::type_index type);
  bool recall(std::type_index type, void* object, size_t size);
  void* struct_memory(size_t bytes);  // of this call; null when it has had much
  bool may_use(uint64_t address) const;

  Learned& learned_;
  const uint8_t* bytes_;
  size_t size_;
  bool shared_;
  size_t at_ = 0;
  unsigned char* data_;
  unsigned char* structs_;
  size_t struct_used_ = 0;
  std::atomic<uint64_t> calls_{0};
  std::atomic<bool> in_call_{false};
};

template <>
CUhostFn Machine::callback<CUhostFn>();
template <>
CUstreamCallback Machine::callback<CUstreamCallback>();
template <>
CUoccupancyB2DSize Machine::callback<CUoccupancyB2DSize>();
template <class T>
T Machine::callback() {
  return nullptr;
}

struct Call {
  Symbol symbol;
  void (*make)(Machine& machine);
};
// A function of the driver by a number below kChoices; of those that simgpu does not simulate, the next that it does.
inline constexpr size_t kChoices = 65536;
const Call& chosen_call(size_t choice);

}  // namespace rota::fuzz
