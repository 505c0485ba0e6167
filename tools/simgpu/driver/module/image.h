// What the images of modules and libraries contain. For a PTX text: its entries, if a kernel library registers them,
// and its variables. Of cubins and fatbins only the first bytes are checked: they count as containing everything that
// kernel libraries register.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tools/simgpu/driver/api.h"
#include "tools/simgpu/kernel.h"

namespace rota::sim {

struct VariableDefinition {
  uint64_t bytes = 0;
  std::vector<unsigned char> initial;  // zeros follow
  RotaSimVariableKind kind = ROTA_SIM_DEVICE_VARIABLE;
};

struct Image {
  std::vector<const RotaSimKernel*> kernels;
  bool binary = false;            // it may hold any other kernel, too
  std::set<std::string> unknown;  // entries of a PTX text that are not registered
  std::map<std::string, VariableDefinition> variables;
};

// The kernels and variables registered by the libraries of ROTA_SIM_KERNELS.
class Kernels {
 public:
  // Loads the libraries; one line on stderr for each that cannot be loaded. False: there was one.
  bool load(const std::vector<std::string>& libraries);
  const RotaSimKernel* find(const std::string& name) const;
  // For an unregistered kernel that the program's image has or may have: reports each name once. With
  // ROTA_SIM_UNREGISTERED=skip returns one that does nothing, otherwise null.
  const RotaSimKernel* unregistered(const std::string& name, bool skip) const;
  // The image that contains everything.
  const std::shared_ptr<const Image>& everything() const { return everything_; }

 private:
  std::map<std::string, const RotaSimKernel*> by_name_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, RotaSimKernel> unregistered_;  // without `run` unless they are skipped
  std::shared_ptr<const Image> everything_ = std::make_shared<Image>();
};

// CUDA_ERROR_INVALID_IMAGE: neither PTX nor a binary. CUDA_ERROR_INVALID_PTX: a text that is not a PTX module.
// CUDA_ERROR_UNSUPPORTED_PTX_VERSION: of a later release than the driver; CUDA_ERROR_NO_BINARY_FOR_GPU: for a later
// architecture than compute_capability (10 * major + minor).
CUresult read_image(const void* code, const Kernels& kernels, int driver_version, int compute_capability,
                    std::shared_ptr<const Image>* image);

// A file's image, by the same rules. CUDA_ERROR_FILE_NOT_FOUND.
CUresult read_image_file(const char* path, const Kernels& kernels, int driver_version, int compute_capability,
                         std::shared_ptr<const Image>* image);

}  // namespace rota::sim
