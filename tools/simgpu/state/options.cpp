// Reads the ROTA_SIM_* variables.
#include "tools/simgpu/state/options.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "scheduler/base/byte_size.h"
#include "tools/simgpu/profile.h"
#include "tools/simgpu/state/layout.h"

namespace rota::sim {
namespace {

void reject(const char* name, const char* value, const char* accepted) {
  std::fprintf(stderr, "simgpu: %s is '%s': give %s; the default is used\n", name, value, accepted);
}

bool parse_int(const char* text, long low, long high, long* out) {
  char* end = nullptr;
  long value = std::strtol(text, &end, 10);
  if (end == text || *end != '\0' || value < low || value > high) return false;
  *out = value;
  return true;
}

const char* variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read once, before simgpu starts threads
  return value != nullptr && *value != '\0' ? value : nullptr;
}

}  // namespace

Options Options::from_environment() {
  Options options;
  const char* shared = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  options.state_path =
      std::string(shared) + "/rota-simgpu-" + std::to_string(getuid()) + "-" + std::to_string(kStateVersion);
  if (const char* value = variable("ROTA_SIM_STATE")) options.state_path = value;
  const char* named = variable("ROTA_SIM_PROFILE");
  auto loaded = load_profile(named != nullptr ? named : profile_names().front());
  if (loaded) {
    if (named != nullptr && loaded->device.memory != 0) options.memory = loaded->device.memory;
    options.profile = std::make_shared<const Profile>(std::move(*loaded));
  } else {
    options.unusable = "ROTA_SIM_PROFILE: " + loaded.error().text;
    options.profile = std::make_shared<const Profile>(default_profile());
  }
  if (const char* value = variable("ROTA_SIM_MEMORY")) {
    const auto bytes = parse_bytes(value);
    if (bytes && *bytes >= kLeastMemory && *bytes <= kMostMemory)
      options.memory = *bytes;
    else
      reject("ROTA_SIM_MEMORY", value, "bytes from 8M to 256G, suffixes K, M, G");
  }
  if (const char* value = variable("ROTA_SIM_CONTEXT_BYTES")) {
    const auto bytes = parse_bytes(value);
    if (bytes && *bytes < options.memory)
      options.context_bytes = *bytes;
    else
      reject("ROTA_SIM_CONTEXT_BYTES", value, "bytes below ROTA_SIM_MEMORY, suffixes K, M, G");
  }
  long number = 0;
  if (const char* value = variable("ROTA_SIM_GPUS")) {
    if (parse_int(value, 1, 8, &number))
      options.gpus = static_cast<int>(number);
    else
      reject("ROTA_SIM_GPUS", value, "a number from 1 to 8");
  }
  if (const char* value = variable("ROTA_SIM_DRIVER_VERSION")) {
    if (parse_int(value, 2000, 99990, &number))
      options.driver_version = static_cast<int>(number);
    else
      reject("ROTA_SIM_DRIVER_VERSION", value, "1000 * major + 10 * minor, such as 13000");
  }
  if (const char* value = variable("ROTA_SIM_TIME_SCALE")) {
    char* end = nullptr;
    double scale = std::strtod(value, &end);
    if (end != value && *end == '\0' && (scale == 0 || (scale >= 0.001 && scale <= 1e6)))
      options.time_scale = scale;
    else
      reject("ROTA_SIM_TIME_SCALE", value, "0, or a number from 0.001 to 1000000");
  }
  if (const char* value = variable("ROTA_SIM_CLOCK")) {
    options.virtual_clock = std::string(value) == "virtual";
    if (!options.virtual_clock && std::string(value) != "real") reject("ROTA_SIM_CLOCK", value, "virtual or real");
  }
  if (const char* value = std::getenv("ROTA_SIM_WRITTEN")) options.written = value;  // also if it is empty
  if (const char* value = variable("ROTA_SIM_UNREGISTERED")) {
    options.skip_unregistered = std::string(value) == "skip";
    if (!options.skip_unregistered && std::string(value) != "fail") {
      reject("ROTA_SIM_UNREGISTERED", value, "skip or fail");
    }
  }
  if (const char* value = variable("ROTA_SIM_LOG")) options.log = value;
  if (const char* value = variable("ROTA_SIM_KERNELS")) {
    std::string list = value;
    for (size_t start = 0; start <= list.size();) {
      size_t colon = list.find(':', start);
      if (colon == std::string::npos) colon = list.size();
      if (colon > start) options.kernels.push_back(list.substr(start, colon - start));
      start = colon + 1;
    }
  }
  return options;
}

}  // namespace rota::sim
