// The calls of one process as a reader wants them: handles by name, kernels with their geometry, what a call wrote.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "tools/rota/trace/call.h"
#include "tools/rota/trace/objects.h"
#include "tools/rota/trace/render.h"

namespace rota::tool {

// The parts of a line (text) or of an object (JSON).
struct CallText {
  std::string arguments;  // "dptr=&, bytesize=4096" or {"dptr":"0x7ffd2c","bytesize":4096}
  std::string result;     // "CUDA_SUCCESS"; "void" for none; empty if the call did not return
  std::string outputs;    // "*dptr=dptr#1" or {"dptr":{…}}; empty text if nothing
  std::string launch;     // JSON only: {"kernel":…,"grid":[…],…}; empty if it is none. In text it opens the arguments.
};

class ProcessView {
 public:
  explicit ProcessView(RenderOptions options, bool hide_measurements = false)
      : options_(options), hide_measurements_(hide_measurements) {}

  // The process's calls must come in the order in which they began, none left out: names go by first appearance.
  CallText show(const TraceCall& call);
  // The thread's number in the order of first appearance, from 1.
  std::uint32_t thread_number(std::uint32_t thread) {
    return threads_.emplace(thread, static_cast<std::uint32_t>(threads_.size() + 1)).first->second;
  }

 private:
  void learn_objects(const DecodedCall& decoded, const Moment& moment);
  void learn_memory(const DecodedCall& decoded, const Moment& moment);
  void learn_names(const DecodedCall& decoded, const Moment& moment);
  std::string label_of(const DecodedCall& decoded, const TypedBytes& value, const Moment& moment);
  std::string launch(const DecodedCall& decoded, const Renderer& renderer, const Moment& moment);
  // The module, library or graph that a call looks something up in.
  std::optional<Handle> owner_of(const DecodedCall& decoded) const;
  std::optional<Handle> handle_at(const DecodedCall& decoded, const TypedBytes& value) const;

  RenderOptions options_;
  bool hide_measurements_;
  ObjectNames objects_;
  std::map<std::uint32_t, std::uint32_t> threads_;
};

// The same of one call by itself: addresses as numbers, launches as any other call. What a payload lacks (damage) shows
// as "?".
std::string render_arguments(const TraceCall& call, Syntax syntax);
std::string render_outputs(const TraceCall& call, Syntax syntax);
std::string render_result(const TraceCall& call, Syntax syntax);  // only for a call that returned

}  // namespace rota::tool
