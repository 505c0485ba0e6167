// The simulated driver's ordering, capture rules, memory and errors.
#include <errno.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/unit/tools/simgpu/with_driver.h"

using namespace simgpu_test;

namespace {

// Notes whether a gate was open when this ran.
struct Probe {
  Gate* gate;
  std::atomic<bool> was_open{false};
  static void look(void* data) {
    auto* probe = static_cast<Probe*>(data);
    probe->was_open = probe->gate->open.load();
  }
};

}  // namespace

TEST_CASE("nothing works before cuInit, and each call says so") {
  TemporaryFolder folder;
  Child child([&]() -> std::string {
    Library library(folder.file("state"));
    int count = 0;
    CUdeviceptr memory = 0;
    EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, CU(cuDeviceGetCount)(&count));
    EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, CU(cuMemAlloc_v2)(&memory, 64));
    EXPECT_OK(CU(cuInit)(0));
    EXPECT_OK(CU(cuDeviceGetCount)(&count));
    EXPECT(count == 1);
    EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, CU(cuMemAlloc_v2)(&memory, 64));
    CUdevice device = 0;
    EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, CU(cuDeviceGet)(&device, 1));
    return "";
  });
  CHECK(child.wait() == "");
}

TEST_CASE("work of a stream runs in order and after the call has returned") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUstream stream = nullptr;
          CUstream other = nullptr;
          EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
          EXPECT_OK(CU(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
          CUdeviceptr memory = 0;
          EXPECT_OK(CU(cuMemAlloc_v2)(&memory, 4));
          EXPECT_OK(CU(cuMemsetD32Async)(memory, 1, 1, other));
          EXPECT_OK(CU(cuStreamSynchronize)(other));
          Gate gate;
          CUevent event = nullptr;
          EXPECT_OK(CU(cuEventCreate)(&event, 0));
          EXPECT_OK(CU(cuLaunchHostFunc)(stream, &Gate::hold, &gate));
          EXPECT_OK(CU(cuMemsetD32Async)(memory, 2, 1, stream));
          EXPECT_OK(CU(cuEventRecord)(event, stream));
          EXPECT_RESULT(CUDA_ERROR_NOT_READY, CU(cuStreamQuery)(stream));
          EXPECT_RESULT(CUDA_ERROR_NOT_READY, CU(cuEventQuery)(event));
          unsigned value = 0;
          EXPECT_OK(CU(cuMemcpyDtoHAsync_v2)(&value, memory, 4, other));
          EXPECT(value == 1);  // a copy to pageable memory is done when the call returns
          // A stream that waits for the event sees what came before it.
          EXPECT_OK(CU(cuStreamWaitEvent)(other, event, 0));
          EXPECT_OK(CU(cuEventQuery)(event) == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
          gate.release();
          EXPECT_OK(CU(cuMemcpyDtoHAsync_v2)(&value, memory, 4, other));
          EXPECT(value == 2);
          EXPECT_OK(CU(cuEventSynchronize)(event));
          EXPECT_OK(CU(cuStreamQuery)(stream));
          return "";
        }) == "");
}

TEST_CASE("the legacy default stream waits for blocking streams, the per-thread one does not") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUstream blocking = nullptr;
          CUstream free = nullptr;
          EXPECT_OK(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
          EXPECT_OK(CU(cuStreamCreate)(&free, CU_STREAM_NON_BLOCKING));
          CUdeviceptr memory = 0;
          EXPECT_OK(CU(cuMemAlloc_v2)(&memory, 4));
          EXPECT_OK(CU(cuMemsetD32_v2)(memory, 0, 1));
          EXPECT_OK(CU(cuStreamSynchronize)(nullptr));  // its thread is up: a wrong order would show
          Gate gate;
          EXPECT_OK(CU(cuLaunchHostFunc)(blocking, &Gate::hold, &gate));
          gate.begun.wait(false);
          // Neither of these waits for the blocking stream.
          EXPECT_OK(CU(cuMemsetD32Async)(memory, 3, 1, free));
          EXPECT_OK(CU(cuStreamSynchronize)(free));
          EXPECT_OK(CU(cuMemsetD32Async_ptsz)(memory, 4, 1, nullptr));
          EXPECT_OK(CU(cuStreamSynchronize_ptsz)(nullptr));
          // The legacy stream does, and what is queued to a blocking stream after it waits for it.
          Probe probe{&gate};
          EXPECT_OK(CU(cuLaunchHostFunc)(nullptr, &Probe::look, &probe));
          EXPECT_OK(CU(cuMemsetD32Async)(memory, 5, 1, nullptr));
          EXPECT_RESULT(CUDA_ERROR_NOT_READY, CU(cuStreamQuery)(nullptr));
          EXPECT_OK(CU(cuMemsetD32Async_ptsz)(memory, 6, 1, nullptr));
          EXPECT_RESULT(CUDA_ERROR_NOT_READY, CU(cuStreamQuery_ptsz)(nullptr));
          unsigned value = 0;
          for (int turn = 0; turn < 50; ++turn) EXPECT_OK(CU(cuMemcpyDtoHAsync_v2)(&value, memory, 4, free));
          EXPECT(value == 4);
          gate.release();
          EXPECT_OK(CU(cuStreamSynchronize_ptsz)(nullptr));
          EXPECT_OK(CU(cuMemcpyDtoHAsync_v2)(&value, memory, 4, free));
          EXPECT(value == 6);
          EXPECT(probe.was_open);
          // A non-blocking stream that is held up holds nobody else up.
          Gate other;
          EXPECT_OK(CU(cuLaunchHostFunc)(free, &Gate::hold, &other));
          EXPECT_OK(CU(cuMemsetD32Async)(memory, 7, 1, nullptr));
          EXPECT_OK(CU(cuStreamSynchronize)(nullptr));
          other.release();
          EXPECT_OK(CU(cuStreamSynchronize)(free));
          return "";
        }) == "");
}

TEST_CASE("captured work runs at the launch, and cuCtxRecordEvent destroys a capture under way") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUcontext context = nullptr;
          EXPECT_OK(CU(cuCtxGetCurrent)(&context));
          CUstream stream = nullptr;
          CUevent event = nullptr;
          EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
          EXPECT_OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
          CUdeviceptr memory = 0;
          EXPECT_OK(CU(cuMemAlloc_v2)(&memory, 4));
          EXPECT_OK(CU(cuMemsetD32_v2)(memory, 1, 1));
          EXPECT_OK(CU(cuCtxRecordEvent)(context, event));
          EXPECT_OK(CU(cuEventSynchronize)(event));
          CUgraph graph = nullptr;
          for (auto mode :
               {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
            EXPECT_OK(CU(cuStreamBeginCapture_v2)(stream, mode));
            CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
            EXPECT_OK(CU(cuThreadExchangeStreamCaptureMode)(&relaxed));  // the thread's mode does not help
            EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CU(cuCtxRecordEvent)(context, event));
            EXPECT_OK(CU(cuThreadExchangeStreamCaptureMode)(&relaxed));
            CUstreamCaptureStatus status{};
            EXPECT_OK(CU(cuStreamIsCapturing)(stream, &status));
            EXPECT(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
            EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CU(cuStreamEndCapture)(stream, &graph));
            EXPECT(graph == nullptr);
          }
          EXPECT_OK(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
          EXPECT_OK(CU(cuMemsetD32Async)(memory, 9, 1, stream));
          EXPECT_OK(CU(cuStreamEndCapture)(stream, &graph));
          unsigned value = 0;
          EXPECT_OK(CU(cuMemcpyDtoH_v2)(&value, memory, 4));
          EXPECT(value == 1);
          CUgraphExec executable = nullptr;
          EXPECT_OK(CU(cuGraphInstantiateWithFlags)(&executable, graph, 0));
          EXPECT_OK(CU(cuGraphLaunch)(executable, stream));
          EXPECT_OK(CU(cuStreamSynchronize)(stream));
          EXPECT_OK(CU(cuMemcpyDtoH_v2)(&value, memory, 4));
          EXPECT(value == 9);
          return "";
        }) == "");
}

TEST_CASE(
    "another thread in relaxed mode may record and query events while a stream captures, and in global mode not") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUcontext context = nullptr;
          EXPECT_OK(CU(cuCtxGetCurrent)(&context));
          CUstream stream = nullptr;
          CUstream other = nullptr;
          CUevent event = nullptr;
          EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
          EXPECT_OK(CU(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
          EXPECT_OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
          EXPECT_OK(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
          auto in_thread = [&](CUstreamCaptureMode mode) {
            int result = 0;
            std::thread worker([&] {
              CU(cuCtxSetCurrent)(context);
              CU(cuThreadExchangeStreamCaptureMode)(&mode);
              result = static_cast<int>(CU(cuEventRecord)(event, other));
              CUresult query = CUDA_ERROR_NOT_READY;
              while (query == CUDA_ERROR_NOT_READY) query = CU(cuEventQuery)(event);
              result = result != 0 ? result : static_cast<int>(query);
            });
            worker.join();
            return result;
          };
          EXPECT(in_thread(CU_STREAM_CAPTURE_MODE_RELAXED) == 0);
          // The capturing thread itself may allocate while it is in relaxed mode.
          CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
          EXPECT_OK(CU(cuThreadExchangeStreamCaptureMode)(&relaxed));
          CUdeviceptr memory = 0;
          EXPECT_OK(CU(cuMemAlloc_v2)(&memory, 64));
          EXPECT_OK(CU(cuThreadExchangeStreamCaptureMode)(&relaxed));
          CUstreamCaptureStatus status{};
          EXPECT_OK(CU(cuStreamIsCapturing)(stream, &status));
          EXPECT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
          EXPECT(in_thread(CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
          EXPECT_OK(CU(cuStreamIsCapturing)(stream, &status));
          EXPECT(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
          return "";
        }) == "");
}

TEST_CASE("host code cannot read device memory, and managed memory has one address for both") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUdeviceptr device = 0;
          CUdeviceptr managed = 0;
          EXPECT_OK(CU(cuMemAlloc_v2)(&device, 4096));
          EXPECT_OK(CU(cuMemAllocManaged)(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
          EXPECT_OK(CU(cuMemsetD32_v2)(managed, 0x61626364, 1024));
          EXPECT_OK(CU(cuCtxSynchronize)());
          int ends[2];
          EXPECT(pipe(ends) == 0);
          // The kernel reads on our behalf: EFAULT where a load would be a fault.
          errno = 0;
          EXPECT(write(ends[1], reinterpret_cast<void*>(device), 1) == -1 && errno == EFAULT);
          EXPECT(write(ends[1], reinterpret_cast<void*>(managed), 1) == 1);
          EXPECT(*reinterpret_cast<unsigned*>(managed) == 0x61626364);
          unsigned is_managed = 2;
          EXPECT_OK(CU(cuPointerGetAttribute)(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, device));
          EXPECT(is_managed == 0);
          EXPECT_OK(CU(cuPointerGetAttribute)(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed));
          EXPECT(is_managed == 1);
          char host[16];
          EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoH_v2)(host, device + 4090, 16));
          EXPECT_OK(CU(cuMemFree_v2)(device));
          EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoH_v2)(host, device, 16));
          EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree_v2)(device));
          return "";
        }) == "");
}

TEST_CASE("memory runs out, contexts cost some, and everything comes back") {
  CHECK(with_driver([](Library& library) -> std::string {
          size_t free = 0;
          size_t total = 0;
          EXPECT_OK(CU(cuMemGetInfo_v2)(&free, &total));
          EXPECT(total == 64 << 20);
          EXPECT(free == (64 << 20) - (1 << 20));
          CUdeviceptr memory[2] = {0, 0};
          EXPECT_OK(CU(cuMemAlloc_v2)(&memory[0], 40 << 20));
          EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemAlloc_v2)(&memory[1], 40 << 20));
          EXPECT_OK(CU(cuMemAllocManaged)(&memory[1], 40 << 20, CU_MEM_ATTACH_GLOBAL));
          EXPECT_OK(CU(cuMemFree_v2)(memory[0]));
          EXPECT_OK(CU(cuMemFree_v2)(memory[1]));
          EXPECT_OK(CU(cuMemGetInfo_v2)(&free, &total));
          EXPECT(free == (64 << 20) - (1 << 20));
          EXPECT_OK(CU(cuDevicePrimaryCtxRelease_v2)(0));
          EXPECT_RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, CU(cuMemGetInfo_v2)(&free, &total));
          return "";
        }) == "");
}

TEST_CASE("memory freed in stream order is there until the stream gets to it") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUstream stream = nullptr;
          EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
          size_t before = 0;
          size_t now = 0;
          size_t total = 0;
          EXPECT_OK(CU(cuMemGetInfo_v2)(&before, &total));
          CUdeviceptr memory = 0;
          EXPECT_OK(CU(cuMemAllocAsync)(&memory, 1 << 20, stream));
          Gate gate;
          EXPECT_OK(CU(cuLaunchHostFunc)(stream, &Gate::hold, &gate));
          EXPECT_OK(CU(cuMemFreeAsync)(memory, stream));
          EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, CU(cuMemFreeAsync)(memory, stream));
          EXPECT_OK(CU(cuMemGetInfo_v2)(&now, &total));
          EXPECT(now <= before - (1 << 20));
          gate.release();
          EXPECT_OK(CU(cuStreamSynchronize)(stream));
          EXPECT_OK(CU(cuMemGetInfo_v2)(&now, &total));
          EXPECT(now == before);
          CUdeviceptr managed = 0;
          EXPECT_OK(CU(cuMemAllocManaged)(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
          EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, CU(cuMemFreeAsync)(managed, stream));
          return "";
        }) == "");
}

TEST_CASE("a kernel of another name is not found, a bad launch is refused, a bad address sticks to the context") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUmodule module = nullptr;
          CUfunction function = nullptr;
          EXPECT_RESULT(CUDA_ERROR_INVALID_IMAGE, CU(cuModuleLoadData)(&module, "no module at all"));
          EXPECT_OK(CU(cuModuleLoadData)(&module,
                                         "\x7f"
                                         "ELF"));
          EXPECT_RESULT(CUDA_ERROR_NOT_FOUND, CU(cuModuleGetFunction)(&function, module, "_Z7nothingv"));
          EXPECT_OK(CU(cuModuleGetFunction)(&function, module, "_Z4fillPjmj"));
          CUdeviceptr memory = 0;
          EXPECT_OK(CU(cuMemAlloc_v2)(&memory, 64));
          unsigned long count = 16;
          unsigned value = 5;
          void* parameters[] = {&memory, &count, &value};
          EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                        CU(cuLaunchKernel)(function, 1, 1, 1, 2048, 1, 1, 0, nullptr, parameters, nullptr));
          EXPECT_OK(CU(cuLaunchKernel)(function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr));
          unsigned words[16] = {};
          EXPECT_OK(CU(cuMemcpyDtoH_v2)(words, memory, 64));
          EXPECT(words[0] == 5 && words[15] == 5);
          // The same by the packed form.
          struct {
            CUdeviceptr memory;
            unsigned long count;
            unsigned value;
          } packed{memory, 16, 6};
          size_t size = sizeof packed;
          void* extra[] = {reinterpret_cast<void*>(uintptr_t{1}), &packed, reinterpret_cast<void*>(uintptr_t{2}), &size,
                           nullptr};
          EXPECT_OK(CU(cuLaunchKernel)(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra));
          EXPECT_OK(CU(cuMemcpyDtoH_v2)(words, memory, 64));
          EXPECT(words[0] == 6 && words[15] == 6);
          count = 1000;  // beyond the allocation
          EXPECT_OK(CU(cuLaunchKernel)(function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr));
          EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuCtxSynchronize)());
          EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuMemcpyDtoH_v2)(words, memory, 64));
          return "";
        }) == "");
}

TEST_CASE("sixteen threads allocate, launch and free at the same time") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUcontext context = nullptr;
          EXPECT_OK(CU(cuCtxGetCurrent)(&context));
          std::atomic<int> wrong{0};
          std::vector<std::thread> threads;
          for (unsigned number = 0; number < 16; ++number) {
            threads.emplace_back([&, number] {
              CU(cuCtxSetCurrent)(context);
              for (unsigned round = 0; round < 20; ++round) {
                CUstream stream = nullptr;
                CUdeviceptr memory = 0;
                unsigned value = 0;
                int failed = CU(cuStreamCreate)(&stream, round % 2);
                failed |= CU(cuMemAlloc_v2)(&memory, 4096);
                failed |= CU(cuMemsetD32Async)(memory, number * 100 + round, 1024, stream);
                failed |= CU(cuMemcpyDtoHAsync_v2)(&value, memory + 4092, 4, stream);
                failed |= CU(cuStreamDestroy_v2)(stream);
                failed |= CU(cuMemFree_v2)(memory);
                if (failed != 0 || value != number * 100 + round) ++wrong;
              }
            });
          }
          for (std::thread& thread : threads) thread.join();
          EXPECT(wrong == 0);
          size_t free = 0;
          size_t total = 0;
          EXPECT_OK(CU(cuMemGetInfo_v2)(&free, &total));
          EXPECT(free == (64 << 20) - (1 << 20));
          return "";
        }) == "");
}

TEST_CASE("of two threads that destroy one context, one does") {
  CHECK(with_driver([](Library& library) -> std::string {
          size_t before = 0;
          size_t after = 0;
          size_t total = 0;
          EXPECT_OK(CU(cuMemGetInfo_v2)(&before, &total));
          for (int round = 0; round < 300; ++round) {
            CUcontext context = nullptr;
            EXPECT_OK(CU(cuCtxCreate_v2)(&context, 0, 0));
            EXPECT_OK(CU(cuCtxPopCurrent_v2)(&context));
            std::atomic<int> ready{0};
            std::atomic<int> destroyed{0};
            auto destroy = [&] {
              ready.fetch_add(1);
              while (ready.load() != 2) continue;
              if (CU(cuCtxDestroy_v2)(context) == CUDA_SUCCESS) destroyed.fetch_add(1);
            };
            std::thread other(destroy);
            destroy();
            other.join();
            EXPECT(destroyed.load() == 1);
          }
          EXPECT_OK(CU(cuMemGetInfo_v2)(&after, &total));
          EXPECT(before == after);
          return "";
        }) == "");
}

TEST_CASE("destroying a context ends its stream's wait for an event of another context") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUdeviceptr memory = 0;
          EXPECT_OK(CU(cuMemAlloc_v2)(&memory, 4096));
          EXPECT_OK(CU(cuMemsetD8_v2)(memory, 0, 4096));
          CUstream blocked = nullptr;
          CUevent event = nullptr;
          EXPECT_OK(CU(cuStreamCreate)(&blocked, CU_STREAM_NON_BLOCKING));
          EXPECT_OK(CU(cuStreamWaitValue32_v2)(blocked, memory, 1, CU_STREAM_WAIT_VALUE_EQ));
          EXPECT_OK(CU(cuEventCreate)(&event, 0));
          EXPECT_OK(CU(cuEventRecord)(event, blocked));
          CUcontext other = nullptr;
          CUstream waiting = nullptr;
          EXPECT_OK(CU(cuCtxCreate_v2)(&other, 0, 0));
          EXPECT_OK(CU(cuStreamCreate)(&waiting, CU_STREAM_NON_BLOCKING));
          EXPECT_OK(CU(cuStreamWaitEvent)(waiting, event, 0));
          EXPECT_OK(CU(cuCtxDestroy_v2)(other));
          EXPECT_RESULT(CUDA_ERROR_NOT_READY, CU(cuEventQuery)(event));
          EXPECT_OK(CU(cuStreamWriteValue32_v2)(nullptr, memory, 1, 0));
          EXPECT_OK(CU(cuEventSynchronize)(event));
          return "";
        }) == "");
}

TEST_CASE("destroying a context ends a wait for a value that another context has captured") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUdeviceptr memory = 0;
          EXPECT_OK(CU(cuMemAlloc_v2)(&memory, 4096));
          EXPECT_OK(CU(cuMemsetD8_v2)(memory, 0, 4096));
          CUstream capturing = nullptr;
          CUgraph graph = nullptr;
          CUgraphExec executable = nullptr;
          EXPECT_OK(CU(cuStreamCreate)(&capturing, CU_STREAM_NON_BLOCKING));
          EXPECT_OK(CU(cuStreamBeginCapture_v2)(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
          EXPECT_OK(CU(cuStreamWaitValue32_v2)(capturing, memory, 1, CU_STREAM_WAIT_VALUE_EQ));
          EXPECT_OK(CU(cuStreamEndCapture)(capturing, &graph));
          EXPECT_OK(CU(cuGraphInstantiateWithFlags)(&executable, graph, 0));
          CUcontext other = nullptr;
          CUstream launching = nullptr;
          EXPECT_OK(CU(cuCtxCreate_v2)(&other, 0, 0));
          EXPECT_OK(CU(cuStreamCreate)(&launching, CU_STREAM_NON_BLOCKING));
          EXPECT_OK(CU(cuGraphLaunch)(executable, launching));
          EXPECT_OK(CU(cuCtxDestroy_v2)(other));
          return "";
        }) == "");
}

TEST_CASE("a child forked after cuInit is told that it has no driver, and its parent goes on") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUdeviceptr memory = 0;
          Child child([&]() -> std::string {
            EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, CU(cuMemAlloc_v2)(&memory, 64));
            EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, CU(cuInit)(0));
            return "";
          });
          std::string text = child.wait();
          if (!text.empty()) return text;
          EXPECT_OK(CU(cuMemAlloc_v2)(&memory, 64));
          return "";
        }) == "");
}

TEST_CASE("what a program destroys at its end may call: the thread's contexts are still there") {
  static Library* at_end = nullptr;
  static CUcontext context = nullptr;
  CHECK(with_driver([](Library& library) -> std::string {
          at_end = &library;
          EXPECT_OK(CU(cuCtxGetCurrent)(&context));
          atexit([] {
            Library& library = *at_end;
            CUcontext current = nullptr;
            bool right = CU(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context;
            for (int push = 0; push < 100; ++push) right = right && CU(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
            _exit(right ? 0 : 3);
          });
          exit(4);  // NOLINT(concurrency-mt-unsafe): the threads of the driver do not call it
        }) == "");
}

TEST_CASE("a folder is no module, and what cannot be planned or pinned is refused: the program lives on") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUmodule module = nullptr;
          EXPECT_RESULT(CUDA_ERROR_FILE_NOT_FOUND, CU(cuModuleLoad)(&module, "/"));
          CUstream stream = nullptr;
          EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
          CUDA_MEMCPY3D_BATCH_OP none{};
          EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpy3DBatchAsync_v2)(size_t{1} << 58, &none, 0, stream));
          void* pinned = nullptr;
          EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemHostAlloc)(&pinned, size_t{1} << 45, 0));
          EXPECT_OK(CU(cuMemHostAlloc)(&pinned, size_t{1} << 20, 0));
          return "";
        }) == "");
}

TEST_CASE("a variable without a size shares its address with no allocation") {
  CHECK(with_driver([](Library& library) -> std::string {
          constexpr const char* kText =
              ".version 7.0\n.target sm_50\n.address_size 64\n.visible .global .align 4 .u32 x[];\n";
          CUmodule module = nullptr;
          CUdeviceptr variable = 0;
          CUdeviceptr memory = 0;
          size_t bytes = 1;
          EXPECT_OK(CU(cuModuleLoadData)(&module, kText));
          EXPECT_OK(CU(cuModuleGetGlobal_v2)(&variable, &bytes, module, "x"));
          EXPECT(bytes == 0);
          EXPECT_OK(CU(cuMemAlloc_v2)(&memory, size_t{1} << 20));
          EXPECT(memory != variable);
          EXPECT_OK(CU(cuModuleUnload)(module));
          EXPECT_OK(CU(cuMemFree_v2)(memory));
          return "";
        }) == "");
}
