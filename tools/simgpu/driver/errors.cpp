// Names and texts of the driver's errors. The texts are the names in plain words; the real driver's are worded freely.
#include <cctype>
#include <map>
#include <string>

#include "tools/simgpu/driver/errors.h"

namespace rota::sim {
namespace {

struct ErrorName {
  CUresult error;
  const char* name;
};

constexpr ErrorName kNames[] = {
#define ERROR(name) {name, #name},
    ERROR(CUDA_SUCCESS) ERROR(CUDA_ERROR_INVALID_VALUE) ERROR(CUDA_ERROR_OUT_OF_MEMORY) ERROR(
        CUDA_ERROR_NOT_INITIALIZED) ERROR(CUDA_ERROR_DEINITIALIZED) ERROR(CUDA_ERROR_PROFILER_DISABLED)
        ERROR(CUDA_ERROR_PROFILER_NOT_INITIALIZED) ERROR(CUDA_ERROR_PROFILER_ALREADY_STARTED) ERROR(
            CUDA_ERROR_PROFILER_ALREADY_STOPPED) ERROR(CUDA_ERROR_STUB_LIBRARY) ERROR(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER)
            ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE) ERROR(CUDA_ERROR_NO_DEVICE) ERROR(CUDA_ERROR_INVALID_DEVICE) ERROR(
                CUDA_ERROR_DEVICE_NOT_LICENSED) ERROR(CUDA_ERROR_INVALID_IMAGE) ERROR(CUDA_ERROR_INVALID_CONTEXT)
                ERROR(CUDA_ERROR_CONTEXT_ALREADY_CURRENT) ERROR(CUDA_ERROR_MAP_FAILED) ERROR(CUDA_ERROR_UNMAP_FAILED) ERROR(
                    CUDA_ERROR_ARRAY_IS_MAPPED) ERROR(CUDA_ERROR_ALREADY_MAPPED) ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU) ERROR(CUDA_ERROR_ALREADY_ACQUIRED)
                    ERROR(CUDA_ERROR_NOT_MAPPED) ERROR(CUDA_ERROR_NOT_MAPPED_AS_ARRAY) ERROR(CUDA_ERROR_NOT_MAPPED_AS_POINTER) ERROR(
                        CUDA_ERROR_ECC_UNCORRECTABLE) ERROR(CUDA_ERROR_UNSUPPORTED_LIMIT)
                        ERROR(CUDA_ERROR_CONTEXT_ALREADY_IN_USE) ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED) ERROR(
                            CUDA_ERROR_INVALID_PTX) ERROR(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT) ERROR(CUDA_ERROR_NVLINK_UNCORRECTABLE)
                            ERROR(CUDA_ERROR_JIT_COMPILER_NOT_FOUND) ERROR(CUDA_ERROR_UNSUPPORTED_PTX_VERSION) ERROR(
                                CUDA_ERROR_JIT_COMPILATION_DISABLED) ERROR(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY)
                                ERROR(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC) ERROR(CUDA_ERROR_CONTAINED) ERROR(
                                    CUDA_ERROR_INVALID_SOURCE) ERROR(CUDA_ERROR_FILE_NOT_FOUND)
                                    ERROR(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND) ERROR(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED) ERROR(
                                        CUDA_ERROR_OPERATING_SYSTEM) ERROR(CUDA_ERROR_INVALID_HANDLE) ERROR(CUDA_ERROR_ILLEGAL_STATE)
                                        ERROR(CUDA_ERROR_LOSSY_QUERY) ERROR(CUDA_ERROR_NOT_FOUND) ERROR(CUDA_ERROR_NOT_READY) ERROR(
                                            CUDA_ERROR_ILLEGAL_ADDRESS) ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)
                                            ERROR(CUDA_ERROR_LAUNCH_TIMEOUT) ERROR(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING) ERROR(
                                                CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)
                                                ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE) ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED) ERROR(
                                                    CUDA_ERROR_ASSERT) ERROR(CUDA_ERROR_TOO_MANY_PEERS) ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
                                                    ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) ERROR(
                                                        CUDA_ERROR_HARDWARE_STACK_ERROR) ERROR(CUDA_ERROR_ILLEGAL_INSTRUCTION)
                                                        ERROR(CUDA_ERROR_MISALIGNED_ADDRESS) ERROR(CUDA_ERROR_INVALID_ADDRESS_SPACE) ERROR(
                                                            CUDA_ERROR_INVALID_PC) ERROR(CUDA_ERROR_LAUNCH_FAILED) ERROR(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)
                                                            ERROR(CUDA_ERROR_TENSOR_MEMORY_LEAK) ERROR(CUDA_ERROR_NOT_PERMITTED) ERROR(
                                                                CUDA_ERROR_NOT_SUPPORTED) ERROR(CUDA_ERROR_SYSTEM_NOT_READY)
                                                                ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) ERROR(
                                                                    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE) ERROR(CUDA_ERROR_MPS_CONNECTION_FAILED)
                                                                    ERROR(CUDA_ERROR_MPS_RPC_FAILURE) ERROR(
                                                                        CUDA_ERROR_MPS_SERVER_NOT_READY) ERROR(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED)
                                                                        ERROR(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED) ERROR(
                                                                            CUDA_ERROR_MPS_CLIENT_TERMINATED) ERROR(CUDA_ERROR_CDP_NOT_SUPPORTED)
                                                                            ERROR(CUDA_ERROR_CDP_VERSION_MISMATCH) ERROR(
                                                                                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
                                                                                ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE) ERROR(
                                                                                    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED) ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
                                                                                    ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION) ERROR(
                                                                                        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
                                                                                        ERROR(CUDA_ERROR_CAPTURED_EVENT) ERROR(
                                                                                            CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
                                                                                            ERROR(CUDA_ERROR_TIMEOUT) ERROR(
                                                                                                CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
                                                                                                ERROR(CUDA_ERROR_EXTERNAL_DEVICE) ERROR(
                                                                                                    CUDA_ERROR_INVALID_CLUSTER_SIZE)
                                                                                                    ERROR(
                                                                                                        CUDA_ERROR_FUNCTION_NOT_LOADED)
                                                                                                        ERROR(
                                                                                                            CUDA_ERROR_INVALID_RESOURCE_TYPE)
                                                                                                            ERROR(
                                                                                                                CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)
                                                                                                                ERROR(
                                                                                                                    CUDA_ERROR_KEY_ROTATION)
                                                                                                                    ERROR(
                                                                                                                        CUDA_ERROR_UNKNOWN)
#undef ERROR
};

}  // namespace

const char* error_name(CUresult error) {
  for (const ErrorName& known : kNames) {
    if (known.error == error) return known.name;
  }
  return nullptr;
}

const char* error_text(CUresult error) {
  // Made once: the pointers stay valid for the life of the process.
  static const auto* texts = [] {
    auto* made = new std::map<CUresult, std::string>;
    for (const ErrorName& known : kNames) {
      std::string text = known.name;
      text = known.error == CUDA_SUCCESS ? "no error" : text.substr(sizeof "CUDA_ERROR_" - 1);
      for (char& letter : text) {
        letter = letter == '_' ? ' ' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
      }
      made->emplace(known.error, std::move(text));
    }
    return made;
  }();
  auto found = texts->find(error);
  return found == texts->end() ? nullptr : found->second.c_str();
}

}  // namespace rota::sim
