// Modules and libraries, the functions and kernels that they name, and their variables.
//
// A module belongs to a context. A library does not: it has a separate module for each context that uses it, and a
// library's kernel means the function of that name in the current context's module.
#pragma once

#include <array>
#include <atomic>
#include <climits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tools/simgpu/driver/api.h"
#include "tools/simgpu/driver/module/image.h"
#include "tools/simgpu/state/shared_state.h"

namespace rota::sim {

struct Context;
struct Library;
struct Module;

// The attributes of a function that a program may set.
class FunctionSettings {
 public:
  static constexpr int kNotSet = INT_MIN;
  FunctionSettings() {
    for (auto& value : values_) value.store(kNotSet);
  }
  int get(CUfunction_attribute which) const { return values_[static_cast<size_t>(which)].load(); }
  void set(CUfunction_attribute which, int value) { values_[static_cast<size_t>(which)].store(value); }

 private:
  std::array<std::atomic<int>, CU_FUNC_ATTRIBUTE_MAX> values_;
};

// The state that the deprecated launch functions keep in a function between calls (cuFuncSetBlockShape, cuParamSetv …).
struct HeldLaunch {
  std::mutex mutex;
  int block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  std::vector<unsigned char> arguments;
};

// A function of a module, or (context null) a kernel of a library.
struct Function {
  const RotaSimKernel* kernel = nullptr;
  CUcontext context = nullptr;
  int gpu = 0;  // of the context
  std::weak_ptr<Module> module;
  std::weak_ptr<Library> library;
  std::shared_ptr<Function> of;  // in a library's module: the kernel whose settings apply where the function has none
  HeldLaunch held;
  std::array<FunctionSettings, kMaxGpus> settings;  // per device for a kernel; a function has only one device

  CUfunction handle() { return reinterpret_cast<CUfunction>(this); }

  // The result of cuFuncGetAttribute on a device; false: no such attribute.
  bool attribute(CUfunction_attribute which, int device, int* value) const;
  int value(CUfunction_attribute which) const {
    int value = 0;
    attribute(which, gpu, &value);
    return value;
  }
  int max_dynamic_shared() const { return value(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES); }
  int static_shared() const { return kernel->needs.shared_bytes; }
  int max_threads() const { return value(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK); }
};
using FunctionPointer = std::shared_ptr<Function>;

struct Variable {
  uint64_t address = 0;
  uint64_t bytes = 0;
};

struct Module {
  CUcontext context = nullptr;
  int gpu = 0;
  std::weak_ptr<Library> library;  // the library that it belongs to
  bool of_library = false;
  std::shared_ptr<const Image> image;
  std::mutex mutex;
  bool ended = false;  // unloaded, or its context destroyed
  std::map<std::string, FunctionPointer> functions;
  std::map<std::string, Variable> variables;  // only those that were looked up
  CUmodule handle() { return reinterpret_cast<CUmodule>(this); }
};
using ModulePointer = std::shared_ptr<Module>;

struct Library {
  std::shared_ptr<const Image> image;
  std::mutex mutex;
  bool ended = false;
  std::map<std::string, FunctionPointer> kernels;
  std::map<CUcontext, ModulePointer> modules;
  std::map<std::string, Variable> managed;
  CUlibrary handle() { return reinterpret_cast<CUlibrary>(this); }
};
using LibraryPointer = std::shared_ptr<Library>;

// The addresses of all variables: only their module frees them.
class VariableAddresses {
 public:
  void add(uint64_t address);
  void remove(uint64_t address);
  bool has(uint64_t address) const;

 private:
  mutable std::mutex mutex_;
  std::set<uint64_t> addresses_;
};

// The function to launch in a context: a handle of a kernel means the context's own function. INVALID_HANDLE: not a
// function, or another context's.
CUresult function_for_launch(CUfunction handle, const std::shared_ptr<Context>& context, FunctionPointer* function);

// A library's module for a context, created at the first call.
CUresult module_of_library(const LibraryPointer& library, Context& context, ModulePointer* module);
CUresult function_of_module(const ModulePointer& module, const std::string& name, FunctionPointer* function);
CUresult kernel_of_library(const LibraryPointer& library, const std::string& name, FunctionPointer* kernel);

// The module's variable in device memory (if managed, the library's), created and initialised at the first call.
CUresult variable_of_module(const ModulePointer& module, Context& context, const std::string& name, Variable* variable);
CUresult managed_of_library(const LibraryPointer& library, Context* context, const std::string& name,
                            Variable* variable);

// How many blocks with this many threads and dynamic shared bytes a multiprocessor holds at a time.
int fitting_blocks(const Function& function, int threads, size_t shared);

// Host memory of a variable looked up by a running kernel, or null.
void* variable_storage(const Function& function, Context& context, const char* name, uint64_t bytes);

// Frees the functions and variables. The caller has removed the module or library from its registry.
void end_module(Module& module);
void end_library(Library& library);
// Frees everything of a context that is being destroyed, except its memory, which the caller frees.
void forget_modules(CUcontext context);

}  // namespace rota::sim
