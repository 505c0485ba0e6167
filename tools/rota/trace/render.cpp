// See render.h.
#include "tools/rota/trace/render.h"

#include <cxxabi.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/trace/format.h"
#include "tools/rota/trace/tables.h"

namespace rota::tool {
namespace {

using names::Kind;

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

// Reserved fields, which mean nothing.
bool is_padding(std::string_view field) {
  return field.starts_with("reserved") || field.starts_with("pad") || field.starts_with("_internal_padding") ||
         field.starts_with("_oversize") || field == "unused";
}

bool same_value(const names::Enumerator& enumerator, std::span<const std::byte> bytes) {
  const std::int64_t value = load_signed(bytes);
  return bytes.size() < 8 ? static_cast<std::int32_t>(enumerator.value) == static_cast<std::int32_t>(value)
                          : enumerator.value == value;
}

std::span<const names::Enumerator> enumerators_of(const names::Api& api, std::uint32_t type) {
  if (type >= api.types.size()) return {};
  const names::Type& known = api.types[type];
  if ((known.kind != Kind::kEnum && known.kind != Kind::kFlags) || known.detail >= api.enums.size()) return {};
  const names::Enum& enumeration = api.enums[known.detail];
  return api.enumerators.subspan(enumeration.first, enumeration.count);
}

// The member that the rule names for the selector's value; an enumerator may have several names.
std::string_view shown_by(const names::Api& api, const UnionRule& rule, std::uint32_t selector_type,
                          std::span<const std::byte> selector) {
  for (const names::Enumerator& enumerator : enumerators_of(api, selector_type)) {
    if (!same_value(enumerator, selector)) continue;
    for (const UnionCase& one : rule.cases) {
      if (one.enumerator == enumerator.name) return one.shown;
    }
  }
  return rule.otherwise;
}

// CUuuid, the IPC handles: one array of char, which holds bytes rather than text.
bool is_bytes(const names::Api& api, const names::Record& record) {
  if (record.count != 1) return false;
  const std::uint32_t type = api.fields[record.first].type;
  return type < api.types.size() && api.types[type].kind == Kind::kArray && api.types[type].detail < api.types.size() &&
         api.types[api.types[type].detail].kind == Kind::kCharacter;
}

const names::Record* record_of(const names::Api& api, std::uint32_t type) {
  if (type >= api.types.size() || api.types[type].kind != Kind::kRecord) return nullptr;
  const std::uint32_t number = api.types[type].detail;
  return number < api.records.size() ? &api.records[number] : nullptr;
}

const names::Field* member_named(const names::Api& api, const names::Record& record, std::string_view name) {
  if (name.empty()) return nullptr;
  for (const names::Field& field : api.fields.subspan(record.first, record.count)) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

}  // namespace

std::string quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string demangled(const std::string& name) {
  if (!name.starts_with("_Z")) return name;  // __cxa_demangle would take "f" for the type float
  int status = 0;
  char* const readable = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  if (readable == nullptr) return name;
  std::string text = readable;
  std::free(readable);
  return text;
}

std::uint64_t load_unsigned(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data(), std::min<std::size_t>(bytes.size(), sizeof value));
  return value;
}

const names::Field* chosen_member(const names::Api& api, const names::Record& record, std::string_view record_path,
                                  const names::Field& union_field, std::span<const std::byte> bytes) {
  const names::Record* const choices = record_of(api, union_field.type);
  const UnionRule* const rule = union_rule(record_path, union_field.name);
  if (choices == nullptr || rule == nullptr) return nullptr;
  if (rule->selector.empty()) return member_named(api, *choices, rule->otherwise);
  const names::Field* const selector = member_named(api, record, rule->selector);
  if (selector == nullptr || selector->type >= api.types.size()) return nullptr;
  const std::size_t size = api.types[selector->type].bytes;
  if (selector->offset > bytes.size() || bytes.size() - selector->offset < size) return nullptr;
  return member_named(api, *choices, shown_by(api, *rule, selector->type, bytes.subspan(selector->offset, size)));
}

std::string Renderer::plain(const std::string& text) const {
  return json() ? quote(text) : text;
}

std::string Renderer::text(std::span<const std::byte> bytes) {
  const auto* const letters = reinterpret_cast<const char*>(bytes.data());
  return quote(std::string_view(letters, strnlen(letters, bytes.size())));
}

std::string Renderer::value(std::uint32_t type_number, std::span<const std::byte> bytes, const std::string& path,
                            int depth) const {
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
      // Handles that the headers declare as mere numbers.
      if (type.bytes == 8 && !handle_class(type.name).empty()) return address(type.name, load_unsigned(bytes));
      return std::to_string(load_unsigned(bytes));
    case Kind::kFloat:
      return floating(bytes);
    case Kind::kAddress:
      return address(type.name, load_unsigned(bytes));
    case Kind::kEnum:
    case Kind::kFlags:
      return enumeration(type, bytes);
    case Kind::kRecord:
      if (const names::Record* const known = record_of(api_, type_number)) return record(*known, bytes, path, depth);
      return unknown();
    case Kind::kArray:
      return array(type.detail, bytes, false, path, depth);
    case Kind::kOpaque:
      break;
  }
  return plain(bytes.empty() ? "void" : hex(bytes));
}

std::string Renderer::array(std::uint32_t element_number, std::span<const std::byte> bytes, bool cut_off,
                            const std::string& path, int depth) const {
  if (element_number >= api_.types.size()) return unknown();
  const names::Type& element = api_.types[element_number];
  if (element.kind == Kind::kCharacter && element.bytes == 1) return text(bytes);
  if (element.bytes == 0) return unknown();
  const std::size_t count = bytes.size() / element.bytes;
  const std::size_t shown = json() || options_.elements == 0 ? count : std::min(count, options_.elements);
  std::string list = "[";
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) list += ", ";
    list += value(element_number, bytes.subspan(i * element.bytes, element.bytes), path, depth + 1);
  }
  const std::string separator = shown > 0 ? ", " : "";
  if (json() && cut_off) {
    list += separator + "\"…\"";
  } else if (cut_off) {
    // Another argument says how many there were; the record ends at kMaxCaptureBytes.
    list += separator + (count > shown ? fmt::format("… {} more, and others that were not recorded", count - shown)
                                       : std::string("… more that were not recorded"));
  } else if (count > shown) {
    list += separator + fmt::format("… {} more", count - shown);
  }
  return list + "]";
}

std::string Renderer::floating(std::span<const std::byte> bytes) const {
  // With as many digits as its type holds.
  std::string text;
  bool finite = false;
  if (bytes.size() == 4) {
    const auto number = std::bit_cast<float>(static_cast<std::uint32_t>(load_unsigned(bytes)));
    text = fmt::format("{}", number);
    finite = number - number == 0;
  } else if (bytes.size() == 8) {
    const auto number = std::bit_cast<double>(load_unsigned(bytes));
    text = fmt::format("{}", number);
    finite = number - number == 0;
  } else {
    return unknown();
  }
  return finite ? text : plain(text);  // JSON knows neither nan nor inf
}

std::string Renderer::enumeration(const names::Type& type, std::span<const std::byte> bytes) const {
  if (type.detail >= api_.enums.size()) return unknown();
  const names::Enum& known = api_.enums[type.detail];
  const auto enumerators = api_.enumerators.subspan(known.first, known.count);
  const std::uint64_t bits = load_unsigned(bytes);
  for (const names::Enumerator& enumerator : enumerators) {
    if (same_value(enumerator, bytes)) return plain(enumerator.name);
  }
  if (type.kind == Kind::kEnum) return std::to_string(load_signed(bytes));
  // Single bits only: masks and combined values would hide which bits were set.
  std::string joined;
  std::uint64_t rest = bits;
  for (const names::Enumerator& enumerator : enumerators) {
    const auto flag = static_cast<std::uint64_t>(enumerator.value);
    if (!std::has_single_bit(flag) || (rest & flag) == 0) continue;
    if (!joined.empty()) joined += '|';
    joined += enumerator.name;
    rest &= ~flag;
  }
  if (joined.empty()) return bits == 0 ? "0" : plain(fmt::format("0x{:x}", bits));
  if (rest != 0) joined += fmt::format("|0x{:x}", rest);
  return plain(joined);
}

std::string Renderer::record(const names::Record& record, std::span<const std::byte> bytes, const std::string& path,
                             int depth) const {
  const std::string own_path = record.name[0] != '\0' ? record.name : path;
  if (is_bytes(api_, record)) return plain(hex(bytes));
  if (record.is_union) {
    const names::Field* member = nullptr;
    if (const UnionRule* const rule = union_rule(own_path, ""); rule != nullptr) {
      if (const names::Field* const inside = member_named(api_, record, rule->selector)) {
        const std::size_t size = inside->type < api_.types.size() ? api_.types[inside->type].bytes : 0;
        if (inside->offset + size <= bytes.size()) {
          member = member_named(api_, record, shown_by(api_, *rule, inside->type, bytes.subspan(inside->offset, size)));
        }
      } else if (selector_) {
        member = member_named(api_, record, shown_by(api_, *rule, selector_->type, selector_->bytes));
      }
    }
    return union_value(record, member, bytes, own_path, depth);
  }
  std::string list = "{";
  for (const names::Field& field : api_.fields.subspan(record.first, record.count)) {
    if (field.type >= api_.types.size() || is_padding(field.name)) continue;
    if (std::find(left_out_.begin(), left_out_.end(), field.name) != left_out_.end()) continue;
    // A struct that has grown since the program was built ends before the newer fields; so does one that was cut off.
    if (field.offset >= bytes.size() || bytes.size() - field.offset < api_.types[field.type].bytes) continue;
    std::string name = field.name;
    std::string shown;
    const names::Record* const inner = record_of(api_, field.type);
    if (inner != nullptr && inner->is_union && inner->name[0] == '\0') {
      const names::Field* const member = chosen_member(api_, record, own_path, field, bytes);
      const auto part = bytes.subspan(field.offset, api_.types[field.type].bytes);
      if (name.empty() && member != nullptr) {
        name = member->name;  // an anonymous union's member is the struct's own
        shown = field_value(*member, part, own_path + "." + name, depth);
      } else {
        shown = union_value(*inner, member, part, own_path + "." + name, depth);
      }
    } else if (inner != nullptr && inner->is_union) {
      const names::Field* const member = chosen_member(api_, record, own_path, field, bytes);
      shown =
          union_value(*inner, member, bytes.subspan(field.offset, api_.types[field.type].bytes), inner->name, depth);
    } else {
      shown = field_value(field, bytes, own_path + "." + name, depth);
      const auto list = std::find_if(lists_.begin(), lists_.end(), [&](const List& one) { return one.field == name; });
      if (depth == 0 && list != lists_.end()) {
        shown = behind(shown, array(list->element, list->bytes, list->cut_off, {}, depth + 1));
      }
    }
    if (list.size() > 1) list += ", ";
    list += json() ? quote(name.empty() ? "union" : name) + ":" : name + (name.empty() ? "" : "=");
    list += shown;
  }
  return list + "}";
}

std::string Renderer::behind(const std::string& address, const std::string& inside) const {
  if (json()) return "{\"address\":" + address + ",\"value\":" + inside + "}";
  return address + (address == "&" ? "" : "->") + inside;
}

std::string Renderer::union_value(const names::Record& record, const names::Field* member,
                                  std::span<const std::byte> bytes, const std::string& path, int depth) const {
  if (member != nullptr) {
    const std::string shown = field_value(*member, bytes, path + "." + member->name, depth);
    return json() ? "{" + quote(member->name) + ":" + shown + "}" : fmt::format("{{{}={}}}", member->name, shown);
  }
  std::size_t used = bytes.size();
  while (used > 0 && bytes[used - 1] == std::byte{0}) --used;
  return plain(used == 0 ? "0" : hex(bytes.first(used)));
}

std::string Renderer::field_value(const names::Field& field, std::span<const std::byte> bytes, const std::string& path,
                                  int depth) const {
  if (field.type >= api_.types.size()) return unknown();
  const std::size_t size = api_.types[field.type].bytes;
  if (field.offset > bytes.size() || bytes.size() - field.offset < size) return unknown();
  const auto part = bytes.subspan(field.offset, size);
  if (field.bits == 0) return value(field.type, part, path, depth + 1);
  const std::uint64_t mask = field.bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << field.bits) - 1;
  return std::to_string((load_unsigned(part) >> field.bit) & mask);
}

std::string Renderer::address_name(std::string_view type, std::uint64_t value) const {
  const std::string_view handles = handle_class(type);
  if (!handles.empty()) {
    const bool runtime_api = &api_ == &names::runtime();
    if (const std::string_view special = special_handle(handles, value, runtime_api); !special.empty()) {
      return std::string(special);
    }
    Handle handle{handles, value};
    // The driver takes a CUkernel wherever it takes a CUfunction.
    if (handles == "function" && !objects_->known(handle) && objects_->known({"kernel", value})) {
      handle.handle_class = "kernel";
    }
    return objects_->handle(handle, moment_, written_, parent_ ? &*parent_ : nullptr);
  }
  if (const std::string symbol = objects_->symbol(value); !symbol.empty()) {
    return quote(options_.mangled ? symbol : demangled(symbol));
  }
  // cudaLaunchKernel takes a cudaKernel_t for a function of the host program.
  if (type == "const void*" && objects_->known({"kernel", value}))
    return objects_->handle({"kernel", value}, moment_, false);
  // Device memory of unknown origin is new; an unknown address that is passed in may be the program's own.
  return objects_->memory(value, moment_, is_device_pointer(type), written_);
}

std::string Renderer::address(std::string_view type, std::uint64_t value) const {
  const std::string number = fmt::format("0x{:x}", value);
  if (objects_ == nullptr) return plain(number);
  // Looked up even if it is not shown: the numbers must be the same in every form of the listing.
  const std::string name = value == 0 ? std::string() : address_name(type, value);
  if (!json()) {
    if (options_.raw_addresses) return number;
    if (value == 0) return "null";
    return name.empty() ? "&" : name;
  }
  if (value == 0) return "null";
  if (name.empty()) return quote(number);
  return fmt::format("{{\"address\":{},\"name\":{}}}", quote(number), name.front() == '"' ? name : quote(name));
}

}  // namespace rota::tool
