// Work for the rules about streams, events, captures and launches.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/simgpu/conformance/conformance.h"

namespace conformance {

// Words of device memory, all 0, and kernels that fill them with a value. Made before any Blocker: the first launch of
// a kernel may load it, which can wait for other work.
class Words {
 public:
  explicit Words(const Session& session, size_t count = 64) : fill_(session.function("fill")), buffer_(count * 4) {
    CHECK_OK(cu.cuMemsetD32_v2(buffer_, 0, count));
    CHECK_OK(fill(nullptr, 0));
    CHECK_OK(cu.cuCtxSynchronize());
  }
  CUresult fill(CUstream stream, unsigned value) const {
    return launch(fill_, 1, 32, stream, buffer_.address(), static_cast<unsigned long>(buffer_.bytes() / 4), value);
  }
  // Waits for the stream that the copy is in, as any synchronous copy.
  unsigned value() const { return buffer_.read<unsigned>(1)[0]; }
  CUdeviceptr address() const { return buffer_.address(); }
  CUfunction function() const { return fill_; }

 private:
  CUfunction fill_;
  Buffer buffer_;
};

// A context of its own, current while this lives.
class SecondContext {
 public:
  explicit SecondContext(const Session& session) { CHECK_OK(cu.cuCtxCreate_v2(&context_, 0, session.device())); }
  ~SecondContext() { cu.cuCtxDestroy_v2(context_); }
  SecondContext(const SecondContext&) = delete;
  SecondContext& operator=(const SecondContext&) = delete;
  CUcontext context() const { return context_; }

 private:
  CUcontext context_ = nullptr;
};

// What a thread other than the rule's own gets from a call.
template <class Call>
CUresult on_other_thread(const Session& session, Call call) {
  CUresult result = CUDA_ERROR_UNKNOWN;
  std::thread([&] {
    CHECK_OK(cu.cuCtxSetCurrent(session.context()));
    result = call();
  }).join();
  return result;
}

// A host function that waits until the rule says so, and a flag that the next one sets.
struct Steps {
  std::atomic<bool> go{false};
  std::atomic<bool> done{false};
  static void wait_for_go(void* data) {
    auto* steps = static_cast<Steps*>(data);
    while (!steps->go.load()) std::this_thread::yield();
  }
  static void finish(void* data) { static_cast<Steps*>(data)->done.store(true); }
};

// Puts work into the stream that cannot be over when a call that does not wait for it returns: it begins when
// steps.go is set, takes 20 ms more, and then sets steps.done.
inline void put_slow_work(const Session& session, CUstream stream, Steps* steps) {
  CUfunction spin = session.function("spin");
  CHECK_OK(launch(spin, 1, 1, stream, 0UL));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_OK(cu.cuLaunchHostFunc(stream, &Steps::wait_for_go, steps));
  CHECK_OK(launch(spin, 1, 1, stream, 20'000'000UL));
  CHECK_OK(cu.cuLaunchHostFunc(stream, &Steps::finish, steps));
}

// Time enough for whatever is not held to end: work of 20 ms in a stream of its own. Made before any Blocker.
class Later {
 public:
  explicit Later(const Session& session) : spin_(session.function("spin")) {
    CHECK_OK(launch(spin_, 1, 1, stream_, 0UL));
    CHECK_OK(cu.cuStreamSynchronize(stream_));
  }
  void wait() const {
    CHECK_OK(launch(spin_, 1, 1, stream_, 20'000'000UL));
    CHECK_OK(cu.cuStreamSynchronize(stream_));
  }

 private:
  CUfunction spin_;
  Stream stream_;
};

// Whether the event's work ends. What is held does not, so five seconds are waited for nothing only where a rule is
// broken: an engine that is short of processor time needs more than Later's 20 ms.
inline bool ends(CUevent event) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  CUresult result = cu.cuEventQuery(event);
  while (result == CUDA_ERROR_NOT_READY && std::chrono::steady_clock::now() < limit) {
    std::this_thread::yield();
    result = cu.cuEventQuery(event);
  }
  CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
  return result == CUDA_SUCCESS;
}

inline CUstreamCaptureStatus capture_status(CUstream stream) {
  auto status = static_cast<CUstreamCaptureStatus>(99);
  CHECK_OK(cu.cuStreamIsCapturing(stream, &status));
  return status;
}

}  // namespace conformance
