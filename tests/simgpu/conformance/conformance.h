// Rules about the driver API, stated from its documentation, that hold on a real GPU and on simgpu alike. A rule is one
// sentence and the calls that check it; it names the mutation of simgpu (tools/simgpu/driver/entry/mutations.h) under
// which it must fail. Each rule runs in a process of its own, so it may break its context; a failed check ends that
// process.
//
//   RULE(events, query_before_record_succeeds, "lenient:cuEventQuery",
//        "cuEventQuery of an event that was never recorded answers CUDA_SUCCESS") {
//     Session session;
//     CUevent event = nullptr;
//     CHECK_OK(cu.cuEventCreate(&event, 0));
//     CHECK_EQ(cu.cuEventQuery(event), CUDA_SUCCESS);
//   }
//
// Needs no CUDA headers and links no libcuda: `cu` is filled from the driver that dlopen finds.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "generated/driver_functions.h"
#include "generated/driver_types.h"

namespace conformance {

using namespace rota::api;  // NOLINT(google-build-using-namespace): the names are CUDA's own

// What cuda.h defines with macros, which generated/driver_types.h has not.
inline constexpr unsigned CU_MEMHOSTALLOC_PORTABLE = 1;
inline constexpr unsigned CU_MEMHOSTALLOC_DEVICEMAP = 2;
inline constexpr unsigned CU_MEMHOSTALLOC_WRITECOMBINED = 4;
inline constexpr unsigned CU_MEMHOSTREGISTER_PORTABLE = 1;
inline constexpr unsigned CU_MEMHOSTREGISTER_DEVICEMAP = 2;
inline constexpr unsigned CU_MEMHOSTREGISTER_IOMEMORY = 4;
inline constexpr unsigned CU_MEMHOSTREGISTER_READ_ONLY = 8;
inline constexpr unsigned CUDA_ARRAY3D_LAYERED = 0x01;
inline constexpr unsigned CUDA_ARRAY3D_SURFACE_LDST = 0x02;
inline constexpr unsigned CUDA_ARRAY3D_CUBEMAP = 0x04;
inline constexpr unsigned CUDA_ARRAY3D_TEXTURE_GATHER = 0x08;
inline constexpr unsigned CUDA_ARRAY3D_SPARSE = 0x40;
inline constexpr CUdevice CU_DEVICE_CPU = -1;
inline constexpr CUdevice CU_DEVICE_INVALID = -2;
inline const CUstream CU_STREAM_LEGACY = reinterpret_cast<CUstream>(uintptr_t{1});
inline const CUstream CU_STREAM_PER_THREAD = reinterpret_cast<CUstream>(uintptr_t{2});
inline void* const CU_LAUNCH_PARAM_END = nullptr;
inline void* const CU_LAUNCH_PARAM_BUFFER_POINTER = reinterpret_cast<void*>(uintptr_t{1});
inline void* const CU_LAUNCH_PARAM_BUFFER_SIZE = reinterpret_cast<void*>(uintptr_t{2});

// Symbols that no header declares: a rule can at most see whether they are there.
using cuEGLApiInit_fn = CUresult();
using cuMemGetAttribute_fn = CUresult();
using cuMemGetAttribute_v2_fn = CUresult();

// The driver's functions by their exact exported names (cuMemAlloc_v2, cuLaunchKernel_ptsz …). Of one that the driver
// does not export, the first call fails the rule.
struct Cuda {
#define ROTA_SYMBOL(name) name##_fn* name;
#include "generated/driver_symbols.inc"
#undef ROTA_SYMBOL
};
extern Cuda cu;
// Whether the driver exports it.
bool exported(const char* symbol);

// ---- rules, children ------------------------------------------------------------------------------------------------

class Channel;
struct Rule {
  const char* area;
  const char* name;
  const char* mutation;
  const char* statement;
  void (*run)();
};
struct Role {
  const char* name;
  void (*run)(Channel& parent, const std::string& argument);
};
struct Registration {
  explicit Registration(const Rule& rule);
  explicit Registration(const Role& role);
};

#define RULE(area, name, mutation, statement)                                         \
  static void rule_##area##_##name();                                                 \
  static const ::conformance::Registration registration_##area##_##name{              \
      ::conformance::Rule{#area, #name, mutation, statement, &rule_##area##_##name}}; \
  static void rule_##area##_##name()

// What a second process does: CHILD(role) { ... } with `parent` (the channel to the rule) and `argument`.
#define CHILD(role)                                                                                              \
  static void child_##role(::conformance::Channel& parent, const std::string& argument);                         \
  static const ::conformance::Registration registration_child_##role{::conformance::Role{#role, &child_##role}}; \
  static void child_##role([[maybe_unused]] ::conformance::Channel& parent,                                      \
                           [[maybe_unused]] const std::string& argument)

// ---- checks: usable on every thread of a rule and in its children ---------------------------------------------------

// Each ends the process: with `file:line: text` as why the rule failed, or as a skipped rule.
[[noreturn]] void fail(const char* file, int line, const std::string& text);
[[noreturn]] void skip(const std::string& why);

std::string describe(CUresult result);
std::string describe(std::string_view text);
std::string describe(const void* pointer);
std::string describe_number(long long value);
std::string describe_number(unsigned long long value);
std::string describe_number(double value);

template <class T>
std::string describe_value(const T& value) {
  using Plain = std::decay_t<T>;
  if constexpr (std::is_same_v<Plain, CUresult>) {
    return describe(value);
  } else if constexpr (std::is_same_v<Plain, std::nullptr_t>) {
    return describe(static_cast<const void*>(nullptr));
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    if constexpr (std::is_pointer_v<Plain>) {
      if (value == nullptr) return describe(static_cast<const void*>(nullptr));
    }
    return describe(std::string_view(value));
  } else if constexpr (std::is_function_v<std::remove_pointer_t<Plain>>) {
    return describe(reinterpret_cast<const void*>(value));
  } else if constexpr (std::is_pointer_v<Plain>) {
    return describe(static_cast<const void*>(value));
  } else if constexpr (std::is_floating_point_v<Plain>) {
    return describe_number(static_cast<double>(value));
  } else if constexpr (std::is_enum_v<Plain>) {
    return describe_number(static_cast<long long>(value));
  } else if constexpr (std::is_signed_v<Plain>) {
    return describe_number(static_cast<long long>(value));
  } else {
    return describe_number(static_cast<unsigned long long>(value));
  }
}

// Numbers and enumerators by value whatever their types, C strings by content, all else by ==.
template <class A, class B>
bool equal(const A& a, const B& b) {
  constexpr bool kWholeA = (std::is_integral_v<A> && !std::is_same_v<A, bool>) || std::is_enum_v<A>;
  constexpr bool kWholeB = (std::is_integral_v<B> && !std::is_same_v<B, bool>) || std::is_enum_v<B>;
  if constexpr (kWholeA && kWholeB) {
    auto left = static_cast<__int128>(a);
    auto right = static_cast<__int128>(b);
    return left == right;
  } else if constexpr (std::is_convertible_v<const A&, std::string_view> &&
                       std::is_convertible_v<const B&, std::string_view>) {
    return std::string_view(a) == std::string_view(b);
  } else {
    return a == b;
  }
}

#define CHECK(condition)                                                                \
  do {                                                                                  \
    if (!(condition)) ::conformance::fail(__FILE__, __LINE__, "CHECK(" #condition ")"); \
  } while (false)
#define CONFORMANCE_COMPARE(macro, wanted, text, got_expression, expected_expression)    \
  do {                                                                                   \
    const auto got_value = (got_expression);                                             \
    const auto expected_value = (expected_expression);                                   \
    if (::conformance::equal(got_value, expected_value) != (wanted))                     \
      ::conformance::fail(__FILE__, __LINE__,                                            \
                          macro "(" #got_expression ", " #expected_expression ") got " + \
                              ::conformance::describe_value(got_value) + text +          \
                              ::conformance::describe_value(expected_value));            \
  } while (false)
#define CHECK_EQ(got, expected) CONFORMANCE_COMPARE("CHECK_EQ", true, " expected ", got, expected)
#define CHECK_NE(got, other) CONFORMANCE_COMPARE("CHECK_NE", false, " not to be ", got, other)
#define CHECK_OK(call)                                                                                               \
  do {                                                                                                               \
    if (auto result_of_call = (call); result_of_call != ::rota::api::CUDA_SUCCESS)                                   \
      ::conformance::fail(__FILE__, __LINE__, "CHECK_OK(" #call ") got " + ::conformance::describe(result_of_call)); \
  } while (false)
#define SKIP_UNLESS(condition, why)             \
  do {                                          \
    if (!(condition)) ::conformance::skip(why); \
  } while (false)

// ---- what rules are made with
// -----------------------------------------------------------------------------------------

// The driver initialised, and a device's primary context retained and made current on this thread.
class Session {
 public:
  explicit Session(int ordinal = 0);
  CUdevice device() const { return device_; }
  CUcontext context() const { return context_; }
  int devices() const;     // GPUs that the driver shows
  bool simulated() const;  // the driver is simgpu; for rules that must differ, of which there should be none

  // A kernel of tests/programs/kernels.cu by its plain name, in the calling thread's current context:
  //   saxpy(int n, float a, const float* x, float* y)            y[i] = a * x[i] + y[i]; one element per thread
  //   vector_add(const float* a, const float* b, float* out, int n)
  //   fill(unsigned* words, unsigned long count, unsigned value)  by however many threads
  //   memtouch(unsigned* words, unsigned long count, unsigned long stride, unsigned expected, unsigned* mismatches)
  //   reduce(const unsigned* words, unsigned long count, unsigned long* out)
  //   spin(unsigned long nanoseconds)
  //   spin_until(unsigned* flag)                                 until somebody stores something else than 0
  CUfunction function(const std::string& name) const;
  // The module that holds them, and the image that it was loaded from (PTX or a cubin).
  CUmodule module() const;
  static const std::string& image();
  // The mangled name of a kernel of that file.
  static std::string mangled(const std::string& name);

 private:
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

// One-dimensional launch of a function with its arguments (each of exactly the parameter's type).
template <class... Arguments>
CUresult launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream, Arguments... arguments) {
  void* pointers[] = {static_cast<void*>(&arguments)..., nullptr};
  return cu.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, nullptr);
}

// Device memory, freed at the end.
class Buffer {
 public:
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  operator CUdeviceptr() const { return address_; }  // NOLINT(google-explicit-constructor)
  CUdeviceptr address() const { return address_; }
  size_t bytes() const { return bytes_; }
  CUdeviceptr release() { return std::exchange(address_, 0); }  // the rule frees it itself

  // Synchronous copies of the first elements.
  template <class T>
  std::vector<T> read(size_t count) const {
    std::vector<T> values(count);
    CHECK_OK(cu.cuMemcpyDtoH_v2(values.data(), address_, count * sizeof(T)));
    return values;
  }
  template <class T>
  void write(const std::vector<T>& values) const {
    CHECK_OK(cu.cuMemcpyHtoD_v2(address_, values.data(), values.size() * sizeof(T)));
  }

 private:
  CUdeviceptr address_ = 0;
  size_t bytes_ = 0;
};

// Pinned host memory that every context sees, zeroed; freed at the end.
class Pinned {
 public:
  explicit Pinned(size_t bytes);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  template <class T = unsigned>
  T* data() const {
    return static_cast<T*>(memory_);
  }
  CUdeviceptr address() const { return address_; }  // as the device sees it

 private:
  void* memory_ = nullptr;
  CUdeviceptr address_ = 0;
};

// A stream and an event that are destroyed at the end.
class Stream {
 public:
  explicit Stream(unsigned flags = CU_STREAM_NON_BLOCKING);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator CUstream() const { return stream_; }  // NOLINT(google-explicit-constructor)
  CUstream release() { return std::exchange(stream_, nullptr); }

 private:
  CUstream stream_ = nullptr;
};
class Event {
 public:
  explicit Event(unsigned flags = CU_EVENT_DEFAULT);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator CUevent() const { return event_; }  // NOLINT(google-explicit-constructor)
  CUevent release() { return std::exchange(event_, nullptr); }

 private:
  CUevent event_ = nullptr;
};

// A kernel in the stream (of the current context) that ends at release(). One that was still held after kBlockerLimit
// gives up, so that nothing hangs, and fails the rule: something waited for it that should not have.
// Made before whatever a rule frees at its end: frees wait for running kernels.
class Blocker {
 public:
  explicit Blocker(CUstream stream);
  ~Blocker();
  Blocker(const Blocker&) = delete;
  Blocker& operator=(const Blocker&) = delete;
  void release();

 private:
  struct Flag;
  Flag* flag_;
};

// Messages between a rule and its child. A failure (the other side is gone) fails the rule.
class Channel {
 public:
  explicit Channel(int descriptor) : descriptor_(descriptor) {}
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  void send(std::string_view message);
  std::string receive();
  template <class T>
  void send_value(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    send({reinterpret_cast<const char*>(&value), sizeof value});
  }
  template <class T>
  T receive_value() {
    static_assert(std::is_trivially_copyable_v<T>);
    std::string message = receive();
    if (message.size() != sizeof(T)) fail(__FILE__, __LINE__, "a message of another size than expected");
    T value;
    std::memcpy(&value, message.data(), sizeof value);
    return value;
  }
  // An open file; the receiver closes its own descriptor.
  void send_file(int file);
  int receive_file();
  void close();

 private:
  int descriptor_;
};

// A second process of this program: runs CHILD(role). Ended with the rule, if not before.
class Child : public Channel {
 public:
  Child(const std::string& role, const std::string& argument = "");
  ~Child();
  pid_t pid() const { return pid_; }
  void finish();  // waits for its end; the rule fails unless it ended well
  void kill();    // SIGKILL, and waits for its end

 private:
  Child(std::pair<int, pid_t> started) : Channel(started.first), pid_(started.second) {}
  static std::pair<int, pid_t> start(const std::string& role, const std::string& argument);
  pid_t pid_;
};

}  // namespace conformance

using namespace rota::api;    // NOLINT(google-build-using-namespace): rules read like CUDA code
using namespace conformance;  // NOLINT(google-build-using-namespace)
