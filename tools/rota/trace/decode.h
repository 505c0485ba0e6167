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

// A kernel that a call of the driver put into a stream.
struct Launched {
  std::string kernel;        // as C++ writes it; empty: not known
  std::uint64_t stream = 0;  // 0: the legacy default stream; 2: the thread's own
};

// Bytes between the host and a GPU, or GPUs, that a call of the driver copied.
enum class Direction { kHostToDevice, kDeviceToHost, kDeviceToDevice, kByAddress };
struct Copied {
  Direction direction = Direction::kByAddress;
  std::uint64_t bytes = 0;
};

class ProcessView {
 public:
  explicit ProcessView(RenderOptions options, bool hide_measurements = false)
      : options_(options), hide_measurements_(hide_measurements) {}

  // All of the process's calls must be passed, in the order in which they began: names are numbered by first
  // appearance.
  CallText show(const TraceCall& call);
  // Records a call without producing text.
  void learn(const TraceCall& call);
  // For a call that was passed to show() or learn().
  std::optional<Launched> launched(const TraceCall& call);
  static std::optional<Copied> copied(const TraceCall& call);
  std::string stream_name(std::uint64_t stream, const Moment& moment);
  const ObjectNames& objects() const { return objects_; }
  // The thread's number in the order of first appearance, from 1.
  std::uint32_t thread_number(std::uint32_t thread) {
    return threads_.emplace(thread, static_cast<std::uint32_t>(threads_.size() + 1)).first->second;
  }

 private:
  void learn(const DecodedCall& decoded, const Moment& moment);
  void learn_objects(const DecodedCall& decoded, const Moment& moment);
  void learn_memory(const DecodedCall& decoded, const Moment& moment);
  void learn_names(const DecodedCall& decoded, const Moment& moment);
  static std::optional<TypedBytes> kernel_of(const DecodedCall& decoded);
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

// The same for a single call: addresses as numbers, launches as any other call. Missing parts of a payload (damage)
// show as "?".
std::string render_arguments(const TraceCall& call, Syntax syntax);
std::string render_outputs(const TraceCall& call, Syntax syntax);
std::string render_result(const TraceCall& call, Syntax syntax);  // only for a call that returned

}  // namespace rota::tool
