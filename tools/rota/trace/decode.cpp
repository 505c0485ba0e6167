// See decode.h.
#include "tools/rota/trace/decode.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <fmt/format.h>

namespace rota::tool {
namespace {

using names::Kind;

// A launch's geometry, by the names that parameters and structs give its parts.
constexpr std::string_view kGrid[] = {"gridDimX", "gridDimY", "gridDimZ"};
constexpr std::string_view kBlock[] = {"blockDimX", "blockDimY", "blockDimZ"};
constexpr std::string_view kShared[] = {"sharedMemBytes", "sharedMem", "dynamicSmemBytes"};
constexpr std::string_view kStream[] = {"hStream", "stream"};
constexpr std::string_view kFunction[] = {"f", "func", "kernel", "kern", "cuFunc"};
constexpr std::string_view kShownInLaunch[] = {
    "gridDimX",   "gridDimY",    "gridDimZ",  "blockDimX",      "blockDimY", "blockDimZ",        "gridDim", "blockDim",
    "grid_width", "grid_height", "sharedMem", "sharedMemBytes", "hStream",   "dynamicSmemBytes", "stream"};

bool shown_in_launch(std::string_view name) {
  return std::find(std::begin(kShownInLaunch), std::end(kShownInLaunch), name) != std::end(kShownInLaunch);
}

std::string text_of(const TypedBytes& value) {
  return {reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size()};
}

// The value of an argument, or of a field of a struct that an argument is or points to.
std::optional<TypedBytes> find_value(const DecodedCall& decoded, std::string_view name) {
  for (const Argument& argument : decoded.arguments) {
    if (name == argument.parameter->name && argument.bytes)
      return TypedBytes{argument.parameter->type, *argument.bytes};
  }
  for (const Argument& argument : decoded.arguments) {
    if (argument.before.empty() || argument.before.front().capture->kind == names::CaptureKind::kText) continue;
    const Captured& captured = argument.before.front();
    if (const auto field = find_field(decoded.api, {captured.capture->type, captured.bytes}, name)) return field;
  }
  return std::nullopt;
}

template <std::size_t count>
std::optional<TypedBytes> find_value(const DecodedCall& decoded, const std::string_view (&names)[count]) {
  for (const std::string_view name : names) {
    if (const auto value = find_value(decoded, name)) return value;
  }
  return std::nullopt;
}

using Extent = std::array<std::uint64_t, 3>;

std::optional<Extent> extent(const DecodedCall& decoded, const std::string_view (&parts)[3], std::string_view whole) {
  Extent sizes{1, 1, 1};
  if (const auto first = find_value(decoded, parts[0])) {
    sizes[0] = load_unsigned(first->bytes);
    for (std::size_t i = 1; i < 3; ++i) {
      if (const auto part = find_value(decoded, parts[i])) sizes[i] = load_unsigned(part->bytes);
    }
    return sizes;
  }
  const auto value = find_value(decoded, whole);  // dim3: three unsigned int
  if (!value || value->bytes.size() < 12) return std::nullopt;
  for (std::size_t i = 0; i < 3; ++i) sizes[i] = load_unsigned(value->bytes.subspan(i * 4, 4));
  return sizes;
}

std::string render_capture(const Renderer& renderer, const names::Api& api, const Captured& captured) {
  const names::Capture& capture = *captured.capture;
  if (capture.kind == names::CaptureKind::kText) {
    const std::string letters(reinterpret_cast<const char*>(captured.bytes.data()), captured.bytes.size());
    return quote(letters + (captured.cut_off ? "…" : ""));
  }
  const bool several =
      capture.list || (capture.type < api.types.size() && captured.bytes.size() > api.types[capture.type].bytes);
  return several ? renderer.array(capture.type, captured.bytes, captured.cut_off)
                 : renderer.value(capture.type, captured.bytes);
}

std::string arguments_text(const DecodedCall& decoded, Renderer& renderer, bool as_launch) {
  // The parameter that selects the active member of a union value.
  if (const Argument* const attribute = decoded.argument("attr"); attribute != nullptr && attribute->bytes) {
    renderer.selector(attribute->parameter->type, *attribute->bytes);
  }
  const bool json = renderer.json();
  if (as_launch && !json) renderer.leave_out(kShownInLaunch);
  std::string text;
  for (const Argument& argument : decoded.arguments) {
    const std::string_view name = argument.parameter->name;
    std::string value = argument.bytes ? renderer.value(argument.parameter->type, *argument.bytes) : renderer.unknown();
    // The value behind a pointer replaces or follows the pointer: the reader wants the name, not its address.
    for (const Captured& captured : argument.before) {
      if (captured.capture->behind == nullptr) continue;
      renderer.list_behind(captured.capture->behind, captured.capture->type, captured.bytes, captured.cut_off);
    }
    for (const Captured& captured : argument.before) {
      if (captured.capture->behind != nullptr) continue;
      const std::string inside = render_capture(renderer, decoded.api, captured);
      value = captured.capture->kind == names::CaptureKind::kText ? inside : renderer.behind(value, inside);
    }
    renderer.no_lists_behind();
    if (as_launch && !json && shown_in_launch(name)) continue;
    if (!text.empty()) text += json ? "," : ", ";
    text += json ? quote(name) + ":" : std::string(name) + "=";
    text += value;
  }
  return json ? "{" + text + "}" : text;
}

std::string outputs_text(const DecodedCall& decoded, const Renderer& renderer, bool hide_measurements) {
  const bool json = renderer.json();
  std::string text;
  for (const Argument& argument : decoded.arguments) {
    if (!argument.after) continue;
    const std::string_view name = argument.parameter->name;
    if (!text.empty()) text += json ? "," : ", ";
    text += json ? quote(name) + ":" : fmt::format("*{}=", name);
    text += hide_measurements && is_measurement(decoded.base, name)
                ? renderer.plain("…")
                : render_capture(renderer, decoded.api, *argument.after);
  }
  return json ? "{" + text + "}" : text;
}

std::string result_text(const DecodedCall& decoded, const Renderer& renderer) {
  if (decoded.function.result_in_value) {
    std::byte bytes[sizeof decoded.call.value];
    std::memcpy(bytes, &decoded.call.value, sizeof decoded.call.value);
    return renderer.value(decoded.function.result, bytes);
  }
  if (decoded.result_absent) return renderer.plain("0x0");
  return decoded.result ? render_capture(renderer, decoded.api, *decoded.result) : renderer.unknown();
}

}  // namespace

std::optional<Handle> ProcessView::handle_at(const DecodedCall& decoded, const TypedBytes& value) const {
  if (value.text || value.type >= decoded.api.types.size() || value.bytes.size() < 8) return std::nullopt;
  const Handle handle{handle_class(decoded.api.types[value.type].name), load_unsigned(value.bytes)};
  if (handle.handle_class.empty() || handle.value == 0) return std::nullopt;
  return handle;
}

void ProcessView::learn_objects(const DecodedCall& decoded, const Moment& moment) {
  for (const Argument& argument : decoded.arguments) {
    const std::string_view name = argument.parameter->name;
    if (argument.after && makes_object(decoded.base, name)) {
      const Captured& written = *argument.after;
      for (std::size_t at = 0; at + 8 <= written.bytes.size(); at += 8) {
        const auto handle = handle_at(decoded, {written.capture->type, written.bytes.subspan(at, 8)});
        if (handle) objects_.made(*handle, moment);
      }
    }
    if (argument.bytes && ends_object(decoded.base, name)) {
      const auto handle = handle_at(decoded, {argument.parameter->type, *argument.bytes});
      if (handle) {
        objects_.ended(*handle, moment);
      } else {
        objects_.memory_freed(load_unsigned(*argument.bytes), moment);
      }
    }
  }
}

void ProcessView::learn_memory(const DecodedCall& decoded, const Moment& moment) {
  const auto number = [&](Place place) -> std::uint64_t {
    const auto value = decoded.at(place);
    return value && !value->text ? load_unsigned(value->bytes) : 0;
  };
  if (const Allocation* const allocation = allocation_of(decoded.base)) {
    const std::uint64_t rows = allocation->rows.empty() ? 1 : number(allocation->rows);
    objects_.memory_made(number(allocation->address), number(allocation->bytes) * rows, allocation->host,
                         allocation->fresh, moment, gives_memory(decoded.base));
  }
}

std::string ProcessView::label_of(const DecodedCall& decoded, const TypedBytes& value, const Moment& moment) {
  if (value.text) return text_of(value);
  const std::uint64_t address = load_unsigned(value.bytes);
  if (const auto handle = handle_at(decoded, value); handle && objects_.known(*handle)) {
    if (std::string label = objects_.label(*handle, moment); !label.empty()) return label;
  }
  if (std::string symbol = objects_.symbol(address); !symbol.empty()) return symbol;
  // Where a kernel is expected, a CUkernel may replace a CUfunction, and either a function of the host program.
  for (const std::string_view instead : {"kernel", "function"}) {
    if (objects_.known({instead, address})) return objects_.label({instead, address}, moment);
  }
  return {};
}

void ProcessView::learn_names(const DecodedCall& decoded, const Moment& moment) {
  for (const Naming& naming : namings()) {
    if (naming.function != decoded.base) continue;
    const auto object = decoded.at(naming.object);
    const auto name = decoded.at(naming.name);
    if (!object || !name) continue;
    const std::string label = label_of(decoded, *name, moment);
    if (label.empty()) continue;
    const auto handle = handle_at(decoded, *object);
    if (!handle) {
      if (const std::uint64_t address = load_unsigned(object->bytes); address != 0) objects_.set_symbol(address, label);
      continue;
    }
    std::optional<Handle> owner;
    if (naming.object.starts_with('*')) owner = owner_of(decoded);
    objects_.handle(*handle, moment, naming.object.starts_with('*'), owner ? &*owner : nullptr);
    objects_.set_label(*handle, moment, label);
  }
}

std::optional<Handle> ProcessView::owner_of(const DecodedCall& decoded) const {
  for (const Argument& argument : decoded.arguments) {
    if (!argument.bytes) continue;
    const auto handle = handle_at(decoded, {argument.parameter->type, *argument.bytes});
    if (handle &&
        (handle->handle_class == "module" || handle->handle_class == "library" || handle->handle_class == "graph")) {
      return handle;
    }
  }
  return std::nullopt;
}

std::string ProcessView::launch(const DecodedCall& decoded, const Renderer& renderer, const Moment& moment) {
  if (!is_launch(decoded.base)) return {};
  const auto grid = decoded.base.starts_with("cuLaunchGrid") ? extent(decoded, {"grid_width", "grid_height", ""}, "")
                                                             : extent(decoded, kGrid, "gridDim");
  if (!grid) return {};
  const auto block = extent(decoded, kBlock, "blockDim");
  const auto shared = find_value(decoded, kShared);
  const auto stream = find_value(decoded, kStream);
  const std::optional<TypedBytes> function = kernel_of(decoded);
  const std::string label = function ? label_of(decoded, *function, moment) : std::string();
  const std::string shown = options_.mangled ? label : demangled(label);
  if (renderer.json()) {
    const auto list = [](const Extent& sizes) { return fmt::format("[{},{},{}]", sizes[0], sizes[1], sizes[2]); };
    std::string text =
        fmt::format("{{\"kernel\":{},\"mangled\":{},\"grid\":{}", label.empty() ? "null" : quote(demangled(label)),
                    label.empty() ? "null" : quote(label), list(*grid));
    if (block) text += ",\"block\":" + list(*block);
    if (shared) text += fmt::format(",\"shared\":{}", load_unsigned(shared->bytes));
    if (stream) text += ",\"stream\":" + renderer.value(stream->type, stream->bytes);
    return text + "}";
  }
  std::string text = "kernel=";
  if (!label.empty()) {
    text += quote(shown);
  } else {
    text += function ? renderer.value(function->type, function->bytes) : renderer.unknown();
  }
  const auto list = [](const Extent& sizes) { return fmt::format("({},{},{})", sizes[0], sizes[1], sizes[2]); };
  text += " grid=" + list(*grid);
  if (block) text += " block=" + list(*block);
  if (shared) text += fmt::format(" shared={}", load_unsigned(shared->bytes));
  if (stream) {
    const std::string name = renderer.value(stream->type, stream->bytes);
    if (load_unsigned(stream->bytes) == 0) {
      text += " null-stream";
    } else {
      text += renderer.names_addresses() ? " " + name : " stream=" + name;
    }
  }
  return text;
}

std::optional<TypedBytes> ProcessView::kernel_of(const DecodedCall& decoded) {
  for (const std::string_view name : kFunction) {
    const auto value = find_value(decoded, name);
    if (value && value->bytes.size() == 8 && load_unsigned(value->bytes) != 0) return value;
  }
  return std::nullopt;
}

void ProcessView::learn(const DecodedCall& decoded, const Moment& moment) {
  if (!decoded.call.returned || failed(decoded.call)) return;
  learn_objects(decoded, moment);
  learn_memory(decoded, moment);
  learn_names(decoded, moment);
}

void ProcessView::learn(const TraceCall& call) {
  learn(DecodedCall(call), {call.begin_ns, call.end_ns, call.thread});
}

std::optional<Launched> ProcessView::launched(const TraceCall& call) {
  if (call.api != trace::kDriverApi || !is_direct_launch(base_name(function_name(call)))) return std::nullopt;
  const DecodedCall decoded(call);
  Launched launched;
  if (const auto kernel = kernel_of(decoded)) {
    launched.kernel = demangled(label_of(decoded, *kernel, {call.begin_ns, call.end_ns, call.thread}));
  }
  if (const auto stream = find_value(decoded, kStream)) launched.stream = load_unsigned(stream->bytes);
  if (launched.stream == 0 && function_name(call).ends_with("_ptsz")) launched.stream = 2;
  if (launched.stream == 1) launched.stream = 0;
  return launched;
}

std::optional<Copied> ProcessView::copied(const TraceCall& call) {
  if (call.api != trace::kDriverApi || !call.returned || failed(call)) return std::nullopt;
  const std::string_view base = base_name(function_name(call));
  if (!base.starts_with("cuMemcpy")) return std::nullopt;
  const DecodedCall decoded(call);
  const auto number = [&](std::string_view name, std::uint64_t otherwise) {
    const auto value = find_value(decoded, name);
    return value ? load_unsigned(value->bytes) : otherwise;
  };
  Copied copied;
  copied.bytes = find_value(decoded, "ByteCount")
                     ? number("ByteCount", 0)
                     : number("WidthInBytes", 0) * number("Height", 1) * number("Depth", 1);
  if (copied.bytes == 0) return std::nullopt;
  const auto between = [](bool from_host, bool to_host) {
    if (from_host == to_host) return Direction::kDeviceToDevice;
    return from_host ? Direction::kHostToDevice : Direction::kDeviceToHost;
  };
  constexpr std::uint64_t kHost = 1;     // CU_MEMORYTYPE_HOST
  constexpr std::uint64_t kUnified = 4;  // CU_MEMORYTYPE_UNIFIED: the addresses decide
  const std::uint64_t from = number("srcMemoryType", 0);
  const std::uint64_t to = number("dstMemoryType", 0);
  const std::size_t sides = base.size() > 11 && base[9] == 't' && base[10] == 'o' ? 8 : std::string_view::npos;
  if (sides != std::string_view::npos) {
    copied.direction = between(base[sides] == 'H', base[sides + 3] == 'H');
  } else if (base.starts_with("cuMemcpyPeer") || base.starts_with("cuMemcpy3DPeer")) {
    copied.direction = Direction::kDeviceToDevice;
  } else if (from != 0 && to != 0 && from != kUnified && to != kUnified && (from != kHost || to != kHost)) {
    copied.direction = between(from == kHost, to == kHost);
  }
  return copied;
}

std::string ProcessView::stream_name(std::uint64_t stream, const Moment& moment) {
  if (stream == 0) return "default stream";
  if (stream == 2) return "threads' own default streams";
  return objects_.handle({"stream", stream}, moment, false);
}

CallText ProcessView::show(const TraceCall& call) {
  const DecodedCall decoded(call);
  const Moment moment{call.begin_ns, call.end_ns, call.thread};
  Renderer renderer(decoded.api, options_, &objects_, moment);
  CallText text;
  const std::string launch_text = launch(decoded, renderer, moment);
  text.arguments = arguments_text(decoded, renderer, !launch_text.empty());
  if (renderer.json()) {
    text.launch = launch_text;
  } else if (!launch_text.empty()) {
    text.arguments = launch_text + (text.arguments.empty() ? "" : ", ") + text.arguments;
  }
  if (!call.returned) return text;
  learn(decoded, moment);
  renderer.written(owner_of(decoded));
  text.result = result_text(decoded, renderer);
  text.outputs = outputs_text(decoded, renderer, hide_measurements_);
  return text;
}

std::string render_arguments(const TraceCall& call, Syntax syntax) {
  const DecodedCall decoded(call);
  Renderer renderer(decoded.api, {.syntax = syntax});
  return arguments_text(decoded, renderer, false);
}

std::string render_outputs(const TraceCall& call, Syntax syntax) {
  const DecodedCall decoded(call);
  return outputs_text(decoded, Renderer(decoded.api, {.syntax = syntax}), false);
}

std::string render_result(const TraceCall& call, Syntax syntax) {
  const DecodedCall decoded(call);
  return result_text(decoded, Renderer(decoded.api, {.syntax = syntax}));
}

}  // namespace rota::tool
