// Reads the CUDA headers of one release into a Model, with libclang.
#pragma once

#include <string>
#include <vector>

#include "codegen/model.h"
#include "codegen/result.h"

namespace rota::codegen {

// Which headers make up an API, and how its functions are named.
struct HeaderSet {
  std::string source;                   // #include lines, in this order, and the macros that some headers want
  std::string function_prefix;          // "cu" or "cuda": other functions are not the API's
  bool typedefs_give_versions = false;  // the driver's *Typedefs.h: every function must have its PFN_ typedef
};

struct ExtractOptions {
  std::string include_directory;       // the folder that holds cuda.h
  std::string resource_directory;      // clang's own headers; empty: looked for
  std::vector<std::string> arguments;  // further compiler arguments
};

HeaderSet driver_headers();
HeaderSet runtime_headers();

// The API that the headers in `options.include_directory` declare. Any diagnostic of severity Error or worse is an
// error that names file and line: libclang answers with wrong types rather than with none when a header is missing.
Result<Api> extract_api(const HeaderSet& headers, const ExtractOptions& options);

// Both APIs; the release is the one that cuda.h states (CUDA_VERSION 13000 is "13.0"), and must be `release` if that
// is given.
Result<Model> extract_model(const ExtractOptions& options, const std::string& release);

// The folder with include/stddef.h that belongs to the libclang in use: without it size_t silently becomes int.
Result<std::string> find_resource_directory();

}  // namespace rota::codegen
