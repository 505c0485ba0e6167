// Names and texts of the driver's errors. The texts are the names in plain words; the real driver's are worded freely.
#include <cctype>
#include <map>
#include <string>

#include "tools/simgpu/driver/entry/errors.h"
#include "tools/simgpu/driver/entry/mutations.h"

namespace rota::sim {
namespace {

struct ErrorName {
  CUresult error;
  const char* name;
};

constexpr ErrorName kNames[] = {
#define ROTA_ERROR(name, value) {name, #name},
#include "generated/driver_errors.inc"
#undef ROTA_ERROR
};

}  // namespace

const char* error_name(CUresult error) {
  for (const ErrorName& known : kNames) {
    if (known.error != error) continue;
    return mutated(Mutation::error_names_are_plain) ? "error" : known.name;
  }
  return nullptr;
}

const char* error_text(CUresult error) {
  // Built once: the pointers stay valid for the life of the process.
  static const auto* texts = [] {
    auto* made = new std::map<CUresult, std::string>;
    for (const ErrorName& known : kNames) {
      std::string text = known.name;
      if (mutated(Mutation::error_texts_are_names)) {
        made->emplace(known.error, std::move(text));
        continue;
      }
      text = known.error == CUDA_SUCCESS ? "no error" : text.substr(sizeof "CUDA_ERROR_" - 1);
      for (char& letter : text) {
        letter = letter == '_' ? ' ' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
      }
      made->emplace(known.error, std::move(text));
    }
    return made;
  }();
  auto found = texts->find(error);
  return found == texts->end() ? nullptr : found->second.c_str();
}

}  // namespace rota::sim
