// Turns models and policy into the files of generated/, in memory or on disk.
#pragma once

#include <string>
#include <vector>

#include "codegen/emit.h"

namespace rota::codegen {

// Reads the models in cuda_headers/api, cuda_headers/policy.toml and runtime/overrides.inc under `root`, the
// repository.
Result<Inputs> load_inputs(const std::string& root);

// Combines models (oldest first, at least one) and policy. Fails if the releases contradict each other, or the policy
// contradicts them, so that nothing could be emitted.
Result<Inputs> make_inputs(std::vector<Model> releases, Policy policy);

// Every file of generated/ that rota-codegen makes, sorted by name.
Result<std::vector<EmittedFile>> emit_all(const Inputs& inputs);

// Documents for readers, outside generated/; names are relative to the repository root.
std::vector<EmittedFile> emit_documents(const Inputs& inputs);

// Writes the files that differ from those on disk (an unchanged file keeps its time stamp, so nothing is rebuilt for
// it). Returns the names of the files written.
Result<std::vector<std::string>> write_files(const std::vector<EmittedFile>& files, const std::string& directory);

// The files that are missing or differ.
std::vector<std::string> stale_files(const std::vector<EmittedFile>& files, const std::string& directory);

}  // namespace rota::codegen
