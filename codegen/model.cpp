// The model's logic: spellings of types, look-ups by name, and resolving a spelled type.
#include "codegen/model.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <set>

#include <fmt/format.h>

namespace rota::codegen {
namespace {

struct Builtin {
  std::string_view name;
  TypeKind kind;
  std::uint64_t size;  // bytes on every platform that rota supports (LP64)
};

constexpr std::array kBuiltins = {
    Builtin{"void", TypeKind::kVoid, 0},
    Builtin{"bool", TypeKind::kBool, 1},
    Builtin{"char", TypeKind::kCharacter, 1},
    Builtin{"signed char", TypeKind::kSigned, 1},
    Builtin{"unsigned char", TypeKind::kUnsigned, 1},
    Builtin{"short", TypeKind::kSigned, 2},
    Builtin{"unsigned short", TypeKind::kUnsigned, 2},
    Builtin{"int", TypeKind::kSigned, 4},
    Builtin{"unsigned int", TypeKind::kUnsigned, 4},
    Builtin{"long", TypeKind::kSigned, 8},
    Builtin{"unsigned long", TypeKind::kUnsigned, 8},
    Builtin{"long long", TypeKind::kSigned, 8},
    Builtin{"unsigned long long", TypeKind::kUnsigned, 8},
    Builtin{"float", TypeKind::kFloat, 4},
    Builtin{"double", TypeKind::kFloat, 8},
    Builtin{"size_t", TypeKind::kUnsigned, 8},
    Builtin{"int8_t", TypeKind::kSigned, 1},
    Builtin{"uint8_t", TypeKind::kUnsigned, 1},
    Builtin{"int16_t", TypeKind::kSigned, 2},
    Builtin{"uint16_t", TypeKind::kUnsigned, 2},
    Builtin{"int32_t", TypeKind::kSigned, 4},
    Builtin{"uint32_t", TypeKind::kUnsigned, 4},
    Builtin{"int64_t", TypeKind::kSigned, 8},
    Builtin{"uint64_t", TypeKind::kUnsigned, 8},
    Builtin{"intptr_t", TypeKind::kSigned, 8},
    Builtin{"uintptr_t", TypeKind::kUnsigned, 8},
};

const Builtin* find_builtin(std::string_view name) {
  const auto found = std::ranges::find(kBuiltins, name, &Builtin::name);
  return found == kBuiltins.end() ? nullptr : &*found;
}

// Typedefs of typedefs are two or three deep in CUDA's headers. The limit ends the loop if a damaged model has a cycle.
constexpr int kDeepestTypedef = 32;

}  // namespace

bool is_builtin_type(std::string_view name) {
  return find_builtin(name) != nullptr;
}

int release_number(std::string_view release) {
  int major = 0;
  int minor = 0;
  const char* const end = release.data() + release.size();
  const auto [dot, major_error] = std::from_chars(release.data(), end, major);
  if (major_error != std::errc() || dot == end || *dot != '.') return 0;
  const auto [rest, minor_error] = std::from_chars(dot + 1, end, minor);
  // CUDA_VERSION has two digits for the minor version, followed by a zero.
  if (minor_error != std::errc() || rest != end || major <= 0 || minor < 0 || minor > 99) return 0;
  return major * 1000 + minor * 10;
}

std::string release_name(int number) {
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

TypeRef TypeRef::pointee() const {
  TypeRef inner = *this;
  inner.pointers.pop_back();
  return inner;
}

TypeRef TypeRef::element() const {
  TypeRef inner = *this;
  inner.extents.erase(inner.extents.begin());
  return inner;
}

std::string TypeRef::spelling() const {
  return declare("");
}

std::string TypeRef::declare(std::string_view name) const {
  std::string text = base_const ? "const " + base : base;
  for (const bool pointer_const : pointers) text += pointer_const ? "* const" : "*";
  if (!name.empty()) {
    text += ' ';
    text += name;
  }
  for (const std::uint64_t extent : extents) text += fmt::format("[{}]", extent);
  return text;
}

Result<TypeRef> TypeRef::parse(std::string_view spelling) {
  const auto bad = [&](std::string_view why) { return Error{fmt::format("type '{}': {}", spelling, why)}; };
  TypeRef type;
  std::size_t at = 0;
  const auto skip_space = [&] {
    while (at < spelling.size() && spelling[at] == ' ') ++at;
  };
  const auto word = [&] {
    const std::size_t start = at;
    while (at < spelling.size() && (std::isalnum(static_cast<unsigned char>(spelling[at])) || spelling[at] == '_'))
      ++at;
    return spelling.substr(start, at - start);
  };
  for (;;) {
    skip_space();
    const std::string_view name = word();
    if (name.empty()) break;
    if (name == "const") {
      type.base_const = true;
    } else {
      if (!type.base.empty()) type.base += ' ';
      type.base += name;
    }
  }
  if (type.base.empty()) return bad("no name");
  for (;;) {
    skip_space();
    if (at == spelling.size()) return type;
    if (spelling[at] == '*') {
      if (!type.extents.empty()) return bad("a pointer to an array cannot be represented");
      ++at;
      skip_space();
      const std::size_t before = at;
      const bool is_const = word() == "const";
      if (!is_const && at != before) return bad("a name where '*', 'const' or '[' was expected");
      type.pointers.push_back(is_const);
    } else if (spelling[at] == '[') {
      ++at;
      std::uint64_t extent = 0;
      const std::size_t digits = at;
      while (at < spelling.size() && std::isdigit(static_cast<unsigned char>(spelling[at]))) {
        extent = extent * 10 + static_cast<std::uint64_t>(spelling[at++] - '0');
      }
      if (at == digits || at == spelling.size() || spelling[at] != ']') return bad("a number and ']' expected");
      ++at;
      type.extents.push_back(extent);
    } else {
      return bad(fmt::format("unexpected '{}'", spelling[at]));
    }
  }
}

bool Documentation::has(std::string_view note) const {
  return std::ranges::find(notes, note) != notes.end();
}

std::string_view stream_form_suffix(StreamForm form) {
  switch (form) {
    case StreamForm::kDefault:
      return "";
    case StreamForm::kPerThreadStream:
      return "_ptsz";
    case StreamForm::kPerThreadDefault:
      return "_ptds";
  }
  return "";
}

const Parameter* Function::find_parameter(std::string_view parameter_name) const {
  const auto found = std::ranges::find(parameters, parameter_name, &Parameter::name);
  return found == parameters.end() ? nullptr : &*found;
}

const Field* Record::find_field(std::string_view field_name) const {
  for (const Field& field : fields) {
    if (field.name == field_name) return &field;
  }
  return nullptr;
}

namespace {

// Depth first from each name in order: what a declaration needs is put before it. Enums and records can be named
// without their definition, so a pointer to a record needs nothing.
class DeclarationOrder {
 public:
  DeclarationOrder(const Api& api, const std::map<std::string, Declaration, std::less<>>& names)
      : api_(api), names_(names) {}

  std::vector<Declaration> run() {
    for (const auto& [name, declaration] : names_) visit(name, declaration);
    return std::move(order_);
  }

 private:
  void visit(const std::string& name, const Declaration& declaration) {
    if (!seen_.insert(name).second) return;
    switch (declaration.kind) {
      case DeclarationKind::kEnum:
        break;
      case DeclarationKind::kRecord:
        needs(api_.records[declaration.index]);
        break;
      case DeclarationKind::kCallback: {
        const Callback& callback = api_.callbacks[declaration.index];
        needs(callback.result, false);
        for (const Parameter& parameter : callback.parameters) needs(parameter.type, false);
        break;
      }
      case DeclarationKind::kTypedef:
        needs(api_.typedefs[declaration.index].type, false);
        break;
    }
    order_.push_back(declaration);
  }

  void needs(const Record& record) {
    for (const Field& field : record.fields) {
      if (field.nested.empty()) {
        needs(field.type, field.type.pointers.empty());
      } else {
        needs(field.nested.front());
      }
    }
  }

  // `complete`: if the type resolves to a record, that record must be defined, not only named.
  void needs(const TypeRef& type, bool complete) {
    const TypeRef* current = &type;
    for (int depth = 0; depth < kDeepestTypedef; ++depth) {
      const auto found = names_.find(current->base);
      if (found == names_.end()) return;
      if (found->second.kind != DeclarationKind::kRecord || complete) visit(found->first, found->second);
      if (found->second.kind != DeclarationKind::kTypedef || !complete) return;
      current = &api_.typedefs[found->second.index].type;
      if (!current->pointers.empty()) return;
    }
  }

  const Api& api_;
  const std::map<std::string, Declaration, std::less<>>& names_;
  std::set<std::string> seen_;
  std::vector<Declaration> order_;
};

}  // namespace

void Api::index() {
  std::ranges::sort(functions, {}, &Function::name);
  std::ranges::sort(enums, {}, &Enum::name);
  std::ranges::sort(records, {}, &Record::name);
  std::ranges::sort(callbacks, {}, &Callback::name);
  std::ranges::sort(typedefs, {}, &Typedef::name);
  names_.clear();
  function_names_.clear();
  for (std::size_t i = 0; i < functions.size(); ++i) function_names_.emplace(functions[i].name, i);
  for (std::size_t i = 0; i < enums.size(); ++i) names_.emplace(enums[i].name, Declaration{DeclarationKind::kEnum, i});
  for (std::size_t i = 0; i < records.size(); ++i)
    names_.emplace(records[i].name, Declaration{DeclarationKind::kRecord, i});
  for (std::size_t i = 0; i < callbacks.size(); ++i) {
    names_.emplace(callbacks[i].name, Declaration{DeclarationKind::kCallback, i});
  }
  for (std::size_t i = 0; i < typedefs.size(); ++i) {
    names_.emplace(typedefs[i].name, Declaration{DeclarationKind::kTypedef, i});
  }
  declarations = DeclarationOrder(*this, names_).run();
}

const Function* Api::find_function(std::string_view name) const {
  const auto found = function_names_.find(name);
  return found == function_names_.end() ? nullptr : &functions[found->second];
}

const Enum* Api::find_enum(std::string_view name) const {
  const auto found = names_.find(name);
  return found == names_.end() || found->second.kind != DeclarationKind::kEnum ? nullptr : &enums[found->second.index];
}

const Record* Api::find_record(std::string_view name) const {
  const auto found = names_.find(name);
  return found == names_.end() || found->second.kind != DeclarationKind::kRecord ? nullptr
                                                                                 : &records[found->second.index];
}

const Callback* Api::find_callback(std::string_view name) const {
  const auto found = names_.find(name);
  return found == names_.end() || found->second.kind != DeclarationKind::kCallback ? nullptr
                                                                                   : &callbacks[found->second.index];
}

const Typedef* Api::find_typedef(std::string_view name) const {
  const auto found = names_.find(name);
  return found == names_.end() || found->second.kind != DeclarationKind::kTypedef ? nullptr
                                                                                  : &typedefs[found->second.index];
}

std::vector<const Function*> Api::versions_of(std::string_view base) const {
  std::vector<const Function*> found;
  for (const Function& function : functions) {
    if (function.base == base) found.push_back(&function);
  }
  return found;
}

Result<Resolved> Api::resolve(const TypeRef& type) const {
  TypeRef current = type;
  for (int depth = 0; depth < kDeepestTypedef; ++depth) {
    if (!current.extents.empty()) {
      auto element = resolve(current.element());
      if (!element) return element;
      std::uint64_t size = element->size * current.extents.front();
      return Resolved{.kind = TypeKind::kArray, .size = size, .pointee = current.element()};
    }
    if (!current.pointers.empty()) {
      return Resolved{.kind = TypeKind::kPointer,
                      .size = sizeof(void*),
                      .is_const = current.pointers.back(),
                      .pointee = current.pointee()};
    }
    if (const Builtin* builtin = find_builtin(current.base)) {
      return Resolved{.kind = builtin->kind, .size = builtin->size, .is_const = current.base_const};
    }
    if (const Enum* found = find_enum(current.base)) {
      return Resolved{.kind = TypeKind::kEnum, .size = 4, .is_const = current.base_const, .enumeration = found};
    }
    if (const Record* found = find_record(current.base)) {
      return Resolved{.kind = TypeKind::kRecord, .size = found->size, .is_const = current.base_const, .record = found};
    }
    if (const Callback* found = find_callback(current.base)) {
      return Resolved{.kind = TypeKind::kCallback,
                      .size = found->pointer ? sizeof(void*) : 0,
                      .is_const = current.base_const,
                      .callback = found};
    }
    const Typedef* alias = find_typedef(current.base);
    if (!alias) return Error{fmt::format("type '{}' is not declared in the model", current.base)};
    const bool was_const = current.base_const;
    current = alias->type;
    // const on a typedef applies to the whole type that it names: the outermost pointer, else the base.
    if (was_const && !current.pointers.empty()) {
      current.pointers.back() = true;
    } else if (was_const) {
      current.base_const = true;
    }
  }
  return Error{fmt::format("type '{}': its typedefs form a cycle", type.spelling())};
}

bool Api::is_handle(const TypeRef& type) const {
  const auto resolved = resolve(type);
  if (!resolved || resolved->kind != TypeKind::kPointer) return false;
  const auto target = resolve(resolved->pointee);
  return target && target->kind == TypeKind::kRecord && !target->record->complete;
}

}  // namespace rota::codegen
