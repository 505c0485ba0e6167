// cuda_headers/api/<release>.json. One declaration per line and nothing that follows from the rest (a base name that
// equals the name, a default stream form), so that a new release reads as a difference of lines.
#include <fstream>
#include <sstream>

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

Json declaration_to_json(const Api& api, const Declaration& declaration) {
  switch (declaration.kind) {
    case DeclarationKind::kEnum:
      return enum_to_json(api.enums[declaration.index]);
    case DeclarationKind::kRecord:
      return record_to_json(api.records[declaration.index]);
    case DeclarationKind::kCallback:
      return callback_to_json(api.callbacks[declaration.index]);
    case DeclarationKind::kTypedef:
      break;
  }
  const Typedef& alias = api.typedefs[declaration.index];
  return Json{{"typedef", alias.name}, {"header", alias.header}, {"type", alias.type.spelling()}};
}

void append_lines(std::string& text, const std::vector<std::string>& lines) {
  for (std::size_t i = 0; i < lines.size(); ++i) text += "    " + lines[i] + (i + 1 < lines.size() ? ",\n" : "\n");
}

void append_api(std::string& text, std::string_view name, const Api& api) {
  std::vector<std::string> functions;
  functions.reserve(api.functions.size());
  for (const Function& function : api.functions) functions.push_back(function_to_json(function).dump());
  std::vector<std::string> types;
  types.reserve(api.declarations.size());
  for (const Declaration& declaration : api.declarations) types.push_back(declaration_to_json(api, declaration).dump());
  text += fmt::format("  \"{}\": {{\n   \"types\": [\n", name);
  append_lines(text, types);
  text += "   ],\n   \"functions\": [\n";
  append_lines(text, functions);
  text += "   ]\n  }";
}

// Reading: nlohmann throws on a missing or ill-typed key, and the type parser answers with an Error; both end here.
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

Api api_from(const Json& json) {
  Api api;
  const auto declare = [&api](DeclarationKind kind, std::size_t index) { api.declarations.push_back({kind, index}); };
  for (const Json& line : json.at("types")) {
    if (line.contains("enum")) {
      Enum enumeration{
          .name = line.at("enum"), .header = line.at("header"), .underlying = line.at("underlying"), .enumerators = {}};
      for (const auto& [name, value] : line.at("values").items()) enumeration.enumerators.push_back({name, value});
      declare(DeclarationKind::kEnum, api.enums.size());
      api.enums.push_back(std::move(enumeration));
    } else if (line.contains("struct") || line.contains("union")) {
      declare(DeclarationKind::kRecord, api.records.size());
      api.records.push_back(record_from(line));
    } else if (line.contains("callback")) {
      declare(DeclarationKind::kCallback, api.callbacks.size());
      api.callbacks.push_back({.name = line.at("callback"),
                               .header = line.at("header"),
                               .pointer = line.value("pointer", true),
                               .result = type_from(line.at("result")),
                               .parameters = parameters_from(line.at("parameters"))});
    } else {
      declare(DeclarationKind::kTypedef, api.typedefs.size());
      api.typedefs.push_back(
          {.name = line.at("typedef"), .header = line.at("header"), .type = type_from(line.at("type"))});
    }
  }
  for (const Json& line : json.at("functions")) api.functions.push_back(function_from(line));
  api.index();
  return api;
}

}  // namespace

std::string model_to_json(const Model& model) {
  std::string text = fmt::format("{{\n  \"release\": \"{}\",\n", model.release);
  append_api(text, "driver", model.driver);
  text += ",\n";
  append_api(text, "runtime", model.runtime);
  text += "\n}\n";
  return text;
}

Result<Model> parse_model(std::string_view text, const std::string& path_for_errors) {
  try {
    const Json json = Json::parse(text);
    Model model;
    model.release = json.at("release");
    model.driver = api_from(json.at("driver"));
    model.runtime = api_from(json.at("runtime"));
    return model;
  } catch (const Json::exception& problem) {
    return Error{fmt::format("{}: {}; make it anew with `rota-codegen extract`", path_for_errors, problem.what())};
  } catch (const BadModel& problem) {
    return Error{fmt::format("{}: {}; make it anew with `rota-codegen extract`", path_for_errors, problem.text)};
  }
}

Result<Model> load_model(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{fmt::format("{}: cannot be opened; make it with `rota-codegen extract`", path)};
  std::ostringstream text;
  text << file.rdbuf();
  return parse_model(text.str(), path);
}

}  // namespace rota::codegen
