// cuda_headers/api/<release>.json. One declaration per line, without anything that follows from the rest (a base name
// that equals the name, a default stream form). The oldest release is written in full, each later one as what it added
// or changed ("types", "functions") and removed ("gone") compared with its predecessor, so that a release can be
// reviewed line by line.
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "codegen/model.h"

namespace rota::codegen {
namespace {

using Json = nlohmann::ordered_json;

Json parameters_to_json(const std::vector<Parameter>& parameters) {
  Json list = Json::array();
  for (const Parameter& parameter : parameters) {
    Json entry = Json::array({parameter.name, parameter.type.spelling()});
    if (!parameter.direction.empty()) entry.push_back(parameter.direction);
    list.push_back(std::move(entry));
  }
  return list;
}

Json function_to_json(const Function& function) {
  Json line;
  line["name"] = function.name;
  if (function.base != function.name) line["base"] = function.base;
  if (function.form != StreamForm::kDefault) line["form"] = stream_form_suffix(function.form).substr(1);
  if (function.version != 0) line["version"] = function.version;
  line["header"] = function.header;
  line["result"] = function.result.spelling();
  line["parameters"] = parameters_to_json(function.parameters);
  if (function.deprecated) line["deprecated"] = true;
  if (function.documentation.present) line["documented"] = function.documentation.notes;
  return line;
}

Json record_to_json(const Record& record) {
  Json line;
  line[record.is_union ? "union" : "struct"] = record.name;
  if (!record.header.empty()) line["header"] = record.header;
  if (!record.complete) return line;
  line["size"] = record.size;
  line["align"] = record.align;
  Json fields = Json::array();
  for (const Field& field : record.fields) {
    Json entry;
    if (!field.name.empty()) entry["name"] = field.name;
    if (!field.type.base.empty() || field.nested.empty()) entry["type"] = field.type.spelling();
    if (!field.nested.empty() && !field.type.extents.empty()) entry["extents"] = field.type.extents;
    if (!field.nested.empty()) entry["in_place"] = record_to_json(field.nested.front());
    entry["offset"] = field.offset;
    if (field.bits != 0) {
      entry["bits"] = field.bits;
      entry["bit_offset"] = field.bit_offset;
    }
    fields.push_back(std::move(entry));
  }
  line["fields"] = std::move(fields);
  return line;
}

Json enum_to_json(const Enum& enumeration) {
  Json line;
  line["enum"] = enumeration.name;
  line["header"] = enumeration.header;
  line["underlying"] = enumeration.underlying;
  Json values = Json::object();
  for (const Enumerator& enumerator : enumeration.enumerators) values[enumerator.name] = enumerator.value;
  line["values"] = std::move(values);
  return line;
}

Json callback_to_json(const Callback& callback) {
  Json line;
  line["callback"] = callback.name;
  line["header"] = callback.header;
  if (!callback.pointer) line["pointer"] = false;
  line["result"] = callback.result.spelling();
  line["parameters"] = parameters_to_json(callback.parameters);
  return line;
}

// The line for every declaration of an API, by name.
using Lines = std::map<std::string, std::string>;

Lines type_lines(const Api& api) {
  Lines lines;
  for (const Enum& enumeration : api.enums) lines[enumeration.name] = enum_to_json(enumeration).dump();
  for (const Record& record : api.records) lines[record.name] = record_to_json(record).dump();
  for (const Callback& callback : api.callbacks) lines[callback.name] = callback_to_json(callback).dump();
  for (const Typedef& alias : api.typedefs) {
    lines[alias.name] = Json{{"typedef", alias.name}, {"header", alias.header}, {"type", alias.type.spelling()}}.dump();
  }
  return lines;
}

Lines function_lines(const Api& api) {
  Lines lines;
  for (const Function& function : api.functions) lines[function.name] = function_to_json(function).dump();
  return lines;
}

// The lines that `before` lacks or that differ from its own; the names that only `before` has go into `gone`.
std::vector<std::string> changed_lines(const Lines& lines, const Lines& before, Json& gone) {
  std::vector<std::string> changed;
  for (const auto& [name, line] : lines) {
    const auto found = before.find(name);
    if (found == before.end() || found->second != line) changed.push_back(line);
  }
  for (const auto& [name, line] : before) {
    if (!lines.contains(name)) gone.push_back(name);
  }
  return changed;
}

void append_list(std::string& text, std::string_view name, const std::vector<std::string>& lines) {
  text += fmt::format("    \"{}\": [", name);
  for (std::size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? "\n      " : ",\n      ") + lines[i];
  text += lines.empty() ? "]" : "\n    ]";
}

void append_api(std::string& text, std::string_view name, const Api& api, const Api* before) {
  Json gone = Json::array();
  const auto types = changed_lines(type_lines(api), before ? type_lines(*before) : Lines(), gone);
  const auto functions = changed_lines(function_lines(api), before ? function_lines(*before) : Lines(), gone);
  text += fmt::format("  \"{}\": {{\n", name);
  if (!gone.empty()) text += fmt::format("    \"gone\": {},\n", gone.dump());
  append_list(text, "types", types);
  text += ",\n";
  append_list(text, "functions", functions);
  text += "\n  }";
}

// Reading: nlohmann throws on a missing key or a wrong type, and the type parser returns an Error; both are handled
// here.
struct BadModel {
  std::string text;
};

TypeRef type_from(const std::string& spelling) {
  auto type = TypeRef::parse(spelling);
  if (!type) throw BadModel{type.error().text};
  return *type;
}

std::vector<Parameter> parameters_from(const Json& list) {
  std::vector<Parameter> parameters;
  for (const Json& entry : list) {
    Parameter parameter{.name = entry.at(0), .type = type_from(entry.at(1)), .direction = ""};
    if (entry.size() > 2) parameter.direction = entry.at(2);
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

Function function_from(const Json& line) {
  Function function;
  function.name = line.at("name");
  function.base = line.value("base", function.name);
  const std::string form = line.value("form", "");
  if (form == "ptsz") {
    function.form = StreamForm::kPerThreadStream;
  } else if (form == "ptds") {
    function.form = StreamForm::kPerThreadDefault;
  } else if (!form.empty()) {
    throw BadModel{fmt::format("function {}: unknown form '{}'", function.name, form)};
  }
  function.version = line.value("version", 0);
  function.header = line.at("header");
  function.result = type_from(line.at("result"));
  function.parameters = parameters_from(line.at("parameters"));
  function.deprecated = line.value("deprecated", false);
  if (line.contains("documented")) {
    function.documentation.present = true;
    function.documentation.notes = line.at("documented").get<std::vector<std::string>>();
  }
  return function;
}

Record record_from(const Json& line) {
  Record record;
  record.is_union = line.contains("union");
  record.name = line.at(record.is_union ? "union" : "struct");
  record.header = line.value("header", "");
  record.complete = line.contains("fields");
  if (!record.complete) return record;
  record.size = line.at("size");
  record.align = line.at("align");
  for (const Json& entry : line.at("fields")) {
    Field field;
    field.name = entry.value("name", "");
    if (entry.contains("type")) field.type = type_from(entry.at("type"));
    if (entry.contains("extents")) field.type.extents = entry.at("extents").get<std::vector<std::uint64_t>>();
    if (entry.contains("in_place")) field.nested.push_back(record_from(entry.at("in_place")));
    field.offset = entry.at("offset");
    field.bits = entry.value("bits", 0U);
    field.bit_offset = entry.value("bit_offset", 0U);
    record.fields.push_back(std::move(field));
  }
  return record;
}

template <class T>
void erase_named(std::vector<T>& list, const std::string& name) {
  std::erase_if(list, [&](const T& item) { return item.name == name; });
}

void erase_type(Api& api, const std::string& name) {
  erase_named(api.enums, name);
  erase_named(api.records, name);
  erase_named(api.callbacks, name);
  erase_named(api.typedefs, name);
}

void add_type(Api& api, const Json& line) {
  if (line.contains("enum")) {
    Enum enumeration{
        .name = line.at("enum"), .header = line.at("header"), .underlying = line.at("underlying"), .enumerators = {}};
    for (const auto& [name, value] : line.at("values").items()) enumeration.enumerators.push_back({name, value});
    erase_type(api, enumeration.name);
    api.enums.push_back(std::move(enumeration));
  } else if (line.contains("struct") || line.contains("union")) {
    Record record = record_from(line);
    erase_type(api, record.name);
    api.records.push_back(std::move(record));
  } else if (line.contains("callback")) {
    Callback callback{.name = line.at("callback"),
                      .header = line.at("header"),
                      .pointer = line.value("pointer", true),
                      .result = type_from(line.at("result")),
                      .parameters = parameters_from(line.at("parameters"))};
    erase_type(api, callback.name);
    api.callbacks.push_back(std::move(callback));
  } else {
    Typedef alias{.name = line.at("typedef"), .header = line.at("header"), .type = type_from(line.at("type"))};
    erase_type(api, alias.name);
    api.typedefs.push_back(std::move(alias));
  }
}

Api api_from(const Json& json, const Api* before) {
  Api api = before ? *before : Api();
  if (json.contains("gone")) {
    for (const Json& entry : json.at("gone")) {
      const auto name = entry.get<std::string>();
      if (!api.find_function(name) && !api.has_type(name))
        throw BadModel{fmt::format("'{}' is listed as gone, but the previous release has no such name", name)};
      erase_named(api.functions, name);
      erase_type(api, name);
    }
  }
  for (const Json& line : json.at("types")) add_type(api, line);
  for (const Json& line : json.at("functions")) {
    Function function = function_from(line);
    erase_named(api.functions, function.name);
    api.functions.push_back(std::move(function));
  }
  api.index();
  return api;
}

RuntimeLibrary library_from(const Json& json) {
  return {.name = json.at("name"), .undeclared = json.at("undeclared"), .unexported = json.at("unexported")};
}

}  // namespace

std::string model_to_json(const Model& model, const Model* before) {
  std::string text = fmt::format("{{\n  \"release\": \"{}\",\n", model.release);
  if (before) text += fmt::format("  \"after\": \"{}\",\n", before->release);
  if (!model.library.name.empty()) {
    const Json library{{"name", model.library.name},
                       {"undeclared", model.library.undeclared},
                       {"unexported", model.library.unexported}};
    text += fmt::format("  \"libcudart\": {},\n", library.dump());
  }
  append_api(text, "driver", model.driver, before ? &before->driver : nullptr);
  text += ",\n";
  append_api(text, "runtime", model.runtime, before ? &before->runtime : nullptr);
  text += "\n}\n";
  return text;
}

Result<Model> parse_model(std::string_view text, const std::string& path_for_errors, const Model* before) {
  const auto bad = [&](std::string_view why) {
    return Error{fmt::format("{}: {}; regenerate it with `rota-codegen extract`", path_for_errors, why)};
  };
  try {
    const Json json = Json::parse(text);
    Model model;
    model.release = json.at("release");
    const std::string after = json.value("after", "");
    if (after != (before ? before->release : "")) {
      return bad(fmt::format("it lists the changes since CUDA {}, but {} comes before it",
                             after.empty() ? "nothing" : after, before ? "CUDA " + before->release : "nothing"));
    }
    if (json.contains("libcudart")) model.library = library_from(json.at("libcudart"));
    model.driver = api_from(json.at("driver"), before ? &before->driver : nullptr);
    model.runtime = api_from(json.at("runtime"), before ? &before->runtime : nullptr);
    return model;
  } catch (const Json::exception& problem) {
    return bad(problem.what());
  } catch (const BadModel& problem) {
    return bad(problem.text);
  }
}

}  // namespace rota::codegen
