// What librota-nvml.so is told of a GPU's memory (runtime/preload/gpu_memory.h is the contract).
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "runtime/preload/gpu_memory.h"

namespace rota::interpose {

// The 16 bytes of "GPU-6ba7b810-9dad-11d1-80b4-00c04fd430c8"; nothing for any other text, a MIG instance's among them.
std::optional<std::array<unsigned char, 16>> parse_gpu_uuid(const char* text) noexcept;

// rota_core_gpu_memory.
int gpu_memory(std::uint32_t version, const char* uuid, RotaGpuMemory* gpu) noexcept;

}  // namespace rota::interpose
