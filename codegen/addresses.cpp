#include "codegen/addresses.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include <fmt/format.h>

namespace rota::codegen {
namespace {

// Fields that point to device memory although their type does not say so.
constexpr std::array<std::string_view, 4> kOnDevice = {"base_ptr", "src", "dst", "pPitch"};
// Fields that never do so, or that must be zero.
constexpr std::array<std::string_view, 14> kOnHost = {"srcHost",
                                                      "dstHost",
                                                      "userData",
                                                      "reserved0",
                                                      "reserved1",
                                                      "fence",
                                                      "handle",
                                                      "name",
                                                      "nvSciBufObject",
                                                      "nvSciSyncObj",
                                                      "sharedData",
                                                      "streamSharedData",
                                                      "win32SecurityAttributes",
                                                      "win32HandleMetaData"};
// Arrays of pointers to a kernel's arguments, which hold addresses; and the other way to give them, an array of names
// and values: CU_LAUNCH_PARAM_BUFFER_POINTER and the arguments in one buffer.
constexpr std::string_view kArguments = "kernelParams";
constexpr std::string_view kArgumentBuffer = "extra";
constexpr std::uint64_t kBufferInExtra = sizeof(void*);

// Typedefs of typedefs.
constexpr int kDeepest = 8;

bool is_one_of(const auto& which, const auto& all) {
  return std::ranges::find(all, which) != all.end();
}

// The names of the type that is searched for.
using Names = std::array<std::string_view, 2>;
constexpr Names kAddress = {"CUdeviceptr_v2", "CUdeviceptr"};
constexpr Names kPhysicalHandle = {"CUmemGenericAllocationHandle_v1", "CUmemGenericAllocationHandle"};
constexpr Names kArray = {"CUarray", "CUmipmappedArray"};

// Whether the type is one of them, through any typedef.
bool is_named(const Api& api, const TypeRef& type, const Names& names) {
  if (!type.pointers.empty() || !type.extents.empty()) return false;
  std::string name = type.base;
  for (int depth = 0; depth < kDeepest; ++depth) {
    if (is_one_of(name, names)) return true;
    const Typedef* const alias = api.find_typedef(name);
    if (alias == nullptr || !alias->type.pointers.empty() || !alias->type.extents.empty()) return false;
    name = alias->type.base;
  }
  return false;
}

class Search {
 public:
  Search(const Api& api, const FunctionPolicy* policy, const Names& wanted, std::vector<AddressPlace>& found)
      : api_(api), policy_(policy), wanted_(wanted), found_(found) {}

  std::optional<Error> look_at(std::size_t index, const Parameter& parameter) {
    parameter_ = index;
    name_ = parameter.name;
    named_ = policy_ != nullptr &&
             (is_one_of(parameter.name, policy_->needs_mapping) || is_one_of(parameter.name, policy_->exports));
    return look(parameter.type, parameter.name, parameter.name, {0});
  }

 private:
  bool is_written(const std::string& text) const {
    if (policy_ == nullptr || !policy_->memory) return false;
    // "*nodeParams.alloc.dptr" there is "nodeParams->alloc.dptr" here.
    std::string written = policy_->memory->address;
    if (!written.starts_with('*')) return false;
    written.erase(0, 1);
    std::string plain = text;
    if (const std::size_t arrow = plain.find("->"); arrow != std::string::npos) plain.replace(arrow, 2, ".");
    return plain == written;
  }

  void add(const std::string& text, const std::vector<std::uint64_t>& offsets) {
    if (!is_written(text)) found_.push_back({parameter_, text, offsets});
  }

  std::optional<Error> look(const TypeRef& type, const std::string& text, std::string_view name,
                            std::vector<std::uint64_t> offsets) {
    if (is_named(api_, type, wanted_)) {
      add(text, offsets);
      return std::nullopt;
    }
    const auto resolved = api_.resolve(type);
    if (!resolved) return resolved.error();
    switch (resolved->kind) {
      case TypeKind::kArray:
        return look(resolved->pointee, text + "[0]", name, offsets);
      case TypeKind::kPointer:
        return follow(resolved->pointee, text, name, offsets);
      case TypeKind::kRecord:
        return look_into(*resolved->record, text, offsets);
      default:
        return std::nullopt;
    }
  }

  std::optional<Error> follow(const TypeRef& pointee, const std::string& text, std::string_view name,
                              std::vector<std::uint64_t> offsets) {
    const auto target = api_.resolve(pointee);
    if (!target) return target.error();
    const bool by_type_alone = wanted_ != kAddress;
    if (by_type_alone && (target->kind == TypeKind::kVoid || target->kind == TypeKind::kPointer)) return std::nullopt;
    if (target->kind == TypeKind::kVoid) return untyped(text, name, offsets);
    if (target->kind == TypeKind::kPointer) {
      // The function writes the target of a pointer to a pointer, except for kernel arguments.
      if (name != kArguments && name != kArgumentBuffer) return std::nullopt;
      offsets.push_back(name == kArguments ? 0 : kBufferInExtra);
      offsets.push_back(0);
      add(text + (name == kArguments ? "[0]" : "[1]"), offsets);
      return std::nullopt;
    }
    offsets.push_back(0);
    if (is_named(api_, pointee, wanted_)) {
      add(text + "[0]", offsets);
      return std::nullopt;
    }
    if (target->kind != TypeKind::kRecord) return std::nullopt;
    return look_into(*target->record, text + "->", offsets);
  }

  std::optional<Error> untyped(const std::string& text, std::string_view name,
                               const std::vector<std::uint64_t>& offsets) {
    const bool is_parameter = text == name_;
    const bool on_device = is_parameter ? named_ : is_one_of(name, kOnDevice);
    if (on_device) add(text, offsets);
    if (!on_device && !is_parameter && !is_one_of(name, kOnHost)) {
      return Error{
          fmt::format("{} is a void*: say in codegen/addresses.cpp whether it leads to memory of the device", text)};
    }
    return std::nullopt;
  }

  std::optional<Error> look_into(const Record& record, const std::string& text,
                                 const std::vector<std::uint64_t>& offsets) {
    // The other elements of a list are like the first.
    if (!record.complete || is_one_of(&record, open_)) return std::nullopt;
    open_.push_back(&record);
    for (const Field& field : record.fields) {
      if (field.bits != 0) continue;
      std::vector<std::uint64_t> there = offsets;
      there.back() += field.offset;
      const std::string dot = text.ends_with("->") ? "" : ".";
      const std::string path = field.name.empty() ? text : text + dot + field.name;
      const auto problem = field.nested.empty() ? look(field.type, path, field.name, there)
                                                : look_into(field.nested.front(), path, there);
      if (problem) return problem;
    }
    open_.pop_back();
    return std::nullopt;
  }

  const Api& api_;
  const FunctionPolicy* policy_;
  const Names& wanted_;
  std::vector<AddressPlace>& found_;
  std::size_t parameter_ = 0;
  std::string name_;                 // of the parameter
  std::vector<const Record*> open_;  // the records around the current place
  bool named_ = false;               // the policy says that it leads to device memory
};

Result<std::vector<AddressPlace>> taken(const Api& api, const Function& function, const FunctionPolicy* policy,
                                        const Names& wanted) {
  std::vector<AddressPlace> found;
  Search search(api, policy, wanted, found);
  for (std::size_t index = 0; index < function.parameters.size(); ++index) {
    const Parameter& parameter = function.parameters[index];
    const ParameterUse use = parameter_use(api, policy, function, parameter);
    const bool leads_somewhere = parameter.type.is_pointer();
    if (leads_somewhere && use.direction == Direction::kOut) continue;
    if (const auto problem = search.look_at(index, parameter)) {
      return Error{fmt::format("{}: {}", function.name, problem->text)};
    }
  }
  return found;
}

}  // namespace

Result<std::vector<AddressPlace>> addresses_taken(const Api& api, const Function& function,
                                                  const FunctionPolicy* policy) {
  return taken(api, function, policy, kAddress);
}

Result<std::vector<AddressPlace>> physical_handles_taken(const Api& api, const Function& function,
                                                         const FunctionPolicy* policy) {
  return taken(api, function, policy, kPhysicalHandle);
}

Result<std::vector<AddressPlace>> arrays_taken(const Api& api, const Function& function, const FunctionPolicy* policy) {
  return taken(api, function, policy, kArray);
}

}  // namespace rota::codegen
