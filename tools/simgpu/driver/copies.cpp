// Copies and sets.
#include "tools/simgpu/driver/copies.h"

#include <algorithm>
#include <cstring>

namespace rota::sim {
namespace {

// The bytes from the first of the first row to the last of the last.
size_t extent(size_t width, size_t height, size_t pitch) {
  return height == 0 ? 0 : (height - 1) * pitch + width;
}

struct Place {
  char* bytes = nullptr;  // where this process finds them
  bool device = false;    // lies on the GPU (or is managed)
  bool pageable = true;
  uint64_t managed = 0;  // address, if managed
};

CUresult locate(uint64_t address, size_t bytes, Side side, Place* place) {
  auto allocation = driver().memory.find(address);
  if (!allocation) {
    // A device pointer that no allocation holds must not be read as host memory.
    if (side == Side::kDevice || driver().memory.in_device_window(address)) return CUDA_ERROR_INVALID_VALUE;
    place->bytes = reinterpret_cast<char*>(address);
    return CUDA_SUCCESS;
  }
  if (bytes > allocation->bytes - (address - allocation->address)) {
    // Host memory may go on beyond what was registered; memory of ours may not.
    if (allocation->kind != MemoryKind::kRegistered) return CUDA_ERROR_INVALID_VALUE;
    place->bytes = reinterpret_cast<char*>(address);
    return CUDA_SUCCESS;
  }
  place->bytes = static_cast<char*>(driver().memory.storage(address, bytes));
  place->pageable = false;
  bool managed = allocation->kind == MemoryKind::kManaged;
  place->device = allocation->kind == MemoryKind::kDevice || (managed && side != Side::kHost);
  if (managed && place->device) place->managed = address;
  if (allocation->kind == MemoryKind::kDevice && side == Side::kHost) return CUDA_ERROR_INVALID_VALUE;
  if (place->bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;  // freed by another thread meanwhile
  return CUDA_SUCCESS;
}

int64_t at_rate(size_t bytes, profile::Rate rate) {
  return static_cast<int64_t>(static_cast<double>(bytes) / rate * 1e9);
}

void perform(Context& context, const CopyRequest& request, const Place& to, const Place& from) {
  size_t bytes = request.width * request.height;
  int64_t migration = 0;
  if (to.managed != 0) {
    driver().make_resident(to.managed, extent(request.width, request.height, request.to_pitch), Access::kCopy,
                           &migration);
  }
  if (from.managed != 0) {
    driver().make_resident(from.managed, extent(request.width, request.height, request.from_pitch), Access::kCopy,
                           &migration);
  }
  for (size_t row = 0; row < request.height; ++row) {
    std::memmove(to.bytes + row * request.to_pitch, from.bytes + row * request.from_pitch, request.width);
  }
  if (to.device && from.device) {
    driver().occupy(context, EngineKind::kCompute, migration + at_rate(2 * bytes, profile::kDeviceBandwidth));
  } else if (to.device) {
    driver().state().count_copy(context.gpu, EngineKind::kHostToDevice, bytes);
    auto rate = from.pageable ? profile::kPageableHostToDevice : profile::kPinnedHostToDevice;
    driver().occupy(context, EngineKind::kHostToDevice, migration + at_rate(bytes, rate));
  } else if (from.device) {
    driver().state().count_copy(context.gpu, EngineKind::kDeviceToHost, bytes);
    auto rate = to.pageable ? profile::kPageableDeviceToHost : profile::kPinnedDeviceToHost;
    driver().occupy(context, EngineKind::kDeviceToHost, migration + at_rate(bytes, rate));
  }
}

bool captures(const StreamPointer& stream) {
  if (!driver().captures.any()) return false;
  std::lock_guard lock(driver().captures.mutex);
  return stream->capture != nullptr;
}

}  // namespace

CUresult copy(const CopyRequest& asked, bool asynchronous, CUstream handle, Form form) {
  ROTA_SIM_CONTEXT(context);
  if (!asynchronous) ROTA_SIM_CHECK(driver().check_unsafe_call());
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  if (asked.width == 0 || asked.height == 0) return CUDA_SUCCESS;
  CopyRequest request = asked;
  if (request.height > 1 && (request.to_pitch < request.width || request.from_pitch < request.width)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Place to;
  Place from;
  ROTA_SIM_CHECK(locate(request.to, extent(request.width, request.height, request.to_pitch), request.to_side, &to));
  ROTA_SIM_CHECK(
      locate(request.from, extent(request.width, request.height, request.from_pitch), request.from_side, &from));
  bool capturing = captures(stream);
  bool wait = !asynchronous;
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  if (asynchronous && !capturing && from.pageable && to.device) {
    auto staged = std::make_shared<std::vector<char>>(request.width * request.height);
    for (size_t row = 0; row < request.height; ++row) {
      std::memcpy(staged->data() + row * request.width, from.bytes + row * request.from_pitch, request.width);
    }
    from.bytes = staged->data();
    request.from_pitch = request.width;
    operation.run = [request, to, from, staged](Context& running) { perform(running, request, to, from); };
  } else {
    wait = wait || (!capturing && to.pageable && from.device);
    operation.run = [request, to, from](Context& running) { perform(running, request, to, from); };
  }
  TaskPointer finished;
  ROTA_SIM_CHECK(driver().submit(stream, std::move(operation), &finished));
  if (wait && finished) finished->wait();
  return wait ? static_cast<CUresult>(context->sticky.load()) : CUDA_SUCCESS;
}

CUresult set(const SetRequest& request, bool asynchronous, CUstream handle, Form form) {
  ROTA_SIM_CONTEXT(context);
  if (!asynchronous) ROTA_SIM_CHECK(driver().check_unsafe_call());
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  if (request.width == 0 || request.height == 0) return CUDA_SUCCESS;
  size_t row = request.width * request.element;
  bool aligned = request.to % request.element == 0 && request.pitch % request.element == 0;
  if (!aligned || (request.height > 1 && request.pitch < row)) return CUDA_ERROR_INVALID_VALUE;
  Place to;
  ROTA_SIM_CHECK(locate(request.to, extent(row, request.height, request.pitch), Side::kDevice, &to));
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_MEMSET;
  operation.run = [request, to, row](Context& running) {
    int64_t nanoseconds = profile::kLaunch + at_rate(row * request.height, profile::kDeviceBandwidth);
    if (to.managed != 0) {
      driver().make_resident(to.managed, extent(row, request.height, request.pitch), Access::kKernel, &nanoseconds);
    }
    for (size_t line = 0; line < request.height; ++line) {
      char* start = to.bytes + line * request.pitch;
      if (request.element == 1) {
        std::memset(start, static_cast<int>(request.value & 0xff), row);
      } else {
        // Doubles what is filled: one element at a time costs a processor seconds per GiB.
        std::memcpy(start, &request.value, request.element);
        for (size_t filled = request.element; filled < row; filled *= 2) {
          std::memcpy(start + filled, start, std::min(filled, row - filled));
        }
      }
    }
    driver().occupy(running, EngineKind::kCompute, nanoseconds);
  };
  TaskPointer finished;
  ROTA_SIM_CHECK(driver().submit(stream, std::move(operation), &finished));
  // The synchronous sets of device memory do not wait either (documented: asynchronous towards the host), except for
  // host memory.
  if (!asynchronous && finished && !to.device) finished->wait();
  return CUDA_SUCCESS;
}

}  // namespace rota::sim
