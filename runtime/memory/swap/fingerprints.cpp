#include "runtime/memory/swap/fingerprints.h"

#include <sys/random.h>

#include <algorithm>

#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/driver/own_streams.h"

// fingerprint.ptx, ended by a null (fingerprint_image.S).
extern "C" const char rota_fingerprint_image[];

namespace rota::memory {

using fingerprint::kChunkBytes;
using fingerprint::kMostChunks;
using fingerprint::Print;

namespace {

static_assert(Fingerprints::kMost / kChunkBytes <= kMostChunks / 2, "each part of memory ends with a chunk of its own");

constexpr unsigned kDeviceMap = 2;  // CU_MEMHOSTALLOC_DEVICEMAP, a macro in cuda.h

// How long to wait after the driver had no memory for the kernel. A judgment.
constexpr auto kTryAgain = std::chrono::seconds(5);

std::uint64_t chunks_of(std::uint64_t bytes) {
  return (bytes + kChunkBytes - 1) / kChunkBytes;
}

}  // namespace

Fingerprints::Fingerprints() {
  // Without a source of randomness the keys are zeros, and no prints are taken.
  if (getrandom(&keys_, sizeof keys_, 0) != static_cast<ssize_t>(sizeof keys_)) {
    keys_ = {};
    return;
  }
  for (std::uint64_t& point : keys_.point) point = fingerprint::reduced(point >> 3);
  fingerprint::complete(keys_);
}

// With the context current.
Fingerprints::Loaded Fingerprints::load(api::CUcontext context) {
  {
    const std::lock_guard lock(mutex_);
    const auto known = loaded_.find(context);
    if (known != loaded_.end() && (!known->second.failed || Clock::now() < known->second.again)) return known->second;
  }
  Loaded loaded;
  api::CUmodule module = nullptr;
  const char* what = "cuModuleLoadData";
  api::CUresult result = real::cuModuleLoadData(&module, rota_fingerprint_image);
  // The GPU is full: there may be memory later.
  if (result == api::CUDA_ERROR_OUT_OF_MEMORY) {
    const std::lock_guard lock(mutex_);
    return loaded_[context] = {.failed = true, .again = Clock::now() + kTryAgain};
  }
  if (result == api::CUDA_SUCCESS) {
    what = "cuModuleGetFunction";
    result = real::cuModuleGetFunction(&loaded.kernel, module, "rota_fingerprint");
  }
  if (result == api::CUDA_SUCCESS) {
    what = "cuMemHostAlloc";
    void* prints = nullptr;
    result = real::cuMemHostAlloc(&prints, kMostChunks * sizeof(Print), kDeviceMap);
    loaded.prints = static_cast<const Print*>(prints);
  }
  if (result == api::CUDA_SUCCESS) {
    what = "cuMemHostGetDevicePointer";
    result = real::cuMemHostGetDevicePointer_v2(&loaded.prints_on_gpu, const_cast<Print*>(loaded.prints), 0);
  }
  loaded.failed = result != api::CUDA_SUCCESS;
  if (loaded.failed) {
    if (module != nullptr) real::cuModuleUnload(module);
    if (loaded.prints != nullptr) real::cuMemFreeHost(const_cast<Print*>(loaded.prints));
    if (result == api::CUDA_ERROR_OUT_OF_MEMORY) {  // the host is full
      const std::lock_guard lock(mutex_);
      return loaded_[context] = {.failed = true, .again = Clock::now() + kTryAgain};
    }
    give_up(context, what, result);
    return loaded;
  }
  const std::lock_guard lock(mutex_);
  return loaded_[context] = loaded;
}

void Fingerprints::give_up(api::CUcontext context, const char* what, api::CUresult result) {
  log::debug("cannot tell on the GPU what has changed ({}: error {}): all of it is copied", what,
             static_cast<int>(result));
  const std::lock_guard lock(mutex_);
  loaded_[context] = {.failed = true};
}

void Fingerprints::forget(api::CUcontext context) {
  const std::lock_guard lock(mutex_);
  loaded_.erase(context);
}

std::vector<Fingerprints::Seen> Fingerprints::examine(const std::vector<Memory>& all, api::CUcontext context,
                                                      const Within& within, const WaitFor& wait_for) {
  std::vector<Seen> seen(all.size());
  std::uint64_t chunks = 0;
  for (const Memory& each : all) chunks += chunks_of(each.bytes);
  if (chunks == 0 || chunks > kMostChunks || keys_.point[0] == 0) return seen;
  Loaded loaded;
  api::CUstream stream = nullptr;
  api::CUevent event = nullptr;
  api::CUresult result = api::CUDA_SUCCESS;
  within([&] {
    loaded = load(context);
    if (loaded.failed) return;
    result = real::cuStreamCreate(&stream, api::CU_STREAM_NON_BLOCKING);
    if (result != api::CUDA_SUCCESS) return;
    event = driver::make_event();
    api::CUdeviceptr prints = loaded.prints_on_gpu;
    for (const Memory& each : all) {
      if (result != api::CUDA_SUCCESS) break;
      api::CUdeviceptr address = each.address;
      std::uint64_t bytes = each.bytes;
      const auto blocks = static_cast<unsigned>(chunks_of(bytes));
      void* arguments[] = {&address, &bytes, &prints, &keys_};
      result =
          real::cuLaunchKernel(loaded.kernel, blocks, 1, 1, fingerprint::kThreads, 1, 1, 0, stream, arguments, nullptr);
      prints += blocks * sizeof(Print);
    }
    if (result == api::CUDA_SUCCESS) {
      result = event == nullptr ? api::CUDA_ERROR_OUT_OF_MEMORY : real::cuEventRecord(event, stream);
    }
    if (result != api::CUDA_SUCCESS) real::cuStreamSynchronize(stream);
  });
  if (loaded.failed || stream == nullptr) return seen;
  if (result == api::CUDA_SUCCESS) {
    const std::optional<api::CUresult> waited = wait_for(event);
    if (!waited) return seen;
    result = *waited;
  }
  std::vector<Print> prints;
  const bool there = within([&] {
    // Even if it is not known whether the kernels have ended: what they read may be unmapped after this. The prints are
    // host memory of the context's, so they are read only here.
    const api::CUresult over = real::cuStreamSynchronize(stream);
    if (result == api::CUDA_SUCCESS) result = over;
    if (result == api::CUDA_SUCCESS) prints.assign(loaded.prints, loaded.prints + chunks);
    if (event != nullptr) real::cuEventDestroy_v2(event);
    real::cuStreamDestroy_v2(stream);
    // A context that has ended without rota's knowledge says nothing about the next one, which may have its handle.
    const bool ended = result == api::CUDA_ERROR_INVALID_HANDLE || result == api::CUDA_ERROR_INVALID_CONTEXT ||
                       result == api::CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (ended) {
      forget(context);
    } else if (result != api::CUDA_SUCCESS && result != api::CUDA_ERROR_OUT_OF_MEMORY) {
      give_up(context, "the kernel", result);
    }
  });
  if (!there || result != api::CUDA_SUCCESS) return seen;
  auto next = prints.begin();
  for (std::size_t index = 0; index < all.size(); ++index) {
    const auto end = next + static_cast<std::ptrdiff_t>(chunks_of(all[index].bytes));
    seen[index].zero = std::all_of(next, end, [](const Print& print) { return print.any == 0; });
    for (; next != end; ++next) {
      Sums sums;
      std::copy_n(next->sums, sums.size(), sums.begin());
      seen[index].chunks.push_back(sums);
    }
  }
  return seen;
}

}  // namespace rota::memory
