// Errors of the runtime API: it has its own names, and its own texts where the driver has none for the number.
#include <cctype>
#include <map>
#include <string>

#include "tools/simgpu/driver/entry/errors.h"

namespace rota::sim::cudart {
namespace {

struct Name {
  int error;
  const char* name;
};
#define ROTA_ERROR(name, value) name = value,
enum Error : int {
#include "generated/runtime_errors.inc"
};
#undef ROTA_ERROR
#define ROTA_ERROR(name, value) {value, #name},
constexpr Name kNames[] = {
#include "generated/runtime_errors.inc"
};
#undef ROTA_ERROR

// Texts that are neither the driver's nor the name in plain words.
const std::map<int, const char*>& own_texts() {
  static const auto* texts = new std::map<int, const char*>{
      {cudaSuccess, "no error"},
      {cudaErrorInvalidValue, "invalid argument"},
      {cudaErrorMemoryAllocation, "out of memory"},
      {cudaErrorInitializationError, "initialization error"},
      {cudaErrorInvalidConfiguration, "invalid configuration argument"},
      {cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"},
      {cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"},
      {cudaErrorMissingConfiguration, "__global__ function call is not configured"},
      {cudaErrorInvalidDeviceFunction, "invalid device function"},
      {cudaErrorNoDevice, "no CUDA-capable device is detected"},
      {cudaErrorInvalidDevice, "invalid device ordinal"},
      {cudaErrorInvalidResourceHandle, "invalid resource handle"},
      {cudaErrorNotReady, "device not ready"},
      {cudaErrorIllegalAddress, "an illegal memory access was encountered"},
      {cudaErrorNotSupported, "operation not supported"},
      {cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"},
      {cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"},
      {cudaErrorUnknown, "unknown error"},
  };
  return *texts;
}
constexpr const char* kUnknown = "unrecognized error code";

const Name* find(int error) {
  for (const Name& known : kNames) {
    if (known.error == error) return &known;
  }
  return nullptr;
}

// cudaErrorInvalidPitchValue: "invalid pitch value"
std::string in_words(const std::string& name) {
  std::string words;
  for (char letter : name.substr(sizeof "cudaError" - 1)) {
    bool upper = std::isupper(static_cast<unsigned char>(letter)) != 0;
    if (upper && !words.empty()) words += ' ';
    words += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return words;
}

}  // namespace

const char* runtime_error_name(int error) {
  const Name* known = find(error);
  return known != nullptr ? known->name : kUnknown;
}

const char* runtime_error_text(int error) {
  const Name* known = find(error);
  if (known == nullptr) return kUnknown;
  if (auto own = own_texts().find(error); own != own_texts().end()) return own->second;
  if (const char* text = error_text(static_cast<CUresult>(error)); text != nullptr && error >= 100) return text;
  // Made once: the pointers stay valid for the life of the process.
  static const auto* texts = [] {
    auto* made = new std::map<int, std::string>;
    for (const Name& name : kNames) made->emplace(name.error, in_words(name.name));
    return made;
  }();
  return texts->at(error).c_str();
}

}  // namespace rota::sim::cudart

extern "C" __attribute__((visibility("default"))) const char* cudaGetErrorName(int error) {
  return rota::sim::cudart::runtime_error_name(error);
}
extern "C" __attribute__((visibility("default"))) const char* cudaGetErrorString(int error) {
  return rota::sim::cudart::runtime_error_text(error);
}
