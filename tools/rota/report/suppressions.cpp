// See suppressions.h.
#include "tools/rota/report/suppressions.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

namespace rota::report {
namespace {

constexpr const char* kAllocator = "keeps freed blocks for later allocations, until the process ends";
constexpr const char* kWorkspace = "keeps workspaces with its handle, which frameworks never destroy";

}  // namespace

Suppressions::Suppressions()
    : list_{
          {"*libcudart.so*", "the CUDA runtime frees what belongs to its primary context by ending with it"},
          {"*/libc10_cuda.so*", fmt::format("PyTorch's caching allocator {}", kAllocator)},
          {"*/libtorch_cuda*.so*", fmt::format("PyTorch {}", kWorkspace)},
          {"*/cupy/*", fmt::format("CuPy's memory pool {}", kAllocator)},
          {"*/cupy_backends/*", fmt::format("CuPy's memory pool {}", kAllocator)},
          {"*/xla_cuda_plugin.so", fmt::format("JAX's allocator {}", kAllocator)},
          {"*/xla_extension.so", fmt::format("JAX's allocator {}", kAllocator)},
          {"*/libjax_common.so", fmt::format("JAX's allocator {}", kAllocator)},
          {"*/.triton/cache/*", "Triton keeps its compiled kernels and their scratch memory for later launches"},
          {"*/triton/*/cuda_utils*.so",
           "Triton keeps its compiled kernels and their scratch memory for later launches"},
          {"*/libcublas*.so*", fmt::format("cuBLAS {}", kWorkspace)},
          {"*/libcudnn*.so*", fmt::format("cuDNN {}", kWorkspace)},
          {"*/libcufft*.so*", fmt::format("cuFFT {}", kWorkspace)},
          {"*/libcusparse*.so*", fmt::format("cuSPARSE {}", kWorkspace)},
          {"*/libcusolver*.so*", fmt::format("cuSOLVER {}", kWorkspace)},
          {"*/libcurand*.so*", fmt::format("cuRAND {}", kWorkspace)},
          {"*/libnccl.so*", "NCCL keeps its buffers with its communicators"},
      } {}

void Suppressions::add_text(std::string_view text) {
  const auto trim = [](std::string_view part) {
    constexpr std::string_view kBlanks = " \t\r";
    const std::size_t begin = part.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return std::string_view();
    return part.substr(begin, part.find_last_not_of(kBlanks) - begin + 1);
  };
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::size_t hash = line.find('#');
    const std::string_view pattern = trim(line.substr(0, hash));
    if (pattern.empty()) continue;
    const std::string_view reason = hash == std::string_view::npos ? "" : trim(line.substr(hash + 1));
    list_.push_back({std::string(pattern), std::string(reason)});
  }
}

Result<bool> Suppressions::add_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file.good() && !file.eof()) {
    return Error{fmt::format("cannot read the suppressions {}: {}", path, std::strerror(errno))};
  }
  add_text(text);
  return true;
}

const Suppression* Suppressions::find(const std::string& module) const {
  for (const Suppression& suppression : list_) {
    if (fnmatch(suppression.pattern.c_str(), module.c_str(), 0) == 0) return &suppression;
  }
  return nullptr;
}

}  // namespace rota::report
