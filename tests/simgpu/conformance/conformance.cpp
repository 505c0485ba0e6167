// What rules are made with: see conformance.h.
#include "tests/simgpu/conformance/conformance.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>

#include "generated/driver_symbols.h"
#include "scheduler/protocol/packet.h"
#include "tests/simgpu/conformance/runner.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to the program

namespace conformance {

Cuda cu;

namespace {

using namespace std::chrono_literals;

// The kernels for a GPU are in tests/programs/kernels.cu; simgpu finds its own ones by these names.
constexpr const char* kKernels[] = {
    "_Z5saxpyifPKfPf",
    "_Z10vector_addPKfS0_Pfi",
    "_Z4fillPjmj",
    "_Z8memtouchPjmmjS_",
    "_Z6reducePKjmPm",
    "_Z4gemmPKfS0_Pfiii",
    "_Z10thread_idsPj",
    "_Z10block_sumsPKjPj",
    "_Z10fill_words5Wordsj",
    "_Z12small_blocksPj",
    "_Z8count_upj",
    "_Z5weighPKfPfi",
    "_Z4pokePjj",
    "_Z4spinm",
    "_Z11takes_100usv",
    "_Z10spin_untilPj",
};

constexpr const char* kSymbols[] = {
#define ROTA_SYMBOL(name) #name,
#include "generated/driver_symbols.inc"
#undef ROTA_SYMBOL
};

// Called through a pointer of any of the driver's types: it never returns.
template <size_t symbol>
CUresult missing() {
  fail("cu", 0, std::string("the driver exports no ") + kSymbols[symbol]);
}
template <size_t... symbol>
auto missing_functions(std::index_sequence<symbol...>) {
  return std::array<CUresult (*)(), sizeof...(symbol)>{&missing<symbol>...};
}

void* library = nullptr;

std::string plain_name(std::string_view mangled) {
  if (!mangled.starts_with("_Z")) return std::string(mangled);
  size_t length = 0;
  size_t at = 2;
  for (; at < mangled.size() && mangled[at] >= '0' && mangled[at] <= '9'; ++at) {
    length = length * 10 + static_cast<size_t>(mangled[at] - '0');
  }
  return std::string(mangled.substr(at, length));
}

// Files that are not there are no error: the image may be a stub.
std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

// What simgpu is given to load where nvcc has built nothing: it looks kernels up by name and reads no PTX.
std::string stub_image() {
  std::string text = ".version 7.0\n.target sm_52\n.address_size 64\n";
  text += ".global .align 4 .u32 counter = 5;\n.global .attribute(.managed) .align 4 .u32 total = 7;\n";
  text += ".const .align 4 .f32 weights[4] = {0f3F800000, 0f40000000, 0f40400000, 0f40800000};\n";
  for (const char* kernel : kKernels) text += std::string(".visible .entry ") + kernel + "()\n{\n  ret;\n}\n";
  return text;
}

}  // namespace

void load_driver() {
  const char* path = std::getenv("ROTA_REAL_LIBCUDA");
  if (path == nullptr || *path == '\0') path = "libcuda.so.1";
  library = dlopen(path, RTLD_NOW);
  if (library == nullptr) fail("cu", 0, std::string("no CUDA driver: ") + dlerror());
  static_assert(sizeof(Cuda) == std::size(kSymbols) * sizeof(void*));
  static const auto kMissing = missing_functions(std::make_index_sequence<std::size(kSymbols)>());
  auto* entries = reinterpret_cast<void**>(&cu);
  for (size_t symbol = 0; symbol < std::size(kSymbols); ++symbol) {
    void* found = dlsym(library, kSymbols[symbol]);
    entries[symbol] = found != nullptr ? found : reinterpret_cast<void*>(kMissing[symbol]);
  }
}

bool exported(const char* symbol) {
  return dlsym(library, symbol) != nullptr;
}

// ---- values in words ------------------------------------------------------------------------------------------------

std::string describe_number(long long value) {
  return std::to_string(value);
}
std::string describe_number(unsigned long long value) {
  return std::to_string(value);
}
std::string describe_number(double value) {
  return std::to_string(value);
}
std::string describe(std::string_view text) {
  return '"' + std::string(text) + '"';
}
std::string describe(const void* pointer) {
  std::ostringstream text;
  text << pointer;
  return text.str();
}
std::string describe(CUresult result) {
  const char* name = nullptr;
  std::string number = std::to_string(static_cast<int>(result));
  if (!exported("cuGetErrorName") || cu.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) return number;
  return number + " (" + name + ")";
}

// ---- session, kernels -----------------------------------------------------------------------------------------------

Session::Session(int ordinal) {
  CHECK_OK(cu.cuInit(0));
  CHECK_OK(cu.cuDeviceGet(&device_, ordinal));
  CHECK_OK(cu.cuDevicePrimaryCtxRetain(&context_, device_));
  if (std::getenv(kOtherGpuVariable) != nullptr && devices() > 1) {
    CUcontext other = nullptr;
    CUdeviceptr memory = 0;
    CHECK_OK(cu.cuDevicePrimaryCtxRetain(&other, device_ == 0 ? 1 : 0));
    CHECK_OK(cu.cuCtxSetCurrent(other));
    CHECK_OK(cu.cuMemAlloc_v2(&memory, 1 << 20));
  }
  CHECK_OK(cu.cuCtxSetCurrent(context_));
}

int Session::devices() const {
  int count = 0;
  CHECK_OK(cu.cuDeviceGetCount(&count));
  return count;
}

bool Session::simulated() const {
  return dlsym(library, "rota_sim_future_call") != nullptr;  // an export of simgpu's library alone
}

const std::string& Session::image() {
  static const std::string kImage = [] {
    std::string content;
    if (const char* path = std::getenv(kKernelsVariable); path != nullptr) {
      content = read_file(path);
      if (content.empty()) fail("kernels", 0, std::string("cannot read ") + path);
    } else {
      content = read_file(program_folder() + "kernels.ptx");
    }
    return content.empty() ? stub_image() : content;
  }();
  return kImage;
}

std::string Session::mangled(const std::string& name) {
  for (const char* kernel : kKernels) {
    if (plain_name(kernel) == name) return kernel;
  }
  // One that was added to kernels.cu and not yet to the list above.
  std::string start = ".entry _Z" + std::to_string(name.size()) + name;
  size_t found = image().find(start);
  if (found == std::string::npos) return name;
  found += std::strlen(".entry ");
  return image().substr(found, image().find_first_of("( \n", found) - found);
}

namespace {

// One page of flags and one module for each context in which a rule launches kernels.
constexpr size_t kFlags = 64;
constexpr size_t kFlagStride = 16;  // words: flags of different blockers share no cache line
struct PerContext {
  CUmodule module = nullptr;
  unsigned* flags = nullptr;
  CUdeviceptr flags_address = 0;
  size_t used = 0;
};

std::mutex per_context_mutex;

PerContext& per_context() {
  static std::map<unsigned long long, PerContext> contexts;
  CUcontext current = nullptr;
  CHECK_OK(cu.cuCtxGetCurrent(&current));
  unsigned long long id = 0;  // and not the handle: a reset primary context has the same
  if (!exported("cuCtxGetId") || cu.cuCtxGetId(current, &id) != CUDA_SUCCESS) {
    id = reinterpret_cast<uintptr_t>(current);
  }
  PerContext& found = contexts[id];
  if (found.module == nullptr) CHECK_OK(cu.cuModuleLoadData(&found.module, Session::image().c_str()));
  return found;
}

}  // namespace

CUmodule Session::module() const {
  std::lock_guard lock(per_context_mutex);
  return per_context().module;
}

CUfunction Session::function(const std::string& name) const {
  CUfunction function = nullptr;
  std::string symbol = mangled(name);
  CUresult result = cu.cuModuleGetFunction(&function, module(), symbol.c_str());
  if (result != CUDA_SUCCESS) {
    fail("kernels", 0,
         "no kernel " + name + " (" + symbol + "): " + describe(result) +
             "; on simgpu name libsimkernels.so in ROTA_SIM_KERNELS, on a GPU give --kernels kernels.ptx");
  }
  return function;
}

// ---- memory, streams, events
// ------------------------------------------------------------------------------------------

Buffer::Buffer(size_t bytes) : bytes_(bytes) {
  CHECK_OK(cu.cuMemAlloc_v2(&address_, bytes));
}
Buffer::~Buffer() {
  if (address_ != 0) cu.cuMemFree_v2(address_);
}

Pinned::Pinned(size_t bytes) {
  CHECK_OK(cu.cuMemHostAlloc(&memory_, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  std::memset(memory_, 0, bytes);
  CHECK_OK(cu.cuMemHostGetDevicePointer_v2(&address_, memory_, 0));
}
Pinned::~Pinned() {
  cu.cuMemFreeHost(memory_);
}

Stream::Stream(unsigned flags) {
  CHECK_OK(cu.cuStreamCreate(&stream_, flags));
}
Stream::~Stream() {
  if (stream_ != nullptr) cu.cuStreamDestroy_v2(stream_);
}
Event::Event(unsigned flags) {
  CHECK_OK(cu.cuEventCreate(&event_, flags));
}
Event::~Event() {
  if (event_ != nullptr) cu.cuEventDestroy_v2(event_);
}

// ---- blockers -------------------------------------------------------------------------------------------------------

namespace {
constexpr auto kBlockerLimit = 10s;
constexpr auto kBlockerLimitOnSimgpu = 5s;
}  // namespace

// On the device a word of pinned memory; never freed, as the watch may still look at it.
struct Blocker::Flag {
  std::atomic_ref<unsigned> word;
  std::chrono::steady_clock::time_point limit;
  std::atomic<bool> gave_up{false};
};

namespace {

// The words of all blockers of this process, with the time when each gives up.
class Watch {
 public:
  void add(std::atomic_ref<unsigned> word, std::chrono::steady_clock::time_point limit, std::atomic<bool>* gave_up) {
    std::lock_guard lock(mutex_);
    held_.push_back({word, limit, gave_up});
    if (!started_) std::thread([this] { run(); }).detach();
    started_ = true;
    changed_.notify_all();
  }
  void release_all() {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;  // the watch itself fails
    for (auto& held : held_) held.word.store(1);
  }

 private:
  struct Held {
    std::atomic_ref<unsigned> word;
    std::chrono::steady_clock::time_point limit;
    std::atomic<bool>* gave_up;
  };
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      auto next = std::chrono::steady_clock::now() + 60s;
      for (auto& held : held_) {
        if (held.word.load() != 0) continue;
        if (held.limit <= std::chrono::steady_clock::now()) {
          held.gave_up->store(true);
          held.word.store(1);
        } else {
          next = std::min(next, held.limit);
        }
      }
      changed_.wait_until(lock, next);
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Held> held_;
  bool started_ = false;
};

Watch& watch() {
  static auto* made = new Watch;  // outlives its thread
  return *made;
}

}  // namespace

void release_all_blockers() {
  watch().release_all();
}

Blocker::Blocker(CUstream stream) {
  CUfunction function = nullptr;
  CUdeviceptr address = 0;
  unsigned* word = nullptr;
  {
    std::lock_guard lock(per_context_mutex);
    PerContext& here = per_context();
    std::string symbol = Session::mangled("spin_until");
    CUresult result = cu.cuModuleGetFunction(&function, here.module, symbol.c_str());
    if (result != CUDA_SUCCESS) fail("kernels", 0, "a Blocker needs the kernel spin_until: " + describe(result));
    if (here.flags == nullptr) {
      size_t bytes = kFlags * kFlagStride * sizeof(unsigned);
      void* memory = nullptr;
      CHECK_OK(cu.cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
      std::memset(memory, 0, bytes);
      here.flags = static_cast<unsigned*>(memory);
      CHECK_OK(cu.cuMemHostGetDevicePointer_v2(&here.flags_address, memory, 0));
    }
    CHECK(here.used < kFlags);
    size_t offset = here.used++ * kFlagStride;
    word = here.flags + offset;
    address = here.flags_address + offset * sizeof(unsigned);
  }
  bool simulated = dlsym(library, "rota_sim_future_call") != nullptr;
  auto limit = std::chrono::steady_clock::now() + (simulated ? kBlockerLimitOnSimgpu : kBlockerLimit);
  flag_ = new Flag{std::atomic_ref<unsigned>(*word), limit};
  watch().add(flag_->word, limit, &flag_->gave_up);
  CHECK_OK(launch(function, 1, 1, stream, address));
}

void Blocker::release() {
  if (flag_->gave_up.load()) fail("blocker", 0, "something waited for a kernel that it should not have waited for");
  flag_->word.store(1);
}

Blocker::~Blocker() {
  release();
}

// ---- children -------------------------------------------------------------------------------------------------------

Channel::~Channel() {
  close();
}

void Channel::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void Channel::send(std::string_view message) {
  ssize_t sent = ::send(descriptor_, message.data(), message.size(), MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(message.size())) fail("channel", 0, "the other process is gone");
}

std::string Channel::receive() {
  std::string message(64 << 10, '\0');
  ssize_t received = 0;
  do {
    received = ::recv(descriptor_, message.data(), message.size(), 0);
  } while (received < 0 && errno == EINTR);
  if (received <= 0) fail("channel", 0, "the other process is gone");
  message.resize(static_cast<size_t>(received));
  return message;
}

void Channel::send_file(int file) {
  if (rota::protocol::write_packet(descriptor_, "f", 1, {&file, 1}, 0) != 1) fail("channel", 0, "cannot send a file");
}

int Channel::receive_file() {
  char byte = 0;
  rota::Descriptor file;
  if (rota::protocol::read_packet(descriptor_, &byte, 1, {&file, 1}, 0) != 1)
    fail("channel", 0, "cannot receive a file");
  if (!file) fail("channel", 0, "a message without a file");
  return file.release();
}

std::pair<int, pid_t> Child::start(const std::string& role, const std::string& argument) {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  CHECK(fcntl(ends[1], F_SETFD, 0) == 0);
  std::string descriptor = std::to_string(ends[1]);
  const char* arguments[] = {"conformance", "--child", role.c_str(), argument.c_str(), descriptor.c_str(), nullptr};
  pid_t pid = -1;
  int failed = posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, const_cast<char**>(arguments), environ);
  ::close(ends[1]);
  CHECK(failed == 0);
  return {ends[0], pid};
}

Child::Child(const std::string& role, const std::string& argument) : Child(start(role, argument)) {}

Child::~Child() {
  if (pid_ > 0) kill();
}

void Child::finish() {
  int status = 0;
  pid_t ended = std::exchange(pid_, -1);
  CHECK(waitpid(ended, &status, 0) == ended);
  if (status != 0) fail("child", 0, "the child process ended badly: status " + std::to_string(status));
}

void Child::kill() {
  pid_t ended = std::exchange(pid_, -1);
  ::kill(ended, SIGKILL);
  waitpid(ended, nullptr, 0);
}

}  // namespace conformance
