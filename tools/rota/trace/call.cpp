// See call.h.
#include "tools/rota/trace/call.h"

#include <algorithm>
#include <string>

#include "tools/rota/trace/render.h"

namespace rota::tool {
namespace {

using names::Kind;

// Decodes a payload; never reads past its end.
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
  // False: damaged. An absent capture returns true and sets `absent`.
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

std::optional<TypedBytes> find_field_below(const names::Api& api, const TypedBytes& value, std::string_view path,
                                           std::string_view name, int depth) {
  if (depth > kDeepest || value.type >= api.types.size()) return std::nullopt;
  const names::Type& type = api.types[value.type];
  if (type.kind != Kind::kRecord || type.detail >= api.records.size()) return std::nullopt;
  const names::Record& record = api.records[type.detail];
  const std::string own_path = record.name[0] != '\0' ? record.name : std::string(path);
  const auto within = [&](const names::Field& field) -> std::optional<TypedBytes> {
    const std::size_t size = field.type < api.types.size() ? api.types[field.type].bytes : 0;
    if (size == 0 || field.offset > value.bytes.size() || value.bytes.size() - field.offset < size) return std::nullopt;
    return TypedBytes{field.type, value.bytes.subspan(field.offset, size)};
  };
  for (const names::Field& field : api.fields.subspan(record.first, record.count)) {
    const auto part = within(field);
    if (!part) continue;
    if (name == field.name) return part;
    const names::Type& inner = api.types[field.type];
    if (inner.kind != Kind::kRecord || inner.detail >= api.records.size()) continue;
    std::optional<TypedBytes> found;
    if (api.records[inner.detail].is_union) {
      const names::Field* const member = chosen_member(api, record, own_path, field, value.bytes);
      if (member == nullptr || member->type >= api.types.size()) continue;
      const std::size_t size = api.types[member->type].bytes;
      if (member->offset + size > part->bytes.size()) continue;
      const TypedBytes chosen{member->type, part->bytes.subspan(member->offset, size)};
      if (name == member->name) return chosen;
      found = find_field_below(api, chosen, own_path + "." + member->name, name, depth + 1);
    } else {
      found = find_field_below(api, *part, own_path + "." + field.name, name, depth + 1);
    }
    if (found) return found;
  }
  return std::nullopt;
}

}  // namespace

const names::Api& names_of(const TraceCall& call) {
  return call.api == trace::kDriverApi ? names::driver() : names::runtime();
}

std::string_view function_name(const TraceCall& call) {
  return names_of(call).functions[call.function].name;
}

bool failed(const TraceCall& call) {
  const names::Api& api = names_of(call);
  const names::Function& function = api.functions[call.function];
  return call.returned && function.result_in_value && function.result < api.types.size() &&
         api.types[function.result].kind == Kind::kEnum && call.value != api.success;
}

std::optional<TypedBytes> find_field(const names::Api& api, const TypedBytes& value, std::string_view name) {
  return find_field_below(api, value, {}, name, 0);
}

DecodedCall::DecodedCall(const TraceCall& from)
    : call(from),
      api(names_of(from)),
      function(api.functions[from.function]),
      base(base_name(function.name)),
      arguments(function.parameters) {
  Payload entry(call.arguments);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const names::Parameter& parameter = api.parameters[function.first_parameter + i];
    arguments[i].parameter = &parameter;
    std::span<const std::byte> bytes;
    if (parameter.type < api.types.size() && entry.take(api.types[parameter.type].bytes, bytes)) {
      arguments[i].bytes = bytes;
    }
  }
  Payload leaving(call.results);
  bool entry_whole = true;
  bool leaving_whole = call.returned;
  for (const names::Capture& capture : api.captures.subspan(function.first_capture, function.captures)) {
    bool& whole = capture.at_return ? leaving_whole : entry_whole;
    if (!whole) continue;
    Captured captured{&capture, {}, false};
    bool absent = false;
    whole = (capture.at_return ? leaving : entry).take_capture(captured.bytes, absent, captured.cut_off);
    if (!whole) continue;
    if (capture.parameter < 0) {
      if (absent) {
        result_absent = true;
      } else {
        result = captured;
      }
      continue;
    }
    if (absent || static_cast<std::size_t>(capture.parameter) >= arguments.size()) continue;
    Argument& argument = arguments[static_cast<std::size_t>(capture.parameter)];
    if (capture.at_return) {
      argument.after = captured;
    } else {
      argument.before.push_back(captured);
    }
  }
}

const Argument* DecodedCall::argument(std::string_view name) const {
  const auto found = std::find_if(arguments.begin(), arguments.end(),
                                  [&](const Argument& argument) { return argument.parameter->name == name; });
  return found == arguments.end() ? nullptr : &*found;
}

std::optional<TypedBytes> DecodedCall::at(Place place) const {
  if (place.empty()) return std::nullopt;
  const bool after = place.front() == '*';
  if (after) place.remove_prefix(1);
  std::size_t dot = place.find('.');
  const Argument* const from = argument(place.substr(0, dot));
  if (from == nullptr) return std::nullopt;
  TypedBytes value;
  const auto take = [&](const Captured& captured) {
    value = {captured.capture->type, captured.bytes, captured.capture->kind == names::CaptureKind::kText};
  };
  if (after) {
    if (!from->after) return std::nullopt;
    take(*from->after);
  } else if (!from->before.empty() &&
             (dot != Place::npos || from->before.front().capture->kind == names::CaptureKind::kText)) {
    take(from->before.front());
  } else if (from->bytes) {
    value = {from->parameter->type, *from->bytes};
  } else {
    return std::nullopt;
  }
  while (dot != Place::npos) {
    place.remove_prefix(dot + 1);
    dot = place.find('.');
    const auto field = find_field(api, value, place.substr(0, dot));
    if (!field) return std::nullopt;
    value = *field;
  }
  return value;
}

}  // namespace rota::tool
