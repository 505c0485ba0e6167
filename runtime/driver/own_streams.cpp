#include "runtime/driver/own_streams.h"

#include <new>

namespace rota::driver {

api::CUstream OwnStreams::in(api::CUcontext context) {
  const std::lock_guard lock(mutex_);
  auto [entry, fresh] = streams_.try_emplace(context, nullptr);
  if (fresh && real::cuStreamCreate(&entry->second, api::CU_STREAM_NON_BLOCKING) != api::CUDA_SUCCESS) {
    entry->second = nullptr;
  }
  return entry->second;
}

void OwnStreams::forget(api::CUcontext context) {
  const std::lock_guard lock(mutex_);
  streams_.erase(context);
}

}  // namespace rota::driver
