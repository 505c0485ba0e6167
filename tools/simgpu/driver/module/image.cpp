// Reads images. Of PTX only the module-level directives are read: function bodies are skipped, so they may contain
// anything.
#include "tools/simgpu/driver/module/image.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace rota::sim {
namespace {

// Words, quoted strings and single characters, without comments.
class Tokens {
 public:
  explicit Tokens(std::string_view text) : text_(text) { next(); }
  const std::string_view& now() const { return token_; }
  bool ended() const { return token_.empty(); }
  bool is(std::string_view text) const { return token_ == text; }
  void next() {
    skip_space();
    size_t start = at_;
    if (at_ == text_.size()) {
      token_ = {};
      return;
    }
    if (text_[at_] == '"') {
      size_t end = text_.find('"', at_ + 1);
      at_ = end == std::string_view::npos ? text_.size() : end + 1;
    } else if (is_word(text_[at_])) {
      while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    } else {
      ++at_;
    }
    token_ = text_.substr(start, at_ - start);
  }
  // Skips from an opening bracket to after its closing one; false if it is never closed.
  bool skip_group(char open, char close) {
    int depth = 0;
    for (; !ended(); next()) {
      if (token_[0] == open) ++depth;
      if (token_[0] == close && --depth == 0) {
        next();
        return true;
      }
    }
    return false;
  }

 private:
  static bool is_word(char letter) {
    return std::isalnum(static_cast<unsigned char>(letter)) != 0 || std::strchr("_$%.-+", letter) != nullptr;
  }
  void skip_space() {
    while (at_ < text_.size()) {
      if (std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
        ++at_;
      } else if (text_.compare(at_, 2, "//") == 0) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_.compare(at_, 2, "/*") == 0) {
        size_t end = text_.find("*/", at_ + 2);
        at_ = end == std::string_view::npos ? text_.size() : end + 2;
      } else {
        return;
      }
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string_view token_;
};

// Bytes of ".u32" and similar types; 0: no such type.
uint64_t type_bytes(std::string_view type) {
  if (type.size() < 3 || type[0] != '.' || std::strchr("busf", type[1]) == nullptr) return 0;
  int bits = std::atoi(std::string(type.substr(2)).c_str());
  return bits == 8 || bits == 16 || bits == 32 || bits == 64 || bits == 128 ? static_cast<uint64_t>(bits) / 8 : 0;
}

void append_number(std::string_view text, std::string_view type, std::vector<unsigned char>* bytes) {
  std::string number(text);
  uint64_t bits = 0;
  if (type == ".f64" && number.compare(0, 2, "0d") == 0) {
    bits = std::strtoull(number.c_str() + 2, nullptr, 16);
  } else if (type == ".f32" && number.compare(0, 2, "0f") == 0) {
    bits = std::strtoull(number.c_str() + 2, nullptr, 16);
  } else if (type == ".f64") {
    double value = std::strtod(number.c_str(), nullptr);
    std::memcpy(&bits, &value, sizeof value);
  } else if (type == ".f32") {
    float value = std::strtof(number.c_str(), nullptr);
    std::memcpy(&bits, &value, sizeof value);
  } else if (number[0] == '-') {
    bits = static_cast<uint64_t>(std::strtoll(number.c_str(), nullptr, 0));
  } else {
    bits = std::strtoull(number.c_str(), nullptr, 0);
  }
  const auto* from = reinterpret_cast<const unsigned char*>(&bits);
  bytes->insert(bytes->end(), from, from + std::min<uint64_t>(type_bytes(type), sizeof bits));
}

// What follows .global or .const, up to the semicolon: attributes, type, names with sizes and initial values.
bool read_variable(Tokens& tokens, RotaSimVariableKind kind, Image* image) {
  constexpr uint64_t kLargest = uint64_t{1} << 32;  // no variable is larger: offsets in them are 32-bit
  std::string_view type;
  uint64_t vector = 1;
  while (!tokens.ended() && tokens.now()[0] == '.') {
    if (tokens.is(".align") || tokens.is(".attribute")) {
      bool group = tokens.is(".attribute");
      tokens.next();
      if (!group) {
        tokens.next();
      } else {
        for (Tokens inside = tokens; !inside.ended() && !inside.is(")"); inside.next()) {
          if (inside.is(".managed")) kind = ROTA_SIM_MANAGED_VARIABLE;
        }
        if (!tokens.skip_group('(', ')')) return false;
      }
      continue;
    }
    if (tokens.is(".v2")) vector = 2;
    if (tokens.is(".v4")) vector = 4;
    if (type_bytes(tokens.now()) != 0) type = tokens.now();
    tokens.next();
  }
  if (type.empty()) return false;
  while (!tokens.ended() && !tokens.is(";")) {
    std::string name(tokens.now());
    VariableDefinition variable;
    variable.kind = kind;
    variable.bytes = type_bytes(type) * vector;
    uint64_t elements = 1;
    bool counted = true;
    tokens.next();
    while (tokens.is("[")) {
      tokens.next();
      uint64_t count = 0;
      if (tokens.is("]")) {
        counted = false;  // its length is that of its initial value
      } else {
        count = std::strtoull(std::string(tokens.now()).c_str(), nullptr, 0);
        if (count == 0 || count > kLargest / elements) return false;
        elements *= count;
        tokens.next();
      }
      if (!tokens.is("]")) return false;
      tokens.next();
    }
    variable.bytes *= elements;
    if (variable.bytes > kLargest) return false;
    if (tokens.is("=")) {
      tokens.next();
      int depth = 0;
      for (; !tokens.ended() && !tokens.is(";") && (depth > 0 || !tokens.is(",")); tokens.next()) {
        if (tokens.is("{")) ++depth;
        if (tokens.is("}")) --depth;
        char first = tokens.now()[0];
        bool number = std::isdigit(static_cast<unsigned char>(first)) != 0 || first == '-' || first == '+';
        if (number) append_number(tokens.now(), type, &variable.initial);
      }
    }
    if (!counted) variable.bytes = variable.initial.size();
    if (variable.initial.size() > variable.bytes) return false;
    image->variables[name] = std::move(variable);
    if (tokens.is(",")) tokens.next();
  }
  if (tokens.ended()) return false;
  tokens.next();
  return true;
}

// The newest PTX version that a driver accepts: 11.x accepts 7.x, 12.x accepts 8.x and so on (the minor number may be
// one too large here).
int newest_ptx(int driver_version) {
  int major = driver_version / 1000;
  int minor = driver_version % 1000 / 10;
  if (major >= 12) return (major - 4) * 10 + std::min(minor, 9);
  if (major == 11) return 70 + std::min(minor, 8);
  return 65;
}

CUresult read_ptx(std::string_view text, const Kernels& kernels, int driver_version, int compute_capability,
                  Image* image) {
  Tokens tokens(text);
  if (!tokens.is(".version")) return CUDA_ERROR_INVALID_PTX;
  tokens.next();
  double version = std::atof(std::string(tokens.now()).c_str());
  if (version < 1) return CUDA_ERROR_INVALID_PTX;
  if (static_cast<int>(version * 10 + 0.5) > newest_ptx(driver_version)) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  tokens.next();
  if (!tokens.is(".target")) return CUDA_ERROR_INVALID_PTX;
  tokens.next();
  std::string target(tokens.now());
  if (target.compare(0, 3, "sm_") != 0) return CUDA_ERROR_INVALID_PTX;
  if (std::atoi(target.c_str() + 3) > compute_capability) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  while (!tokens.ended()) {
    if (tokens.is(".entry")) {
      tokens.next();
      const std::string name(tokens.now());
      if (const RotaSimKernel* kernel = kernels.find(name)) {
        image->kernels.push_back(kernel);
      } else {
        image->unknown.insert(name);
      }
    } else if (tokens.is(".global") || tokens.is(".const")) {
      auto kind = tokens.is(".const") ? ROTA_SIM_CONSTANT_VARIABLE : ROTA_SIM_DEVICE_VARIABLE;
      tokens.next();
      if (!read_variable(tokens, kind, image)) return CUDA_ERROR_INVALID_PTX;
    } else if (tokens.is("{")) {
      if (!tokens.skip_group('{', '}')) return CUDA_ERROR_INVALID_PTX;
    } else if (tokens.is("(")) {
      if (!tokens.skip_group('(', ')')) return CUDA_ERROR_INVALID_PTX;
    } else if (tokens.is("}") || tokens.is(")")) {
      return CUDA_ERROR_INVALID_PTX;
    } else {
      tokens.next();
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

bool Kernels::load(const std::vector<std::string>& libraries) {
  auto everything = std::make_shared<Image>();
  bool all = true;
  for (const std::string& library : libraries) {
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      std::fprintf(stderr, "simgpu: cannot load kernels (ROTA_SIM_KERNELS): %s\n", dlerror());
      all = false;
      continue;
    }
    auto list = reinterpret_cast<decltype(&rota_sim_kernels)>(dlsym(handle, "rota_sim_kernels"));
    if (list == nullptr) {
      std::fprintf(stderr, "simgpu: %s (ROTA_SIM_KERNELS) exports no rota_sim_kernels: see rota/simgpu/kernel.h\n",
                   library.c_str());
      dlclose(handle);
      all = false;
      continue;
    }
    for (const RotaSimKernel* kernel = list(); kernel->name != nullptr; ++kernel) by_name_[kernel->name] = kernel;
    auto variables = reinterpret_cast<decltype(&rota_sim_variables)>(dlsym(handle, "rota_sim_variables"));
    if (variables == nullptr) continue;
    for (const RotaSimVariable* variable = variables(); variable->name != nullptr; ++variable) {
      const auto* initial = static_cast<const unsigned char*>(variable->initial);
      everything->variables[variable->name] = {variable->bytes, {initial, initial + variable->bytes}, variable->kind};
    }
  }
  for (const auto& [name, kernel] : by_name_) everything->kernels.push_back(kernel);
  everything->binary = true;
  everything_ = std::move(everything);
  return all;
}

const RotaSimKernel* Kernels::find(const std::string& name) const {
  auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const RotaSimKernel* Kernels::unregistered(const std::string& name, bool skip) const {
  static constexpr uint32_t kNone[] = {0};
  std::lock_guard lock(mutex_);
  const auto [entry, is_new] = unregistered_.try_emplace(name);
  RotaSimKernel& kernel = entry->second;
  if (is_new) {
    kernel = {entry->first.c_str(), nullptr, kNone, kNone, 0, 0, {}};
    if (skip) kernel.run = [](RotaSimLaunch*) {};  // the launch takes an empty kernel's time by itself
    int status = 0;
    char* demangled = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
    const std::string shown = demangled != nullptr ? demangled + (" (" + name + ")") : name;
    std::free(demangled);
    std::fprintf(stderr, "simgpu: kernel %s has no host function: %s\n", shown.c_str(),
                 skip ? "it does nothing, and takes as long as an empty kernel"
                      : "write one (include/rota/simgpu/kernel.h shows how) and name its library with `rota sim "
                        "--kernels`, or let it do nothing with `rota sim --unregistered skip`");
  }
  return kernel.run != nullptr ? &kernel : nullptr;
}

CUresult read_image(const void* code, const Kernels& kernels, int driver_version, int compute_capability,
                    std::shared_ptr<const Image>* image) {
  constexpr uint32_t kFatbinWrapper = 0x466243b1;
  constexpr uint32_t kFatbin = 0xba55ed50;
  constexpr uint32_t kElf = 0x464c457f;  // 0x7f E L F
  uint32_t magic = 0;
  // The text may be shorter than the magic number.
  for (size_t index = 0; index < sizeof magic; ++index) {
    auto byte = static_cast<const unsigned char*>(code)[index];
    if (byte == 0) break;
    magic |= static_cast<uint32_t>(byte) << (8 * index);
  }
  if (magic == kFatbinWrapper || magic == kFatbin || magic == kElf) {
    *image = kernels.everything();
    return CUDA_SUCCESS;
  }
  std::string_view text(static_cast<const char*>(code));
  if (text.find(".version") == std::string_view::npos) return CUDA_ERROR_INVALID_IMAGE;
  auto read = std::make_shared<Image>();
  CUresult result = read_ptx(text, kernels, driver_version, compute_capability, read.get());
  if (result == CUDA_SUCCESS) *image = std::move(read);
  return result;
}

CUresult read_image_file(const char* path, const Kernels& kernels, int driver_version, int compute_capability,
                         std::shared_ptr<const Image>* image) {
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return CUDA_ERROR_FILE_NOT_FOUND;
  std::string bytes;
  char piece[4096];
  for (size_t length = 0; (length = std::fread(piece, 1, sizeof piece, file)) > 0;) bytes.append(piece, length);
  bool whole = std::ferror(file) == 0;  // a directory can be opened, but not read
  std::fclose(file);
  if (!whole) return CUDA_ERROR_FILE_NOT_FOUND;
  return read_image(bytes.c_str(), kernels, driver_version, compute_capability, image);
}

}  // namespace rota::sim
