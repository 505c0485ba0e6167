// The shared part of the test programs.
#include "tests/programs/program.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

namespace program {
namespace {

// What simgpu loads if nvcc has built nothing: anything that starts like a cubin contains every kernel that simgpu
// knows.
constexpr const char* kAnyModule =
    "\x7f"
    "ELF";

}  // namespace

void* Driver::find(const char* symbol, const char* base, int version, cuuint64_t flags) const {
  void* function = nullptr;
  if (get_ != nullptr) {
    CUdriverProcAddressQueryResult status{};
    return get_(base, &function, version, flags, &status) == CUDA_SUCCESS ? function : nullptr;
  }
  if (get_without_status_ != nullptr) {  // CUDA 11.3 to 11.8
    return get_without_status_(base, &function, version, flags) == CUDA_SUCCESS ? function : nullptr;
  }
  return dlsym(library_, symbol);  // older than that
}

void Driver::load() {
  library_ = dlopen("libcuda.so.1", RTLD_NOW);
  if (library_ == nullptr) fail("no CUDA driver: %s", dlerror());
  get_ = reinterpret_cast<cuGetProcAddress_v2_fn*>(dlsym(library_, "cuGetProcAddress_v2"));
  get_without_status_ = reinterpret_cast<cuGetProcAddress_fn*>(dlsym(library_, "cuGetProcAddress"));
#define PROGRAM_LOOK_UP(name, base, version, flags)                                                   \
  {                                                                                                   \
    void* found = find(#name, base, version, flags);                                                  \
    auto* missing = +[]() -> CUresult { fail("the driver has no %s (CUDA %d)", base, version); };     \
    name = reinterpret_cast<name##_fn*>(found != nullptr ? found : reinterpret_cast<void*>(missing)); \
  }
  PROGRAM_FUNCTIONS(PROGRAM_LOOK_UP)
#undef PROGRAM_LOOK_UP
  cuGraphInstantiateWithFlags = reinterpret_cast<cuGraphInstantiateWithFlags_fn*>(
      find("cuGraphInstantiateWithFlags", "cuGraphInstantiateWithFlags", 11040, 0));
}

Driver& cuda() {
  static Driver* driver = [] {
    auto* fresh = new Driver;
    fresh->load();
    return fresh;
  }();
  return *driver;
}

CUresult instantiate(CUgraphExec* executable, CUgraph graph) {
  if (cuda().cuGraphInstantiateWithFlags != nullptr) return cuda().cuGraphInstantiateWithFlags(executable, graph, 0);
  return cuda().cuGraphInstantiate_v2(executable, graph, nullptr, nullptr, 0);
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuda().cuGetErrorName(result, &name);
  fail("%.60s: %s (%d)", what, name != nullptr ? name : "unknown error", static_cast<int>(result));
}

void start(int ordinal) {
  CHECK(cuInit(0));
  CUdevice device = 0;
  CHECK(cuDeviceGet(&device, ordinal));
  CUcontext context = nullptr;
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
}

namespace {

// Into the current context.
CUmodule load_module() {
  char path[4096];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  std::string image = kAnyModule;
  if (length > 0) {
    std::string folder(path, static_cast<size_t>(length));
    folder.resize(folder.rfind('/') + 1);
    if (std::ifstream file(folder + "kernels.ptx"); file) {
      std::ostringstream content;
      content << file.rdbuf();
      image = content.str();
    }
  }
  CUmodule loaded = nullptr;
  // The driver is older than the compiler that built kernels.ptx: this is only supported on simgpu, where any module
  // will do.
  if (cuda().cuModuleLoadData(&loaded, image.c_str()) == CUDA_ERROR_UNSUPPORTED_PTX_VERSION) image = kAnyModule;
  if (loaded == nullptr) CHECK(cuModuleLoadData(&loaded, image.c_str()));
  return loaded;
}

}  // namespace

CUfunction kernel(const char* name) {
  static std::mutex mutex;
  static std::map<CUcontext, CUmodule> modules;
  CUcontext context = nullptr;
  CHECK(cuCtxGetCurrent(&context));
  CUmodule module = nullptr;
  {
    const std::lock_guard lock(mutex);
    CUmodule& loaded = modules[context];
    if (loaded == nullptr) loaded = load_module();
    module = loaded;
  }
  CUfunction function = nullptr;
  CUresult result = cuda().cuModuleGetFunction(&function, module, name);
  if (result != CUDA_SUCCESS) {
    fail(
        "no kernel %s (error %d): on simgpu name libsimkernels.so in ROTA_SIM_KERNELS; on a GPU kernels.ptx must lie "
        "beside the program",
        name, static_cast<int>(result));
  }
  return function;
}

Options::Options(int argc, char** argv, const char* usage)
    : argc_(argc), argv_(argv), usage_(usage), used_(static_cast<size_t>(argc), '0') {
  if (argc > 0) used_[0] = '1';
}

const char* Options::value(const char* name, bool takes_value) {
  for (int index = 1; index < argc_; ++index) {
    if (std::strcmp(argv_[index], name) != 0) continue;
    used_[static_cast<size_t>(index)] = '1';
    if (!takes_value) return argv_[index];
    if (index + 1 >= argc_) fail("%s needs a value; usage: %s", name, usage_);
    used_[static_cast<size_t>(index) + 1] = '1';
    return argv_[index + 1];
  }
  return nullptr;
}

double Options::number(const char* name, double otherwise) {
  const char* text = value(name, true);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  double result = std::strtod(text, &end);
  if (end == text || *end != '\0' || result < 0) fail("%s %s: give a number", name, text);
  return result;
}

uint64_t Options::bytes(const char* name, uint64_t otherwise) {
  const char* text = value(name, true);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  double result = std::strtod(text, &end);
  std::string unit = end;
  if (unit == "%") {
    size_t free = 0;
    size_t total = 0;
    CHECK(cuMemGetInfo_v2(&free, &total));
    result = result / 100 * static_cast<double>(total);
  } else if (unit == "K") {
    result *= 1 << 10;
  } else if (unit == "M") {
    result *= 1 << 20;
  } else if (unit == "G") {
    result *= 1 << 30;
  } else if (!unit.empty()) {
    end = const_cast<char*>(text);
  }
  if (end == text || result < 1) fail("%s %s: give bytes (suffixes K, M, G) or a percentage of the GPU", name, text);
  return static_cast<uint64_t>(result);
}

bool Options::flag(const char* name) {
  return value(name, false) != nullptr;
}

std::string Options::text(const char* name, const char* otherwise) {
  const char* text = value(name, true);
  return text != nullptr ? text : otherwise;
}

void Options::end() {
  for (int index = 1; index < argc_; ++index) {
    if (used_[static_cast<size_t>(index)] == '0') fail("unknown option %s; usage: %s", argv_[index], usage_);
  }
}

double seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

bool stdin_closed() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (poll(&input, 1, 0) <= 0) return false;
  char byte = 0;
  return read(STDIN_FILENO, &byte, 1) <= 0;
}

}  // namespace program
