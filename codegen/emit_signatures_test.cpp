// signatures_test.cpp: the compiler compares the generated code with the vendor's headers of the newest release.
#include <fmt/format.h>

#include "codegen/emit.h"
#include "codegen/emit_driver.h"

namespace rota::codegen {
namespace {

// Compares the compiler's own spelling of both types, with rota's namespace removed: typedefs are resolved, structs and
// enums are compared by their tags.
constexpr std::string_view kSpelling = R"(
template <class T>
constexpr std::string_view function_with_type() {
  return __PRETTY_FUNCTION__;
}

// Whether two spellings are equal once "rota::api::" is taken out of both.
constexpr bool same_spelling(std::string_view left, std::string_view right) {
  constexpr std::string_view kOurs = "rota::api::";
  std::size_t i = 0;
  std::size_t j = 0;
  for (;;) {
    while (left.substr(i).starts_with(kOurs)) i += kOurs.size();
    while (right.substr(j).starts_with(kOurs)) j += kOurs.size();
    if (i == left.size() || j == right.size()) return i == left.size() && j == right.size();
    if (left[i++] != right[j++]) return false;
  }
}

template <class Ours, class Theirs>
constexpr bool same_type = same_spelling(function_with_type<Ours>(), function_with_type<Theirs>());

static_assert(same_type<api::CUstream, ::CUstream> && !same_type<api::CUstream, ::CUevent>);

#define SIGNATURE(name, theirs) static_assert(same_type<api::name##_fn, std::remove_pointer_t<::theirs>>);
#define LAYOUT(record, ...)                                                            \
  struct same_##record {                                                               \
    using Ours = api::record;                                                          \
    using Theirs = ::record;                                                           \
    static_assert(sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs)); \
    __VA_ARGS__                                                                        \
  };
#define FIELD(path) static_assert(offsetof(Ours, path) == offsetof(Theirs, path));
#define ENUMERATOR(name) static_assert(static_cast<long long>(api::name) == static_cast<long long>(::name));
)";

void append_fields(std::vector<std::string>& items, const std::string& path, const Record& record) {
  for (const Field& field : record.fields) {
    if (field.bits == 0 && !field.name.empty()) items.push_back(fmt::format("FIELD({}{})", path, field.name));
    if (!field.nested.empty() && field.type.extents.empty()) {
      append_fields(items, field.name.empty() ? path : path + field.name + ".", field.nested.front());
    }
  }
}

bool has_typedefs_header(const Function& function) {
  return function.version != 0;
}

}  // namespace

EmittedFile emit_signatures_test(const Inputs& inputs) {
  const Api& api = inputs.newest().driver;
  std::string text = banner(inputs);
  text +=
      R"(// Compiles only if every generated signature, layout and enumerator equals what the newest
// release's headers declare.
// INTERNAL: declares all versions of every function, and their PFN_ typedefs, at once.
#define __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL_ODR
#define EGL_NO_X11
#include <cuda.h>
#include <cudaEGL.h>
#include <cudaGL.h>
#include <cudaProfiler.h>
#include <vdpau/vdpau.h>
#include <cudaVDPAU.h>
#include <cudaEGLTypedefs.h>
#include <cudaGLTypedefs.h>
#include <cudaProfilerTypedefs.h>
#include <cudaTypedefs.h>
#include <cudaVDPAUTypedefs.h>

#if CUDA_VERSION != )";
  text += std::to_string(release_number(inputs.newest().release));
  text += R"(
#error "these are the headers of another release"
#endif

#include <cstddef>
#include <string_view>
#include <type_traits>

#include "generated/driver_functions.h"

namespace rota {
namespace {
)";
  text += kSpelling;
  text += "\n// Signatures, against the typedef of the same version.\n";
  std::vector<std::string> signatures;
  for (const Function& function : api.functions) {
    if (!has_typedefs_header(function)) continue;
    signatures.push_back(fmt::format("SIGNATURE({}, PFN_{}_v{}{})", function.name, function.base, function.version,
                                     stream_form_suffix(function.form)));
  }
  text += wrapped(signatures);
  text += "\n// Layouts.\n";
  for (const Record& record : api.records) {
    if (!record.complete) continue;
    std::vector<std::string> items{fmt::format("LAYOUT({},", record.name)};
    append_fields(items, "", record);
    items.back() += ")";
    text += wrapped(items, "    ");
  }
  text += "\n// Enumerators.\n";
  std::vector<std::string> enumerators;
  for (const Enum& enumeration : api.enums) {
    for (const Enumerator& enumerator : enumeration.enumerators) {
      enumerators.push_back(fmt::format("ENUMERATOR({})", enumerator.name));
    }
  }
  text += wrapped(enumerators);
  text += R"(
}  // namespace
}  // namespace rota

int main() { return 0; }
)";
  return {"signatures_test.cpp", text};
}

}  // namespace rota::codegen
