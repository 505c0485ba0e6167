// Driver calls that do not wait for the GPU, each made while a kernel that waits for the host runs: a call that waited
// would hang a program whose kernel waits for the calling thread's next step. Each function is a rule of the
// conformance framework, so it has its own process, and the same program runs on simgpu, on a GPU, and under rota.
//
//   RETURNS(cuMemAlloc_v2, o.any, 4096)     the call succeeds (or the driver does not support it) and does not wait
//   ANSWERS(cuMemRelease, 0)                whatever it returns, it does not wait
//   MAY_ANSWER(cuCtxGetId)                  the same, with arguments made by their types
//
// `o` provides the arguments (Objects). With _FORMS, the symbol with _ptsz is called as well.
#pragma once

#include "tests/simgpu/conformance/conformance.h"
#include "tests/simgpu/conformance/graphs_support.h"
#include "tests/simgpu/conformance/managed.h"
#include "tests/simgpu/conformance/pools.h"
#include "tests/simgpu/conformance/vmm.h"

namespace behind_kernel {

// Zeroed memory for a result of any type. Each use has a separate slot, which is reused after 64 others.
struct Any {
  template <class T>
  operator T*() const {  // NOLINT(google-explicit-constructor): an argument
    alignas(64) static char places[64][4096];
    static unsigned next = 0;
    char* place = places[next++ % 64];
    std::memset(place, 0, sizeof places[0]);
    return reinterpret_cast<T*>(place);
  }
};

inline constexpr size_t kBytes = size_t{1} << 20;

// One object of each kind, created before the kernel starts and never released: the process ends after its few calls.
struct Objects {
  explicit Objects(const Session& session);

  Any any;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;  // the one to submit to
  CUstream spare = nullptr;   // nothing is in it; may be destroyed
  CUevent event = nullptr;    // recorded, and complete
  CUevent spare_event = nullptr;
  CUevent shared_event = nullptr;
  CUmodule module = nullptr;
  CUfunction function = nullptr;  // fill, loaded
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;

  CUdeviceptr plain = 0;  // each of kBytes
  CUdeviceptr other_plain = 0;
  CUdeviceptr managed = 0;
  CUdeviceptr in_order = 0;
  CUdeviceptr mapped = 0;
  CUdeviceptr reserved = 0;
  CUmemGenericAllocationHandle handle = 0;  // unmapped; exportable
  size_t extent = 0;                        // bytes of the handle and of each reservation
  CUmemoryPool pool = nullptr;
  CUmemoryPool shared_pool = nullptr;
  CUdeviceptr of_shared_pool = 0;
  CUarray array = nullptr;
  CUmipmappedArray mipmapped = nullptr;
  unsigned* pinned = nullptr;
  CUdeviceptr pinned_address = 0;

  CUgraph graph = nullptr;
  CUgraph child = nullptr;
  CUgraph empty_graph = nullptr;
  CUgraphNode empty_node = nullptr;
  CUgraphNode kernel_node = nullptr;
  CUgraphNode set_node = nullptr;
  CUgraphNode copy_node = nullptr;
  CUgraphNode host_node = nullptr;
  CUgraphNode child_node = nullptr;
  CUgraphNode record_node = nullptr;
  CUgraphNode wait_node = nullptr;
  CUgraphExec executable = nullptr;
  CUuserObject object = nullptr;

  CUDA_KERNEL_NODE_PARAMS kernel_parameters{};
  CUDA_MEMSET_NODE_PARAMS set_parameters{};
  CUDA_MEMCPY3D copy_parameters{};
  CUDA_HOST_NODE_PARAMS host_parameters{};
  CUmemLocation here{};
  CUmemAllocationProp physical{};
  size_t one_size = kBytes;
  size_t zero_index = 0;
  // Of the kernel fill.
  CUdeviceptr words = 0;
  unsigned long count = 64;
  unsigned value = 1;
  void* arguments[4] = {};
};

// An argument chosen by type alone: good enough for calls that only query. Handles that are not created here are null.
template <class T>
T argument(Objects& o) {
#define BEHIND_KERNEL_HANDLE(type, member) \
  if constexpr (std::is_same_v<T, type>) { \
    return o.member;                       \
  } else
  // clang-format off
  BEHIND_KERNEL_HANDLE(CUstream, stream)
  BEHIND_KERNEL_HANDLE(CUevent, event)
  BEHIND_KERNEL_HANDLE(CUcontext, context)
  BEHIND_KERNEL_HANDLE(CUmodule, module)
  BEHIND_KERNEL_HANDLE(CUfunction, function)
  BEHIND_KERNEL_HANDLE(CUlibrary, library)
  BEHIND_KERNEL_HANDLE(CUkernel, kernel)
  BEHIND_KERNEL_HANDLE(CUgraph, graph)
  BEHIND_KERNEL_HANDLE(CUgraphNode, empty_node)
  BEHIND_KERNEL_HANDLE(CUgraphExec, executable)
  BEHIND_KERNEL_HANDLE(CUmemoryPool, pool)
  BEHIND_KERNEL_HANDLE(CUarray, array)
  BEHIND_KERNEL_HANDLE(CUmipmappedArray, mipmapped)
  BEHIND_KERNEL_HANDLE(CUuserObject, object)
  // clang-format on
#undef BEHIND_KERNEL_HANDLE
  if constexpr (std::is_same_v<T, CUdeviceptr>) {
    return o.plain;
  } else if constexpr (std::is_same_v<T, size_t>) {
    return 1;
  } else if constexpr (std::is_same_v<T, const char*>) {
    return "/dev/null";
  } else if constexpr (std::is_same_v<T, void*>) {
    return o.any;
  } else if constexpr (std::is_pointer_v<T>) {
    if constexpr (requires { sizeof(std::remove_pointer_t<T>); } && !std::is_function_v<std::remove_pointer_t<T>>) {
      return o.any;
    } else {
      return nullptr;
    }
  } else {
    return T{};
  }
}

template <class... Parameters>
CUresult call_by_types(CUresult (*function)(Parameters...), Objects& o) {
  return function(argument<Parameters>(o)...);
}

// Makes the call behind a kernel in its own stream, in another one, and in the null stream. `succeeds`: the result in
// the first two is checked.
void run(const char* symbol, CUresult (*call)(Objects&), bool succeeds);

}  // namespace behind_kernel

#define BEHIND_KERNEL(symbol, succeeds, expression)                                                     \
  static CUresult behind_kernel_##symbol([[maybe_unused]] ::behind_kernel::Objects& o) {                \
    return expression;                                                                                  \
  }                                                                                                     \
  RULE(unwaiting, symbol, "waits:" #symbol, "returns while a kernel runs, in any stream, that waits") { \
    SKIP_UNLESS(exported(#symbol), "the driver has no such function");                                  \
    ::behind_kernel::run(#symbol, &behind_kernel_##symbol, succeeds);                                   \
  }
#define RETURNS(symbol, ...) BEHIND_KERNEL(symbol, true, cu.symbol(__VA_ARGS__))
#define RETURNS_FORMS(symbol, ...) RETURNS(symbol, __VA_ARGS__) RETURNS(symbol##_ptsz, __VA_ARGS__)
#define ANSWERS(symbol, ...) BEHIND_KERNEL(symbol, false, cu.symbol(__VA_ARGS__))
#define ANSWERS_FORMS(symbol, ...) ANSWERS(symbol, __VA_ARGS__) ANSWERS(symbol##_ptsz, __VA_ARGS__)
#define MAY_ANSWER(symbol) BEHIND_KERNEL(symbol, false, ::behind_kernel::call_by_types(cu.symbol, o))
#define MAY_ANSWER_FORMS(symbol) MAY_ANSWER(symbol) MAY_ANSWER(symbol##_ptsz)
