// The JIT options of a load: they are accepted, and their outputs are filled in (empty logs, zero time).
#pragma once

#include <cstdint>
#include <cstring>

#include "tools/simgpu/driver/api.h"

namespace rota::sim {

struct JitOptions {
  const CUjit_option* options = nullptr;
  void** values = nullptr;
  unsigned count = 0;

  bool valid() const {
    if (count != 0 && (options == nullptr || values == nullptr)) return false;
    for (unsigned index = 0; index < count; ++index) {
      if (static_cast<int>(options[index]) < 0 || options[index] >= CU_JIT_NUM_OPTIONS) return false;
    }
    return true;
  }
  // Fills the log buffers; a failed load writes one line to the error log.
  void report(CUresult result) const {
    fill(CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, "");
    fill(CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
         result == CUDA_SUCCESS ? "" : "simgpu: the image cannot be loaded");
    if (void** time = find(CU_JIT_WALL_TIME)) *time = nullptr;  // a float in the pointer's place
  }

 private:
  void** find(CUjit_option which) const {
    for (unsigned index = 0; index < count; ++index) {
      if (options[index] == which) return &values[index];
    }
    return nullptr;
  }
  void fill(CUjit_option buffer_option, CUjit_option size_option, const char* text) const {
    void** buffer = find(buffer_option);
    void** size = find(size_option);
    if (size == nullptr) return;
    size_t room = reinterpret_cast<uintptr_t>(*size) & 0xffffffffU;
    size_t written = 0;
    if (buffer != nullptr && *buffer != nullptr && room > 0) {
      written = std::strlen(text) < room ? std::strlen(text) : room - 1;
      std::memcpy(*buffer, text, written);
      static_cast<char*>(*buffer)[written] = '\0';
    }
    *size = reinterpret_cast<void*>(static_cast<uintptr_t>(written));  // how much of the buffer was filled
  }
};

}  // namespace rota::sim
