// Write kernels for the simulated GPU: a kernel is a host function in a library named by ROTA_SIM_KERNELS, registered
// under the mangled name by which programs look up the real one. Include only this header; it needs C++17 and no
// library.
//
//   void scale(rota::sim::Launch& launch, rota::sim::Pointer<float> data, float factor, int count) {
//     float* values = data.range(launch, count);          // null: not device memory; the launch has failed
//     if (values == nullptr) return;
//     launch.for_each_thread([&](auto at) {
//       if (at.global_x() < count) values[at.global_x()] *= factor;
//     });
//   }
//   ROTA_SIM_KERNELS_BEGIN
//   ROTA_SIM_KERNEL("_Z5scalePffi", scale)
//   ROTA_SIM_KERNELS_END
//
// Device variables (found by name with cuModuleGetGlobal and similar functions; each module and context has its own
// copy):
//
//   ROTA_SIM_VARIABLES_BEGIN
//   ROTA_SIM_VARIABLE("counter", unsigned, 5)             // __device__ unsigned counter = 5;
//   ROTA_SIM_CONSTANT("weights", float[3], {1, 2, 3})     // __constant__
//   ROTA_SIM_MANAGED("flag", int, 0)                      // __managed__: one for all contexts
//   ROTA_SIM_VARIABLES_END
//
//   unsigned* counter = launch.variable<unsigned>("counter", 1);   // in a kernel of the same module; null as above
//
// Parameters are laid out as CUDA lays them out (each aligned to its own alignment). A kernel runs on a thread of its
// stream. Managed memory: the launch makes every managed allocation that a pointer-sized parameter points into
// resident, from there to its end; launch.touch() does so for memory that is reached in another way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <tuple>
#include <type_traits>
#include <utility>

extern "C" {
struct RotaSimLaunch;
// The driver's services for a running kernel.
struct RotaSimLaunchCalls {
  // Host address of [address, address + bytes), or null; null fails the launch with CUDA_ERROR_ILLEGAL_ADDRESS.
  void* (*translate)(struct RotaSimLaunch*, uint64_t address, uint64_t bytes);
  // Makes managed memory resident, as if the kernel used it.
  void (*touch)(struct RotaSimLaunch*, uint64_t address, uint64_t bytes);
  // Occupies the compute engine for this many modelled nanoseconds, in slices, so that other processes run in between.
  void (*busy)(struct RotaSimLaunch*, uint64_t nanoseconds);
  // The context is being torn down: a kernel that loops must return.
  int (*cancelled)(struct RotaSimLaunch*);
  // Host address of a variable of the kernel's module with at least this many bytes, or null; null fails the launch
  // with CUDA_ERROR_ILLEGAL_ADDRESS.
  void* (*variable)(struct RotaSimLaunch*, const char* name, uint64_t bytes);
  // Occupies the compute engine for as long as the card needs to read and write this many bytes of its memory.
  void (*stream)(struct RotaSimLaunch*, uint64_t bytes);
  // The launch fails with CUDA_ERROR_LAUNCH_FAILED, as after a trap in a real kernel; `why` goes to stderr.
  void (*fail)(struct RotaSimLaunch*, const char* why);
};
struct RotaSimLaunch {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  const unsigned char* parameters;
  const struct RotaSimLaunchCalls* calls;
};
struct RotaSimKernel {
  const char* name;  // mangled; null ends the list
  void (*run)(struct RotaSimLaunch*);
  const uint32_t* parameter_offsets;
  const uint32_t* parameter_sizes;
  uint32_t parameters;
  uint32_t parameter_bytes;
  // What a compiler would determine; cuFuncGetAttribute returns it, and occupancy is computed from it.
  struct RotaSimKernelNeeds {
    int32_t registers = 0;     // per thread; 0: 32
    int32_t shared_bytes = 0;  // static, per block
    int32_t local_bytes = 0;
    int32_t constant_bytes = 0;
    int32_t max_threads = 0;  // per block (__launch_bounds__); 0: as many as the device and the registers allow
  } needs;
};
enum RotaSimVariableKind { ROTA_SIM_DEVICE_VARIABLE, ROTA_SIM_CONSTANT_VARIABLE, ROTA_SIM_MANAGED_VARIABLE };
struct RotaSimVariable {
  const char* name;  // null ends the list
  uint64_t bytes;
  const void* initial;
  enum RotaSimVariableKind kind;
};
// The symbols that a kernel library exports; the second one only if it has variables.
const struct RotaSimKernel* rota_sim_kernels(void);
const struct RotaSimVariable* rota_sim_variables(void);
}

namespace rota::sim {

class Launch : public RotaSimLaunch {
 public:
  struct Thread {
    unsigned block_x, block_y, block_z, thread_x, thread_y, thread_z;
    unsigned block_size_x;
    long global_x() const { return static_cast<long>(block_x) * block_size_x + thread_x; }
  };
  uint64_t threads_x() const { return static_cast<uint64_t>(grid[0]) * block[0]; }

  template <class T>
  T* translate(uint64_t address, uint64_t count) {
    return static_cast<T*>(calls->translate(this, address, count * sizeof(T)));
  }
  void touch(uint64_t address, uint64_t bytes) { calls->touch(this, address, bytes); }
  void busy(uint64_t nanoseconds) { calls->busy(this, nanoseconds); }
  void stream(uint64_t bytes) { calls->stream(this, bytes); }
  bool cancelled() { return calls->cancelled(this) != 0; }
  void fail(const char* why) { calls->fail(this, why); }
  template <class T>
  T* variable(const char* name, uint64_t count) {
    return static_cast<T*>(calls->variable(this, name, count * sizeof(T)));
  }

  // Calls body(Thread) for every thread of the launch, block by block.
  template <class Body>
  void for_each_thread(Body body) {
    for (unsigned bz = 0; bz < grid[2]; ++bz)
      for (unsigned by = 0; by < grid[1]; ++by)
        for (unsigned bx = 0; bx < grid[0]; ++bx)
          for (unsigned tz = 0; tz < block[2]; ++tz)
            for (unsigned ty = 0; ty < block[1]; ++ty)
              for (unsigned tx = 0; tx < block[0]; ++tx) body(Thread{bx, by, bz, tx, ty, tz, block[0]});
  }
};

// A pointer parameter: a device address, from which a kernel requests a range.
template <class T>
struct Pointer {
  uint64_t address;
  T* range(Launch& launch, uint64_t count) const { return launch.translate<T>(address, count); }
};

namespace detail {

constexpr uint32_t aligned(uint32_t offset, uint32_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

template <auto function, class Signature = decltype(function)>
struct KernelOf;

template <auto function, class... Parameters>
struct KernelOf<function, void (*)(Launch&, Parameters...)> {
  static constexpr uint32_t kCount = sizeof...(Parameters);
  struct Layout {
    uint32_t offsets[kCount + 1];
    uint32_t sizes[kCount + 1];
    uint32_t bytes;
  };
  static constexpr Layout layout() {
    constexpr uint32_t sizes[] = {static_cast<uint32_t>(sizeof(Parameters))..., 0};
    constexpr uint32_t alignments[] = {static_cast<uint32_t>(alignof(Parameters))..., 1};
    Layout result{};
    for (uint32_t i = 0; i < kCount; ++i) {
      result.offsets[i] = aligned(result.bytes, alignments[i]);
      result.sizes[i] = sizes[i];
      result.bytes = result.offsets[i] + sizes[i];
    }
    return result;
  }
  static constexpr Layout kLayout = layout();

  template <size_t... index>
  static void call(Launch& launch, std::index_sequence<index...>) {
    function(launch, *reinterpret_cast<const Parameters*>(launch.parameters + kLayout.offsets[index])...);
  }
  // Exceptions end here: the driver may use a different C++ library, which could not handle them.
  static void run(RotaSimLaunch* launch) {
#ifdef __cpp_exceptions
    try {
      call(*static_cast<Launch*>(launch), std::index_sequence_for<Parameters...>{});
    } catch (const std::exception& exception) {
      launch->calls->fail(launch, exception.what());
    } catch (...) {
      launch->calls->fail(launch, "an exception");
    }
#else
    call(*static_cast<Launch*>(launch), std::index_sequence_for<Parameters...>{});
#endif
  }
  static constexpr RotaSimKernel describe(const char* name, RotaSimKernel::RotaSimKernelNeeds needs = {}) {
    return {name, &run, kLayout.offsets, kLayout.sizes, kCount, kLayout.bytes, needs};
  }
};

// A variable's initial value; the object lives as long as the library.
template <class T>
struct Initial {
  T value;
};

}  // namespace detail
}  // namespace rota::sim

#define ROTA_SIM_KERNELS_BEGIN                                                                    \
  extern "C" __attribute__((visibility("default"))) const RotaSimKernel* rota_sim_kernels(void) { \
    static const RotaSimKernel list[] = {
#define ROTA_SIM_KERNEL(mangled_name, function) ::rota::sim::detail::KernelOf<&function>::describe(mangled_name),
// ROTA_SIM_KERNEL_WITH("_Z4nameP", function, {.registers = 40, .shared_bytes = 4096})
#define ROTA_SIM_KERNEL_WITH(mangled_name, function, ...) \
  ::rota::sim::detail::KernelOf<&function>::describe(mangled_name, __VA_ARGS__),
#define ROTA_SIM_KERNELS_END                     \
  {                                              \
    nullptr, nullptr, nullptr, nullptr, 0, 0, {} \
  }                                              \
  }                                              \
  ;                                              \
  return list;                                   \
  }

#define ROTA_SIM_VARIABLES_BEGIN                                                                      \
  extern "C" __attribute__((visibility("default"))) const RotaSimVariable* rota_sim_variables(void) { \
    static const RotaSimVariable list[] = {
#define ROTA_SIM_VARIABLE_OF(kind, name, type, ...)                        \
  {name, sizeof(::rota::sim::detail::Initial<type>),                       \
   [] {                                                                    \
     static const ::rota::sim::detail::Initial<type> initial{__VA_ARGS__}; \
     return static_cast<const void*>(&initial);                            \
   }(),                                                                    \
   kind},
#define ROTA_SIM_VARIABLE(name, type, ...) ROTA_SIM_VARIABLE_OF(ROTA_SIM_DEVICE_VARIABLE, name, type, __VA_ARGS__)
#define ROTA_SIM_CONSTANT(name, type, ...) ROTA_SIM_VARIABLE_OF(ROTA_SIM_CONSTANT_VARIABLE, name, type, __VA_ARGS__)
#define ROTA_SIM_MANAGED(name, type, ...) ROTA_SIM_VARIABLE_OF(ROTA_SIM_MANAGED_VARIABLE, name, type, __VA_ARGS__)
#define ROTA_SIM_VARIABLES_END                    \
  {                                               \
    nullptr, 0, nullptr, ROTA_SIM_DEVICE_VARIABLE \
  }                                               \
  }                                               \
  ;                                               \
  return list;                                    \
  }
