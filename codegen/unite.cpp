#include "codegen/unite.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

namespace rota::codegen {
namespace {

Result<std::string> passing(const Api& api, const TypeRef& type) {
  const auto resolved = api.resolve(type);
  if (!resolved) return resolved.error();
  switch (resolved->kind) {
    case TypeKind::kPointer:
    case TypeKind::kCallback:
    case TypeKind::kArray:
      return std::string("pointer");
    case TypeKind::kRecord:
      return fmt::format("{} bytes aligned to {}", resolved->record->size, resolved->record->align);
    case TypeKind::kFloat:
      return fmt::format("float{}", resolved->size * 8);
    default:
      return fmt::format("int{}", resolved->size * 8);
  }
}

// The newer definition replaces the older one, even if the name changes its kind (a typedef that becomes an enum).
template <class T>
void put(std::vector<T>& list, const T& item) {
  const auto found = std::ranges::find(list, item.name, &T::name);
  if (found == list.end()) {
    list.push_back(item);
  } else {
    *found = item;
  }
}

template <class T>
void drop(std::vector<T>& list, const std::string& name) {
  std::erase_if(list, [&](const T& item) { return item.name == name; });
}

void put_enum(Api& united, const Enum& newer) {
  const auto found = std::ranges::find(united.enums, newer.name, &Enum::name);
  if (found == united.enums.end()) {
    united.enums.push_back(newer);
    return;
  }
  Enum merged = newer;
  std::set<std::string> names;
  for (const Enumerator& enumerator : newer.enumerators) names.insert(enumerator.name);
  for (const Enumerator& enumerator : found->enumerators) {
    if (!names.contains(enumerator.name)) merged.enumerators.push_back(enumerator);
  }
  *found = std::move(merged);
}

void put_record(Api& united, const Record& newer) {
  const auto found = std::ranges::find(united.records, newer.name, &Record::name);
  if (found == united.records.end()) {
    united.records.push_back(newer);
    return;
  }
  if (newer.complete) *found = newer;
}

// The size in bytes of a pointer parameter's target; 0 if it is unknown or the parameter is not a pointer.
std::uint64_t pointee_bytes(const Api& api, const TypeRef& type) {
  const auto pointer = api.resolve(type);
  if (!pointer || pointer->kind != TypeKind::kPointer) return 0;
  const auto pointee = api.resolve(pointer->pointee);
  return pointee ? pointee->size : 0;
}

// The sizes of the targets of a function's pointers, per parameter: the smallest and the latest of the releases so far.
struct Pointees {
  std::vector<std::uint64_t> least;
  std::vector<std::uint64_t> latest;

  void note(const Api& api, const Function& function) {
    least.resize(function.parameters.size(), UINT64_MAX);
    latest.resize(function.parameters.size(), 0);
    for (std::size_t i = 0; i < function.parameters.size(); ++i) {
      latest[i] = pointee_bytes(api, function.parameters[i].type);
      least[i] = std::min(least[i], latest[i]);
    }
  }
};

// Types of an older release whose name the newer release uses for a type of another kind.
void drop_other_kinds(Api& united, const Api& newer) {
  for (const Enum& item : newer.enums) drop(united.typedefs, item.name), drop(united.records, item.name);
  for (const Record& item : newer.records) drop(united.typedefs, item.name), drop(united.enums, item.name);
  for (const Callback& item : newer.callbacks) drop(united.typedefs, item.name);
  for (const Typedef& item : newer.typedefs) {
    drop(united.enums, item.name), drop(united.records, item.name), drop(united.callbacks, item.name);
  }
}

// Removes what only older releases declared and nothing in the union uses.
class Pruning {
 public:
  Pruning(Api& united, const Api& newest) : united_(united), newest_(newest) {}

  void run() {
    for (const Enum& item : newest_.enums) use(item.name);
    for (const Record& item : newest_.records) use(item.name);
    for (const Callback& item : newest_.callbacks) use(item.name);
    for (const Typedef& item : newest_.typedefs) use(item.name);
    for (const Function& function : united_.functions) use(function.result, function.parameters);
    const auto unused = [this](const auto& item) { return !used_.contains(item.name); };
    std::erase_if(united_.enums, unused);
    std::erase_if(united_.records, unused);
    std::erase_if(united_.callbacks, unused);
    std::erase_if(united_.typedefs, unused);
  }

 private:
  void use(const std::string& name) {
    if (!used_.insert(name).second) return;
    if (const Typedef* alias = united_.find_typedef(name)) use(alias->type.base);
    if (const Callback* callback = united_.find_callback(name)) use(callback->result, callback->parameters);
    if (const Record* record = united_.find_record(name)) use(*record);
  }
  void use(const TypeRef& result, const std::vector<Parameter>& parameters) {
    use(result.base);
    for (const Parameter& parameter : parameters) use(parameter.type.base);
  }
  void use(const Record& record) {
    for (const Field& field : record.fields) {
      use(field.type.base);
      if (!field.nested.empty()) use(field.nested.front());
    }
  }

  Api& united_;
  const Api& newest_;
  std::set<std::string> used_;
};

}  // namespace

Result<std::string> calling_shape(const Api& api, const Function& function) {
  auto result = passing(api, function.result);
  if (!result) return Error{fmt::format("{}: {}", function.name, result.error().text)};
  std::string shape = *result + " (";
  for (const Parameter& parameter : function.parameters) {
    const auto one = passing(api, parameter.type);
    if (!one) return Error{fmt::format("{}: {}: {}", function.name, parameter.name, one.error().text)};
    if (!shape.ends_with('(')) shape += ", ";
    shape += *one;
  }
  return shape + ")";
}

Result<Api> unite(const std::vector<ReleasedApi>& releases) {
  Api united;
  std::map<std::string, std::pair<std::string, std::string>> shapes;  // by function: shape, first release with it
  std::map<std::string, Pointees> pointees;
  for (const auto& [release, api] : releases) {
    for (const Function& function : api->functions) {
      const auto shape = calling_shape(*api, function);
      if (!shape) return Error{fmt::format("CUDA {}: {}", release, shape.error().text)};
      const auto [known, fresh] = shapes.try_emplace(function.name, *shape, release);
      if (!fresh && known->second.first != *shape) {
        return Error{
            fmt::format("{} takes its arguments as {} in CUDA {}, but as {} in CUDA {}: one symbol cannot "
                        "have both signatures",
                        function.name, known->second.first, known->second.second, *shape, release)};
      }
      pointees[function.name].note(*api, function);
      put(united.functions, function);
    }
    drop_other_kinds(united, *api);
    for (const Enum& enumeration : api->enums) put_enum(united, enumeration);
    for (const Record& record : api->records) put_record(united, record);
    for (const Callback& callback : api->callbacks) put(united.callbacks, callback);
    for (const Typedef& alias : api->typedefs) put(united.typedefs, alias);
  }
  for (Function& function : united.functions) {
    const Pointees& sizes = pointees.at(function.name);
    for (std::size_t i = 0; i < function.parameters.size(); ++i) {
      if (sizes.least[i] == 0 && sizes.latest[i] != 0) {
        return Error{
            fmt::format("{}: {} points to something of unknown size in an older release: say how to bound its trace in "
                        "codegen/unite.cpp",
                        function.name, function.parameters[i].name)};
      }
      function.parameters[i].smallest = sizes.least[i] == sizes.latest[i] ? 0 : sizes.least[i];
    }
  }
  united.index();
  Pruning(united, *releases.back().api).run();
  united.index();
  return united;
}

}  // namespace rota::codegen
