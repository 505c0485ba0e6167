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
)";

void append_record(std::string& text, const std::string& outermost, const std::string& path, const Record& record) {
  for (const Field& field : record.fields) {
    if (field.bits == 0 && !field.name.empty()) {
      text += fmt::format("static_assert(offsetof(api::{0}, {1}{2}) == offsetof(::{0}, {1}{2}));\n", outermost, path,
                          field.name);
    }
    if (!field.nested.empty() && field.type.extents.empty()) {
      append_record(text, outermost, field.name.empty() ? path : path + field.name + ".", field.nested.front());
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
  for (const Function& function : api.functions) {
    if (!has_typedefs_header(function)) continue;
    text += fmt::format("static_assert(same_type<api::{}_fn, std::remove_pointer_t<::PFN_{}_v{}{}>>);\n", function.name,
                        function.base, function.version, stream_form_suffix(function.form));
  }
  text += "\n// Layouts.\n";
  for (const Record& record : api.records) {
    if (!record.complete) continue;
    text += fmt::format("static_assert(sizeof(api::{0}) == sizeof(::{0}) && alignof(api::{0}) == alignof(::{0}));\n",
                        record.name);
    append_record(text, record.name, "", record);
  }
  text += "\n// Enumerators.\n";
  for (const Enum& enumeration : api.enums) {
    for (const Enumerator& enumerator : enumeration.enumerators) {
      text += fmt::format("static_assert(static_cast<long long>(api::{0}) == static_cast<long long>(::{0}));\n",
                          enumerator.name);
    }
  }
  text += R"(
}  // namespace
}  // namespace rota

int main() { return 0; }
)";
  return {"signatures_test.cpp", text};
}

}  // namespace rota::codegen
