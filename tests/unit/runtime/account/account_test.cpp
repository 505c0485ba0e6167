#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <atomic>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "generated/driver_functions.h"
#include "runtime/account/account.h"
#include "runtime/account/calls.h"
#include "runtime/account/test_interface.h"

namespace {

using namespace rota;
using namespace rota::account;
namespace api = rota::api;

constexpr std::size_t number(Symbol symbol) {
  return static_cast<std::size_t>(symbol);
}

// A call of the program: through the counter, to the target.
template <class Function, class... Arguments>
auto call(Symbol symbol, Arguments... arguments) {
  return reinterpret_cast<Function*>(counters[number(symbol)])(arguments...);
}
template <class Function>
void set_target(Symbol symbol, Function* function) {
  targets[number(symbol)] = reinterpret_cast<void*>(function);
}

// The account of this process, in a folder of its own that goes with the process.
std::string& folder() {
  static std::string path;
  return path;
}
Header& begun() {
  if (folder().empty()) {
    char name[] = "/tmp/rota-account-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    folder() = name;
    std::atexit([] { std::filesystem::remove_all(folder()); });
    setenv("ROTA_REPORT", name, 1);
    REQUIRE(begin("bazel //a:b"));
  }
  Header* const own = header();
  REQUIRE(own != nullptr);
  return *own;
}

std::uint64_t calls_of(Header& header, Symbol symbol) {
  const auto* pages = reinterpret_cast<const std::byte*>(&header) + kHeaderBytes;
  std::uint64_t all = 0;
  for (std::uint32_t i = 0; i < header.thread_pages; ++i) {
    all += reinterpret_cast<const ThreadPage*>(pages + i * kThreadPageBytes)->calls[number(symbol)].load();
  }
  return all;
}

const Error* error_of(Header& header, Symbol symbol) {
  for (const Error& error : header.errors) {
    if (error.calls != 0 && error.function == number(symbol)) return &error;
  }
  return nullptr;
}
const Finding* finding_of(Header& header, Symbol symbol) {
  for (const Finding& finding : header.findings) {
    if (finding.calls != 0 && finding.function == number(symbol)) return &finding;
  }
  return nullptr;
}

// The fake driver: what its functions answer.
api::CUresult answer = api::CUDA_SUCCESS;
std::uint64_t next_handle = 0;

api::CUresult stream_synchronize(api::CUstream) {
  return answer;
}
api::CUresult event_create(api::CUevent* event, unsigned) {
  *event = reinterpret_cast<api::CUevent>(next_handle);
  return answer;
}
api::CUresult event_destroy(api::CUevent) {
  return answer;
}
api::CUresult event_record(api::CUevent, api::CUstream) {
  return answer;
}
api::CUresult mem_free(api::CUdeviceptr) {
  return answer;
}
api::CUresult copy_to_device(api::CUdeviceptr, const void*, size_t) {
  return answer;
}
api::CUresult copy_2d(const api::CUDA_MEMCPY2D*) {
  return answer;
}
api::CUresult allocate(api::CUdeviceptr* address, size_t) {
  *address = next_handle;
  return answer;
}

}  // namespace

TEST_CASE("a process's account says who it is and counts its calls by function, in all threads") {
  Header& header = begun();
  CHECK(std::string(header.magic, 8) == std::string(kMagic, 8));
  CHECK(header.self.pid == static_cast<std::uint32_t>(getpid()));
  CHECK(std::string(header.self.command, header.self.command_bytes).find("account_test") != std::string::npos);
  CHECK(header.self.folder == std::filesystem::current_path().string());
  REQUIRE(header.ancestor_count >= 1);
  CHECK(header.ancestors[0].pid == static_cast<std::uint32_t>(getppid()));
  CHECK(std::string(header.test) == "bazel //a:b");
  answer = api::CUDA_SUCCESS;
  set_target(Symbol::k_cuStreamSynchronize, &stream_synchronize);
  const std::uint64_t before = calls_of(header, Symbol::k_cuStreamSynchronize);
  const auto many = [] {
    for (int i = 0; i < 1000; ++i) call<api::cuStreamSynchronize_fn>(Symbol::k_cuStreamSynchronize, nullptr);
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(many);
  for (std::thread& thread : threads) thread.join();
  many();
  CHECK(calls_of(header, Symbol::k_cuStreamSynchronize) - before == 5000);
  // The pages of threads that have ended are used again.
  std::thread(many).join();
  const std::uint32_t pages = header.thread_pages;
  for (int i = 0; i < 19; ++i) std::thread(many).join();
  CHECK(header.thread_pages == pages);
  CHECK(calls_of(header, Symbol::k_cuStreamSynchronize) - before == 25000);
}

TEST_CASE("errors are counted by function and code, and a query's NOT_READY is none") {
  Header& header = begun();
  set_target(Symbol::k_cuStreamSynchronize, &stream_synchronize);
  set_target(Symbol::k_cuMemcpyHtoD_v2, &copy_to_device);
  answer = api::CUDA_ERROR_NOT_READY;
  call<api::cuStreamSynchronize_fn>(Symbol::k_cuStreamSynchronize, nullptr);
  CHECK(error_of(header, Symbol::k_cuStreamSynchronize) == nullptr);
  answer = api::CUDA_ERROR_LAUNCH_FAILED;
  for (int i = 0; i < 3; ++i) {
    CHECK(call<api::cuStreamSynchronize_fn>(Symbol::k_cuStreamSynchronize, nullptr) == answer);
  }
  const Error* const error = error_of(header, Symbol::k_cuStreamSynchronize);
  REQUIRE(error != nullptr);
  CHECK(error->code == 719);
  CHECK(error->calls == 3);
  // A copy that failed has copied nothing.
  call<api::cuMemcpyHtoD_v2_fn>(Symbol::k_cuMemcpyHtoD_v2, api::CUdeviceptr{1}, nullptr, std::size_t{77});
  CHECK(page().to_device.bytes == 0);
  answer = api::CUDA_SUCCESS;
  call<api::cuMemcpyHtoD_v2_fn>(Symbol::k_cuMemcpyHtoD_v2, api::CUdeviceptr{1}, nullptr, std::size_t{77});
  CHECK(page().to_device.bytes == 77);
  CHECK(page().to_device.calls == 1);
  set_target(Symbol::k_cuMemcpy2D_v2, &copy_2d);
  api::CUDA_MEMCPY2D shaped{};
  shaped.srcMemoryType = api::CU_MEMORYTYPE_DEVICE;
  shaped.dstMemoryType = api::CU_MEMORYTYPE_HOST;
  shaped.WidthInBytes = 10;
  shaped.Height = 7;
  call<api::cuMemcpy2D_v2_fn>(Symbol::k_cuMemcpy2D_v2, &shaped);
  CHECK(page().to_host.bytes == 70);
}

TEST_CASE("the use of an object that was destroyed is a finding, but not that of a new one with the same handle") {
  Header& header = begun();
  answer = api::CUDA_SUCCESS;
  set_target(Symbol::k_cuEventCreate, &event_create);
  set_target(Symbol::k_cuEventDestroy_v2, &event_destroy);
  set_target(Symbol::k_cuEventRecord, &event_record);
  next_handle = 0x7f0000001230;
  api::CUevent event = nullptr;
  call<api::cuEventCreate_fn>(Symbol::k_cuEventCreate, &event, 0U);
  call<api::cuEventRecord_fn>(Symbol::k_cuEventRecord, event, nullptr);
  call<api::cuEventDestroy_v2_fn>(Symbol::k_cuEventDestroy_v2, event);
  call<api::cuEventCreate_fn>(Symbol::k_cuEventCreate, &event, 0U);
  call<api::cuEventRecord_fn>(Symbol::k_cuEventRecord, event, nullptr);
  CHECK(finding_of(header, Symbol::k_cuEventRecord) == nullptr);
  call<api::cuEventDestroy_v2_fn>(Symbol::k_cuEventDestroy_v2, event);
  CHECK(finding_of(header, Symbol::k_cuEventDestroy_v2) == nullptr);
  call<api::cuEventRecord_fn>(Symbol::k_cuEventRecord, event, nullptr);
  call<api::cuEventRecord_fn>(Symbol::k_cuEventRecord, event, nullptr);
  const Finding* const finding = finding_of(header, Symbol::k_cuEventRecord);
  REQUIRE(finding != nullptr);
  CHECK(finding->kind == static_cast<std::uint32_t>(FindingKind::kEndedHandle));
  CHECK(finding->ended_by == number(Symbol::k_cuEventDestroy_v2));
  CHECK(finding->calls == 2);
  CHECK(finding->value == 0x7f0000001230);
}

TEST_CASE("memory that is freed twice is a finding, if the driver refuses it and it was not allocated anew") {
  Header& header = begun();
  answer = api::CUDA_SUCCESS;
  set_target(Symbol::k_cuMemFree_v2, &mem_free);
  set_target(Symbol::k_cuMemAlloc_v2, &allocate);
  next_handle = 0x7fde00000000;
  api::CUdeviceptr address = 0;
  const auto free_it = [&] { return call<api::cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2, address); };
  const auto allocate_it = [&] { call<api::cuMemAlloc_v2_fn>(Symbol::k_cuMemAlloc_v2, &address, std::size_t{64}); };
  allocate_it();
  free_it();
  allocate_it();
  free_it();
  CHECK(finding_of(header, Symbol::k_cuMemFree_v2) == nullptr);
  answer = api::CUDA_ERROR_INVALID_VALUE;
  free_it();
  const Finding* const finding = finding_of(header, Symbol::k_cuMemFree_v2);
  REQUIRE(finding != nullptr);
  CHECK(finding->kind == static_cast<std::uint32_t>(FindingKind::kFreedTwice));
  CHECK(finding->value == 0x7fde00000000);
  answer = api::CUDA_SUCCESS;
}

TEST_CASE("a forked child has an account of its own, and the parent's stays as it was") {
  Header& header = begun();
  answer = api::CUDA_SUCCESS;
  set_target(Symbol::k_cuStreamSynchronize, &stream_synchronize);
  call<api::cuStreamSynchronize_fn>(Symbol::k_cuStreamSynchronize, nullptr);
  const std::uint64_t before = calls_of(header, Symbol::k_cuStreamSynchronize);
  const auto files = [] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder() + "/processes")) names.insert(entry.path());
    return names.size();
  };
  const std::size_t there = files();
  const pid_t silent = fork();
  if (silent == 0) _exit(0);
  const pid_t child = fork();
  if (child == 0) {
    call<api::cuStreamSynchronize_fn>(Symbol::k_cuStreamSynchronize, nullptr);
    Header* const own = rota::account::header();
    const bool right = own != &header && own->self.pid == static_cast<std::uint32_t>(getpid()) &&
                       calls_of(*own, Symbol::k_cuStreamSynchronize) == 1;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(silent, &status, 0) == silent);
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(calls_of(header, Symbol::k_cuStreamSynchronize) == before);
  CHECK(files() == there + 1);  // none of the child that made no call
}

TEST_CASE("where the account cannot grow, calls go on and the account says that some are not counted") {
  Header& header = begun();
  answer = api::CUDA_SUCCESS;
  set_target(Symbol::k_cuStreamSynchronize, &stream_synchronize);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit none{0, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &none);
  std::atomic<int> arrived{0};
  std::atomic<bool> go_on{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 40; ++i) {
    threads.emplace_back([&] {
      call<api::cuStreamSynchronize_fn>(Symbol::k_cuStreamSynchronize, nullptr);
      ++arrived;
      while (!go_on) std::this_thread::yield();
    });
  }
  while (arrived != 40) std::this_thread::yield();
  go_on = true;
  for (std::thread& thread : threads) thread.join();
  setrlimit(RLIMIT_FSIZE, &before);
  CHECK(header.uncounted_threads == 1);
  CHECK(header.thread_pages <= 16);
}

TEST_CASE("a test's begin and end bring the numbers between them, and the name of the one that runs") {
  Header& header = begun();
  const unsigned char uuid[16] = {1};
  touches(0, uuid, "GPU", 1000);
  Memory memory{};
  memory.used_bytes = 500;
  memory_changed(0, memory);
  memory.used_bytes = 100;
  memory_changed(0, memory);
  RotaTestAccount numbers{};
  CHECK(account::mark_test(kRotaTestVersion + 1, kRotaTestBegins, "a", &numbers) == 2);
  REQUIRE(account::mark_test(kRotaTestVersion, kRotaTestBegins, "tests/a.py::b", &numbers) == 0);
  CHECK(numbers.peak_bytes == 100);
  CHECK(std::string(header.running_test) == "tests/a.py::b");
  memory.used_bytes = 300;
  memory_changed(0, memory);
  memory.used_bytes = 200;
  memory_changed(0, memory);
  answer = api::CUDA_SUCCESS;
  set_target(Symbol::k_cuStreamSynchronize, &stream_synchronize);
  const std::uint64_t before = numbers.synchronizations;
  call<api::cuStreamSynchronize_fn>(Symbol::k_cuStreamSynchronize, nullptr);
  REQUIRE(account::mark_test(kRotaTestVersion, kRotaTestEnds, "tests/a.py::b", &numbers) == 0);
  CHECK(numbers.peak_bytes == 300);
  CHECK(numbers.synchronizations == before + 1);
  CHECK(std::string(header.running_test).empty());
  CHECK(header.gpus[0].used_peak_bytes == 500);
}

TEST_CASE("an object that could not be destroyed has not ended") {
  Header& header = begun();
  set_target(Symbol::k_cuEventCreate, &event_create);
  set_target(Symbol::k_cuEventDestroy_v2, &event_destroy);
  set_target(Symbol::k_cuEventQuery, +[](api::CUevent) { return api::CUDA_SUCCESS; });
  next_handle = 0x7f0000004560;
  api::CUevent event = nullptr;
  answer = api::CUDA_SUCCESS;
  call<api::cuEventCreate_fn>(Symbol::k_cuEventCreate, &event, 0U);
  answer = api::CUDA_ERROR_NOT_PERMITTED;
  call<api::cuEventDestroy_v2_fn>(Symbol::k_cuEventDestroy_v2, event);
  answer = api::CUDA_SUCCESS;
  call<api::cuEventQuery_fn>(Symbol::k_cuEventQuery, event);
  CHECK(finding_of(header, Symbol::k_cuEventQuery) == nullptr);
}

TEST_CASE("while an object is being destroyed another thread may get its handle for a new one") {
  Header& header = begun();
  answer = api::CUDA_SUCCESS;
  set_target(Symbol::k_cuEventCreate, &event_create);
  next_handle = 0x7f0000007890;
  static api::CUevent event = nullptr;
  call<api::cuEventCreate_fn>(Symbol::k_cuEventCreate, &event, 0U);
  // The driver has destroyed it, and gives its handle away before the destroying call returns.
  set_target(
      Symbol::k_cuEventDestroy_v2, +[](api::CUevent) {
        std::thread([] { call<api::cuEventCreate_fn>(Symbol::k_cuEventCreate, &event, 0U); }).join();
        return api::CUDA_SUCCESS;
      });
  call<api::cuEventDestroy_v2_fn>(Symbol::k_cuEventDestroy_v2, event);
  set_target(Symbol::k_cuEventSynchronize, +[](api::CUevent) { return api::CUDA_SUCCESS; });
  call<api::cuEventSynchronize_fn>(Symbol::k_cuEventSynchronize, event);
  CHECK(finding_of(header, Symbol::k_cuEventSynchronize) == nullptr);
}

TEST_CASE("the thread that polls for questions about streams says that the process lives") {
  Header& header = begun();
  const std::uint64_t before = header.alive_monotonic_ns;
  CHECK_FALSE(streams_asked());
  const std::uint64_t first = header.alive_monotonic_ns;
  CHECK(first > before);
  CHECK(first >= static_cast<std::uint64_t>(header.began_monotonic_ns));
  header.streams_asked.fetch_add(1);
  const auto asked = streams_asked();
  REQUIRE(asked);
  CHECK(header.alive_monotonic_ns > first);
  answer_streams(*asked, {});
}

TEST_CASE("the number of a texture that was destroyed is not taken for a stream") {
  Header& header = begun();
  answer = api::CUDA_SUCCESS;
  set_target(Symbol::k_cuTexObjectDestroy, +[](api::CUtexObject) { return api::CUDA_SUCCESS; });
  set_target(Symbol::k_cuStreamQuery, +[](api::CUstream) { return api::CUDA_SUCCESS; });
  call<api::cuTexObjectDestroy_fn>(Symbol::k_cuTexObjectDestroy, api::CUtexObject{1});
  call<api::cuStreamQuery_fn>(Symbol::k_cuStreamQuery, reinterpret_cast<api::CUstream>(std::uintptr_t{1}));  // legacy
  CHECK(finding_of(header, Symbol::k_cuStreamQuery) == nullptr);
}

TEST_CASE("arrays that the driver does not read are not read either") {
  begun();
  set_target(
      Symbol::k_cuModuleLoadDataEx,
      +[](api::CUmodule*, const void*, unsigned, api::CUjit_option*, void**) { return api::CUDA_SUCCESS; });
  set_target(
      Symbol::k_cuLibraryEnumerateKernels, +[](api::CUkernel*, unsigned, api::CUlibrary) { return api::CUDA_SUCCESS; });
  const auto nowhere = std::uintptr_t{16};
  api::CUmodule module = nullptr;
  CHECK(call<api::cuModuleLoadDataEx_fn>(Symbol::k_cuModuleLoadDataEx, &module, nullptr, 0U, nullptr,
                                         reinterpret_cast<void**>(nowhere)) == api::CUDA_SUCCESS);
  CHECK(call<api::cuLibraryEnumerateKernels_fn>(Symbol::k_cuLibraryEnumerateKernels,
                                                reinterpret_cast<api::CUkernel*>(nowhere), 0U,
                                                nullptr) == api::CUDA_SUCCESS);
}

namespace {

api::CUcontext current = nullptr;
api::CUresult get_current(api::CUcontext* context) {
  *context = current;
  return api::CUDA_SUCCESS;
}
api::CUresult link_create(unsigned, api::CUjit_option*, void**, api::CUlinkState* state) {
  *state = reinterpret_cast<api::CUlinkState>(next_handle);
  return answer;
}
api::CUresult tex_create(api::CUtexObject* object, const api::CUDA_RESOURCE_DESC*, const api::CUDA_TEXTURE_DESC*,
                         const api::CUDA_RESOURCE_VIEW_DESC*) {
  *object = next_handle;
  return answer;
}

}  // namespace

TEST_CASE("objects that still exist end with their context, and only with theirs") {
  Header& header = begun();
  set_target(Symbol::k_cuCtxGetCurrent, &get_current);
  set_target(Symbol::k_cuEventCreate, &event_create);
  set_target(Symbol::k_cuEventDestroy_v2, &event_destroy);
  set_target(Symbol::k_cuTexObjectCreate, &tex_create);
  const auto gone = [&](Symbol symbol) { return header.gone_with_context[number(symbol)].load(); };
  const auto make = [&](std::uint64_t context, std::uint64_t handle) {
    current = reinterpret_cast<api::CUcontext>(context);
    next_handle = handle;
    api::CUevent event = nullptr;
    call<api::cuEventCreate_fn>(Symbol::k_cuEventCreate, &event, 0U);
  };
  const auto destroy = [&](std::uint64_t handle) {
    call<api::cuEventDestroy_v2_fn>(Symbol::k_cuEventDestroy_v2, reinterpret_cast<api::CUevent>(handle));
  };
  answer = api::CUDA_SUCCESS;
  for (const std::uint64_t handle : {0x9001, 0x9002, 0x9003}) make(0x91, handle);
  make(0x92, 0x9004);
  destroy(0x9001);
  answer = api::CUDA_ERROR_INVALID_HANDLE;
  destroy(0x9002);     // which leaves it as it is
  make(0x91, 0x9005);  // none was made
  answer = api::CUDA_SUCCESS;
  current = reinterpret_cast<api::CUcontext>(0x91);
  next_handle = 0x9002;  // a number that is also an event's handle
  api::CUtexObject object = 0;
  call<api::cuTexObjectCreate_fn>(Symbol::k_cuTexObjectCreate, &object, nullptr, nullptr, nullptr);
  set_target(Symbol::k_cuLinkCreate_v2, &link_create);
  next_handle = 0x9006;
  api::CUlinkState state = nullptr;  // its handle is returned through the last argument
  call<api::cuLinkCreate_v2_fn>(Symbol::k_cuLinkCreate_v2, 0U, nullptr, nullptr, &state);
  context_ended(nullptr);
  CHECK(gone(Symbol::k_cuEventCreate) == 0);
  context_ended(reinterpret_cast<const void*>(0x91));
  CHECK(gone(Symbol::k_cuEventCreate) == 2);
  CHECK(gone(Symbol::k_cuTexObjectCreate) == 1);
  CHECK(gone(Symbol::k_cuLinkCreate_v2) == 1);
  context_ended(reinterpret_cast<const void*>(0x91));
  CHECK(gone(Symbol::k_cuEventCreate) == 2);
  context_ended(reinterpret_cast<const void*>(0x92));
  CHECK(gone(Symbol::k_cuEventCreate) == 3);
}
