// GPU work that ends only after calls that the program makes later: a tool that holds back these calls until the work
// has ended waits forever.
//
//   dependent CASE [--rounds N] [--pause-ms M] [--stream blocking | non-blocking | per-thread]
//
//   value           a stream waits for a value that another thread writes, by a copy
//   kernels         a kernel spins until a second one, in another stream, has run
//   lock            a host function needs a lock that another thread holds in a call
//   captures        captures of every mode, open for a while, in two contexts, alongside work of both
//   events          two processes, each waiting for the other's events and for its confirmation that it has seen them
//
// Between the work and the call that it depends on there is a pause, longer than a turn, in which a scheduler starts to
// drain this program. Prints "ready" when it begins and "ok" at the end; says what is wrong otherwise.
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

namespace {

// Less than the minute after which spin_until gives up: anything slower did not end because its condition became true.
constexpr double kTooLong = 50;
constexpr unsigned long kWords = 1 << 18;

CUcontext the_context = nullptr;
int rounds = 3;
std::chrono::milliseconds rest{60};
std::string kind = "blocking";

template <typename Function>
Function* optional(const char* symbol, const char* base, int version) {
  return reinterpret_cast<Function*>(cuda().find(symbol, base, version, 0));
}
template <typename Function>
Function* needed(const char* symbol, const char* base, int version) {
  auto* function = optional<Function>(symbol, base, version);
  if (function == nullptr) fail("the driver has no %s", base);
  return function;
}

// Only the thread that created it submits work to it.
class Stream {
 public:
  Stream() {
    if (kind != "per-thread") {
      CHECK(cuStreamCreate(&stream_, kind == "blocking" ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
    }
  }
  operator CUstream() const {  // NOLINT(google-explicit-constructor): an argument
    return kind == "per-thread" ? reinterpret_cast<CUstream>(2) : stream_;  // CU_STREAM_PER_THREAD
  }

 private:
  CUstream stream_ = nullptr;
};

void launch(const char* name, CUstream stream, void** parameters) {
  CHECK(cuLaunchKernel(kernel(name), 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
}

CUdeviceptr allocate(unsigned long words) {
  CUdeviceptr address = 0;
  CHECK(cuMemAlloc_v2(&address, words * sizeof(unsigned)));
  CHECK(cuMemsetD32_v2(address, 0, words));
  CHECK(cuCtxSynchronize());  // a non-blocking stream does not wait for the null stream's work
  return address;
}

void fill(CUdeviceptr address, unsigned long count, unsigned value, CUstream stream) {
  void* parameters[] = {&address, &count, &value};
  launch("_Z4fillPjmj", stream, parameters);
}

void expect(CUdeviceptr address, unsigned long count, unsigned value, const char* what) {
  std::vector<unsigned> words(count);
  CHECK(cuMemcpyDtoH_v2(words.data(), address, count * sizeof(unsigned)));
  for (unsigned long i = 0; i < count; ++i) {
    if (words[i] != value) fail("%s: word %lu is %u instead of %u", what, i, words[i], value);
  }
}

// Runs one round and limits its time.
template <typename Work>
void each_round(const Work& work) {
  for (int round = 1; round <= rounds; ++round) {
    const double begun = seconds();
    work(static_cast<unsigned>(round));
    if (const double took = seconds() - begun; took > kTooLong) fail("round %d took %.1f s", round, took);
  }
}

// In a thread with the context current.
template <typename Work>
std::thread thread(const Work& work) {
  return std::thread([work] {
    CHECK(cuCtxSetCurrent(the_context));
    work();
  });
}

void value() {
  CUdeviceptr flag = allocate(1);
  CUdeviceptr words = allocate(kWords);
  auto* wait = optional<cuStreamWaitValue32_v2_fn>("cuStreamWaitValue32_v2", "cuStreamWaitValue32", 11070);
  if (wait == nullptr) wait = needed<cuStreamWaitValue32_v2_fn>("cuStreamWaitValue32", "cuStreamWaitValue32", 8000);
  const Stream stream;
  each_round([&](unsigned round) {
    check(wait(stream, flag, round, CU_STREAM_WAIT_VALUE_EQ), "cuStreamWaitValue32");
    fill(words, kWords, round, stream);
    std::thread writer = thread([=] {
      std::this_thread::sleep_for(rest);
      const Stream other;
      CHECK(cuMemcpyHtoDAsync_v2(flag, &round, sizeof round, other));
      CHECK(cuStreamSynchronize(other));
    });
    CHECK(cuStreamSynchronize(stream));
    writer.join();
    expect(words, kWords, round, "after the value came");
  });
}

void kernels() {
  CUdeviceptr flag = allocate(1);
  CUdeviceptr words = allocate(kWords);
  const Stream stream;
  each_round([&](unsigned round) {
    CHECK(cuMemsetD32_v2(flag, 0, 1));
    void* parameters[] = {&flag};
    launch("_Z10spin_untilPj", stream, parameters);
    fill(words, kWords, round, stream);
    std::thread second = thread([=] {
      std::this_thread::sleep_for(rest);
      const Stream other;
      fill(flag, 1, 1, other);
      CHECK(cuStreamSynchronize(other));
    });
    CHECK(cuStreamSynchronize(stream));
    second.join();
    expect(words, kWords, round, "after the second kernel");
  });
}

void lock() {
  CUdeviceptr words = allocate(kWords);
  auto* host_function = needed<cuLaunchHostFunc_fn>("cuLaunchHostFunc", "cuLaunchHostFunc", 10000);
  static std::mutex mutex;
  static unsigned done = 0;
  const Stream stream;
  each_round([&](unsigned round) {
    std::mutex held;
    held.lock();  // until the lock is
    std::thread holder = thread([&] {
      const std::lock_guard guard(mutex);
      held.unlock();
      std::this_thread::sleep_for(rest);
      const Stream other;
      fill(words, kWords, round, other);
      CHECK(cuStreamSynchronize(other));
      done = round;
    });
    held.lock();
    held.unlock();
    static unsigned seen = 0;
    check(host_function(
              stream,
              [](void*) {
                const std::lock_guard guard(mutex);
                seen = done;
              },
              nullptr),
          "cuLaunchHostFunc");
    CHECK(cuStreamSynchronize(stream));
    holder.join();
    if (seen != round) fail("the host function saw %u in round %u", seen, round);
    expect(words, kWords, round, "what the thread with the lock wrote");
  });
}

void captures() {
  CUdevice device = 0;
  CHECK(cuDeviceGet(&device, 0));
  auto* create = needed<cuCtxCreate_v2_fn>("cuCtxCreate_v2", "cuCtxCreate", 3020);
  CUcontext second = nullptr;
  check(create(&second, 0, device), "cuCtxCreate");
  CHECK(cuCtxSetCurrent(the_context));
  const std::vector<CUstreamCaptureMode> modes = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                  CU_STREAM_CAPTURE_MODE_RELAXED};
  std::barrier together(2);
  // Each context has one thread; while one captures, the other works, and in the third mode also captures.
  const auto work = [&](CUcontext context, bool first) {
    CHECK(cuCtxSetCurrent(context));
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CHECK(cuModuleLoadData(&module,
                           "\x7f"
                           "ELF"));
    CHECK(cuModuleGetFunction(&function, module, "_Z4fillPjmj"));
    CUdeviceptr words = allocate(kWords);
    const Stream stream;
    // Calls that a capture forbids to other threads are made before and after it.
    together.arrive_and_wait();
    each_round([&](unsigned round) {
      for (const CUstreamCaptureMode mode : modes) {
        const unsigned value = 10 * round + static_cast<unsigned>(mode);
        unsigned long count = kWords;
        void* parameters[] = {&words, &count, const_cast<unsigned*>(&value)};
        const auto add = [&] { CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr)); };
        if (!first && mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
          std::this_thread::sleep_for(rest / 2);
          add();
          together.arrive_and_wait();
          CHECK(cuStreamSynchronize(stream));
          together.arrive_and_wait();
          continue;
        }
        CUgraph graph = nullptr;
        CUgraphExec executable = nullptr;
        CHECK(cuStreamBeginCapture_v2(stream, mode));
        add();
        std::this_thread::sleep_for(rest);
        add();
        CHECK(cuStreamEndCapture(stream, &graph));
        together.arrive_and_wait();
        check(instantiate(&executable, graph), "cuGraphInstantiate");
        CHECK(cuGraphLaunch(executable, stream));
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuGraphExecDestroy(executable));
        CHECK(cuGraphDestroy(graph));
        together.arrive_and_wait();
      }
    });
    CHECK(cuStreamSynchronize(stream));
    std::vector<unsigned> copy(kWords);
    CHECK(cuMemcpyDtoHAsync_v2(copy.data(), words, kWords * sizeof(unsigned), stream));
    CHECK(cuStreamSynchronize(stream));
    const unsigned last = 10 * static_cast<unsigned>(rounds) + CU_STREAM_CAPTURE_MODE_RELAXED;
    for (const unsigned word : copy) {
      if (word != last) fail("a word is %u instead of %u", word, last);
    }
  };
  std::thread other([&] { work(second, false); });
  work(the_context, true);
  other.join();
}

template <typename Value>
void tell(int channel, const Value& value) {
  if (write(channel, &value, sizeof value) != sizeof value) fail("the other process has gone");
}
template <typename Value>
Value hear(int channel) {
  Value value{};
  if (read(channel, &value, sizeof value) != sizeof value) fail("the other process has gone");
  return value;
}

// Both do the same. Each one's kernel ends once the other has queued a wait for it in its own stream, which continues
// after that.
void exchange(int channel) {
  auto* make = needed<cuEventCreate_fn>("cuEventCreate", "cuEventCreate", 2000);
  auto* record = needed<cuEventRecord_fn>("cuEventRecord", "cuEventRecord", 2000);
  auto* wait = needed<cuStreamWaitEvent_fn>("cuStreamWaitEvent", "cuStreamWaitEvent", 3020);
  auto* hand_out = needed<cuIpcGetEventHandle_fn>("cuIpcGetEventHandle", "cuIpcGetEventHandle", 4010);
  auto* open = needed<cuIpcOpenEventHandle_fn>("cuIpcOpenEventHandle", "cuIpcOpenEventHandle", 4010);
  CUevent own = nullptr;
  CUevent others = nullptr;
  CUipcEventHandle handle{};
  check(make(&own, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  check(hand_out(&handle, own), "cuIpcGetEventHandle");
  tell(channel, handle);
  check(open(&others, hear<CUipcEventHandle>(channel)), "cuIpcOpenEventHandle");
  void* pinned = nullptr;
  CHECK(cuMemHostAlloc(&pinned, sizeof(unsigned), 0));
  auto* flag = static_cast<unsigned*>(pinned);
  auto address = reinterpret_cast<CUdeviceptr>(pinned);
  CUdeviceptr words = allocate(kWords);
  const Stream works;
  const Stream waits;
  each_round([&](unsigned round) {
    __atomic_store_n(flag, 0U, __ATOMIC_RELEASE);
    void* parameters[] = {&address};
    launch("_Z10spin_untilPj", works, parameters);
    check(record(own, works), "cuEventRecord");
    tell(channel, 'r');  // recorded
    hear<char>(channel);
    std::this_thread::sleep_for(rest);
    check(wait(waits, others, 0), "cuStreamWaitEvent");
    fill(words, kWords, round, waits);
    tell(channel, 'w');  // waited for
    hear<char>(channel);
    __atomic_store_n(flag, 1U, __ATOMIC_RELEASE);
    CHECK(cuStreamSynchronize(waits));
    CHECK(cuStreamSynchronize(works));
    expect(words, kWords, round, "after the other's event");
    tell(channel, 'd');  // done
    hear<char>(channel);
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) fail("name a case: value, kernels, lock, captures or events");
  const std::string which = argv[1];
  Options options(argc - 1, argv + 1, "dependent CASE [--rounds N] [--pause-ms M] [--stream KIND]");
  rounds = static_cast<int>(options.number("--rounds", 3));
  rest = std::chrono::milliseconds(static_cast<int>(options.number("--pause-ms", 60)));
  kind = options.text("--stream", "blocking");
  const int channel = static_cast<int>(options.number("--channel", 0));
  options.end();
  int ends[2] = {};
  pid_t second = 0;
  if (which == "events" && channel == 0) {
    // A separate program: a forked child could not use the driver.
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) fail("socketpair");
    std::vector<std::string> words(argv, argv + argc);
    words.insert(words.end(), {"--channel", std::to_string(ends[1])});
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    if (posix_spawn(&second, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ) != 0) fail("posix_spawn");
    close(ends[1]);
  }
  start();
  CUdevice device = 0;
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&the_context, device));
  if (channel != 0) {
    exchange(channel);
    return 0;
  }
  std::printf("ready\n");
  std::fflush(stdout);
  if (which == "value") {
    value();
  } else if (which == "kernels") {
    kernels();
  } else if (which == "lock") {
    lock();
  } else if (which == "captures") {
    captures();
  } else if (which == "events") {
    exchange(ends[0]);
    int status = 0;
    if (waitpid(second, &status, 0) != second || status != 0) fail("the second process ended with %d", status);
  } else {
    fail("there is no case %s", which.c_str());
  }
  std::printf("ok\n");
  return 0;
}
