// See trace_decode.h.
#include "tools/rota/trace_decode.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace rota::tool {
namespace {

using names::Kind;

// Long arrays (reserved fields, big lists) are cut in the listing; the trace has them whole.
constexpr std::size_t kMostElements = 16;
// Deeper than any CUDA struct; a guard for damaged tables only.
constexpr int kDeepest = 12;

std::uint64_t load_unsigned(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data(), std::min<std::size_t>(bytes.size(), sizeof value));
  return value;
}

std::int64_t load_signed(std::span<const std::byte> bytes) {
  const std::uint64_t value = load_unsigned(bytes);
  if (bytes.empty() || bytes.size() >= 8) return static_cast<std::int64_t>(value);
  const unsigned shift = static_cast<unsigned>(64 - bytes.size() * 8);
  return static_cast<std::int64_t>(value << shift) >> shift;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text = "0x";
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

std::string name_or_text(const std::string& text, Syntax syntax) {
  return syntax == Syntax::kJson ? quote(text) : text;
}

class Renderer {
 public:
  Renderer(const names::Api& api, Syntax syntax) : api_(api), syntax_(syntax) {}

  std::string value(std::uint32_t type_number, std::span<const std::byte> bytes, int depth = 0) const {
    if (type_number >= api_.types.size() || depth > kDeepest) return unknown();
    const names::Type& type = api_.types[type_number];
    if (bytes.size() < type.bytes && type.kind != Kind::kRecord) return unknown();
    bytes = bytes.first(std::min<std::size_t>(bytes.size(), type.bytes));
    switch (type.kind) {
      case Kind::kBool:
        return load_unsigned(bytes) != 0 ? "true" : "false";
      case Kind::kCharacter:
      case Kind::kSigned:
        return std::to_string(load_signed(bytes));
      case Kind::kUnsigned:
        return std::to_string(load_unsigned(bytes));
      case Kind::kFloat:
        return floating(bytes);
      case Kind::kAddress:
        return name_or_text(fmt::format("0x{:x}", load_unsigned(bytes)), syntax_);
      case Kind::kEnum:
      case Kind::kFlags:
        return enumeration(type, bytes);
      case Kind::kRecord:
        return record(type, bytes, depth);
      case Kind::kArray:
        return array(type.detail, bytes, depth);
      case Kind::kOpaque:
        break;
    }
    return name_or_text(bytes.empty() ? "void" : hex(bytes), syntax_);
  }

  // As many elements as the bytes hold.
  std::string array(std::uint32_t element_number, std::span<const std::byte> bytes, int depth) const {
    if (element_number >= api_.types.size()) return unknown();
    const names::Type& element = api_.types[element_number];
    if (element.kind == Kind::kCharacter && element.bytes == 1) return text(bytes);
    if (element.bytes == 0) return unknown();
    const std::size_t count = bytes.size() / element.bytes;
    std::string list = "[";
    for (std::size_t i = 0; i < std::min(count, kMostElements); ++i) {
      if (i > 0) list += ", ";
      list += value(element_number, bytes.subspan(i * element.bytes, element.bytes), depth + 1);
    }
    if (count > kMostElements) list += syntax_ == Syntax::kJson ? ", \"…\"" : ", …";
    return list + "]";
  }

  static std::string text(std::span<const std::byte> bytes) {
    const auto* const letters = reinterpret_cast<const char*>(bytes.data());
    return quote(std::string_view(letters, strnlen(letters, bytes.size())));
  }

  std::string unknown() const { return name_or_text("?", syntax_); }

 private:
  std::string floating(std::span<const std::byte> bytes) const {
    double number = 0;
    if (bytes.size() == 4) {
      number = std::bit_cast<float>(static_cast<std::uint32_t>(load_unsigned(bytes)));
    } else if (bytes.size() == 8) {
      number = std::bit_cast<double>(load_unsigned(bytes));
    } else {
      return unknown();
    }
    const std::string text = fmt::format("{}", number);
    // JSON knows neither nan nor inf.
    return number - number == 0 ? text : name_or_text(text, syntax_);
  }

  std::string enumeration(const names::Type& type, std::span<const std::byte> bytes) const {
    if (type.detail >= api_.enums.size()) return unknown();
    const names::Enum& known = api_.enums[type.detail];
    const auto enumerators = api_.enumerators.subspan(known.first, known.count);
    const std::int64_t value = load_signed(bytes);
    const std::uint64_t bits = load_unsigned(bytes);
    for (const names::Enumerator& enumerator : enumerators) {
      const bool same = bytes.size() < 8
                            ? static_cast<std::int32_t>(enumerator.value) == static_cast<std::int32_t>(value)
                            : enumerator.value == value;
      if (same) return name_or_text(enumerator.name, syntax_);
    }
    if (type.kind == Kind::kEnum) return std::to_string(value);
    // Single bits only: masks and combined values would hide what was asked for.
    std::string joined;
    std::uint64_t rest = bits;
    for (const names::Enumerator& enumerator : enumerators) {
      const auto flag = static_cast<std::uint64_t>(enumerator.value);
      if (!std::has_single_bit(flag) || (rest & flag) == 0) continue;
      if (!joined.empty()) joined += '|';
      joined += enumerator.name;
      rest &= ~flag;
    }
    if (joined.empty()) return bits == 0 ? "0" : name_or_text(fmt::format("0x{:x}", bits), syntax_);
    if (rest != 0) joined += fmt::format("|0x{:x}", rest);
    return name_or_text(joined, syntax_);
  }

  std::string record(const names::Type& type, std::span<const std::byte> bytes, int depth) const {
    if (type.detail >= api_.records.size()) return unknown();
    const names::Record& record = api_.records[type.detail];
    const std::string_view name = record.name;
    // Which member of a union counts, only the program knows; and a UUID is bytes, not letters.
    if (record.is_union || name == "CUuuid_st") {
      std::size_t used = bytes.size();
      if (record.is_union) {
        while (used > 0 && bytes[used - 1] == std::byte{0}) --used;
      }
      return name_or_text(used == 0 ? "0" : hex(bytes.first(used)), syntax_);
    }
    std::string list = "{";
    for (const names::Field& field : api_.fields.subspan(record.first, record.count)) {
      if (field.type >= api_.types.size()) continue;
      const std::string_view field_name = field.name;
      if (field_name.starts_with("reserved") || field_name.starts_with("pad")) continue;
      if (list.size() > 1) list += ", ";
      list += syntax_ == Syntax::kJson ? quote(field_name.empty() ? "union" : field_name) + ":"
                                       : std::string(field_name) + (field_name.empty() ? "" : "=");
      list += field_value(field, bytes, depth);
    }
    return list + "}";
  }

  std::string field_value(const names::Field& field, std::span<const std::byte> bytes, int depth) const {
    const std::size_t size = api_.types[field.type].bytes;
    if (field.offset > bytes.size() || bytes.size() - field.offset < size) return unknown();  // the struct was cut off
    const auto part = bytes.subspan(field.offset, size);
    if (field.bits == 0) return value(field.type, part, depth + 1);
    const std::uint64_t mask = field.bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << field.bits) - 1;
    return std::to_string((load_unsigned(part) >> field.bit) & mask);
  }

  const names::Api& api_;
  Syntax syntax_;
};

// Takes a payload apart; never past its end.
class Payload {
 public:
  explicit Payload(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool take(std::size_t bytes, std::span<const std::byte>& part) {
    if (bytes > rest_.size()) {
      rest_ = {};
      return false;
    }
    part = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return true;
  }
  // False: damaged. An absent capture gives true and `absent`.
  bool take_capture(std::span<const std::byte>& part, bool& absent, bool& cut_off) {
    std::span<const std::byte> word_bytes;
    if (!take(sizeof(std::uint16_t), word_bytes)) return false;
    const auto word = static_cast<std::uint16_t>(load_unsigned(word_bytes));
    absent = word == trace::CaptureWord::kAbsent;
    cut_off = !absent && (word & trace::CaptureWord::kCutOff) != 0;
    return absent || take(trace::CaptureWord::bytes(word), part);
  }

 private:
  std::span<const std::byte> rest_;
};

const names::Function& function_of(const TraceCall& call) {
  return names_of(call).functions[call.function];
}

std::string render_capture(const names::Api& api, const names::Capture& capture, std::span<const std::byte> bytes,
                           bool cut_off, Syntax syntax) {
  const Renderer renderer(api, syntax);
  std::string text;
  if (capture.kind == names::CaptureKind::kText) {
    const auto* const letters = reinterpret_cast<const char*>(bytes.data());
    return quote(std::string(letters, bytes.size()) + (cut_off ? "…" : ""));
  }
  const bool several =
      capture.list || (capture.type < api.types.size() && bytes.size() > api.types[capture.type].bytes);
  text = several ? renderer.array(capture.type, bytes, 0) : renderer.value(capture.type, bytes);
  return cut_off && several && syntax == Syntax::kText ? text + "…" : text;
}

}  // namespace

std::string quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

const names::Api& names_of(const TraceCall& call) {
  return call.api == trace::kDriverApi ? names::driver() : names::runtime();
}

std::string_view function_name(const TraceCall& call) {
  return function_of(call).name;
}

std::string render_value(const names::Api& api, std::uint32_t type, std::span<const std::byte> bytes, Syntax syntax) {
  return Renderer(api, syntax).value(type, bytes);
}

std::string render_arguments(const TraceCall& call, Syntax syntax) {
  const names::Api& api = names_of(call);
  const names::Function& function = function_of(call);
  const Renderer renderer(api, syntax);
  Payload payload(call.arguments);
  std::vector<std::string> values;
  for (const names::Parameter& parameter : api.parameters.subspan(function.first_parameter, function.parameters)) {
    std::span<const std::byte> bytes;
    const bool whole = parameter.type < api.types.size() && payload.take(api.types[parameter.type].bytes, bytes);
    values.push_back(whole ? renderer.value(parameter.type, bytes) : renderer.unknown());
  }
  // What a pointer led to replaces or follows its value: a program's reader wants the name, not where it stood.
  for (const names::Capture& capture : api.captures.subspan(function.first_capture, function.captures)) {
    if (capture.at_return || capture.parameter < 0 || static_cast<std::size_t>(capture.parameter) >= values.size())
      continue;
    std::span<const std::byte> bytes;
    bool absent = false;
    bool cut_off = false;
    if (!payload.take_capture(bytes, absent, cut_off)) break;
    if (absent) continue;
    std::string& value = values[static_cast<std::size_t>(capture.parameter)];
    const std::string inside = render_capture(api, capture, bytes, cut_off, syntax);
    if (capture.kind == names::CaptureKind::kText) {
      value = inside;
    } else if (syntax == Syntax::kText) {
      value += "->" + inside;
    } else {
      value = "{\"address\":" + value + ",\"value\":" + inside + "}";
    }
  }
  std::string text = syntax == Syntax::kJson ? "{" : "";
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string_view name = api.parameters[function.first_parameter + i].name;
    if (i > 0) text += syntax == Syntax::kJson ? "," : ", ";
    text += syntax == Syntax::kJson ? quote(name) + ":" : std::string(name) + "=";
    text += values[i];
  }
  return text + (syntax == Syntax::kJson ? "}" : "");
}

std::string render_outputs(const TraceCall& call, Syntax syntax) {
  const names::Api& api = names_of(call);
  const names::Function& function = function_of(call);
  Payload payload(call.results);
  std::string text;
  for (const names::Capture& capture : api.captures.subspan(function.first_capture, function.captures)) {
    if (!capture.at_return) continue;
    std::span<const std::byte> bytes;
    bool absent = false;
    bool cut_off = false;
    if (!payload.take_capture(bytes, absent, cut_off)) break;
    if (absent || capture.parameter < 0 || capture.parameter >= function.parameters) continue;
    const std::string_view name =
        api.parameters[function.first_parameter + static_cast<std::size_t>(capture.parameter)].name;
    if (!text.empty()) text += syntax == Syntax::kJson ? "," : ", ";
    text += syntax == Syntax::kJson ? quote(name) + ":" : fmt::format("*{}=", name);
    text += render_capture(api, capture, bytes, cut_off, syntax);
  }
  return syntax == Syntax::kJson ? "{" + text + "}" : text;
}

std::string render_result(const TraceCall& call, Syntax syntax) {
  const names::Api& api = names_of(call);
  const names::Function& function = function_of(call);
  if (function.result_in_value) {
    std::byte bytes[sizeof call.value];
    std::memcpy(bytes, &call.value, sizeof call.value);
    return Renderer(api, syntax).value(function.result, bytes);
  }
  Payload payload(call.results);
  std::span<const std::byte> bytes;
  bool absent = false;
  bool cut_off = false;
  const auto captures = api.captures.subspan(function.first_capture, function.captures);
  const auto result =
      std::find_if(captures.begin(), captures.end(), [](const auto& capture) { return capture.parameter < 0; });
  if (result == captures.end() || !payload.take_capture(bytes, absent, cut_off)) return Renderer(api, syntax).unknown();
  return absent ? name_or_text("0x0", syntax) : render_capture(api, *result, bytes, cut_off, syntax);
}

bool failed(const TraceCall& call) {
  const names::Api& api = names_of(call);
  const names::Function& function = function_of(call);
  return call.returned && function.result_in_value && function.result < api.types.size() &&
         api.types[function.result].kind == Kind::kEnum && call.value != api.success;
}

}  // namespace rota::tool
