// Reads the CUDA headers of one release into a Model, with libclang.
#pragma once

#include <string>
#include <vector>

#include "codegen/model.h"
#include "scheduler/base/result.h"

namespace rota::codegen {

// Which headers make up an API, and how its functions are named.
struct HeaderSet {
  std::string source;                   // #include lines, in this order, and the macros that some headers need
  std::string function_prefix;          // "cu" or "cuda": functions without it are not part of the API
  bool typedefs_give_versions = false;  // the driver's *Typedefs.h: every function must have its PFN_ typedef
};

struct ExtractOptions {
  std::string include_directory;       // the folder that holds cuda.h
  std::string resource_directory;      // clang's own headers; empty: searched for
  std::vector<std::string> arguments;  // further compiler arguments
};

HeaderSet driver_headers();
HeaderSet runtime_headers();

// Reads the API that the headers in `options.include_directory` declare. Any diagnostic of severity Error or worse is
// an error that names file and line: when a header is missing, libclang returns wrong types instead of failing.
Result<Api> extract_api(const HeaderSet& headers, const ExtractOptions& options);

// Reads both APIs. The release is the one that cuda.h states (CUDA_VERSION 13000 is "13.0"); it must equal `release` if
// that is given.
Result<Model> extract_model(const ExtractOptions& options, const std::string& release);

// The folder with include/stddef.h that belongs to the libclang in use: without it size_t silently becomes int.
Result<std::string> find_resource_directory();

}  // namespace rota::codegen
