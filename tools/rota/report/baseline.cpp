// See baseline.h.
#include "tools/rota/report/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tools/rota/report/format.h"

namespace rota::report {
namespace {

using nlohmann::json;

constexpr int kBaselineVersion = 1;

struct Member {
  const char* name;
  std::uint64_t Use::* value;
};

constexpr Member kMembers[] = {
    {"peak_bytes", &Use::peak_bytes}, {"reserved_peak_bytes", &Use::reserved_peak_bytes},
    {"gpu_ns", &Use::gpu_ns},         {"waited_ns", &Use::waited_ns},
    {"launches", &Use::launches},     {"copies", &Use::copies},
    {"calls", &Use::calls},           {"copied_bytes", &Use::copied_bytes},
    {"live_bytes", &Use::live_bytes}, {"synchronizations", &Use::synchronizations},
};

constexpr const char* kRemedy = "correct it, or remove the file and write it again with --update";
// Sums of a few such values do not overflow.
constexpr std::uint64_t kLargest = std::uint64_t{1} << 60;

// The text found where something else was expected, cut off.
std::string shown(const json& value) {
  constexpr std::size_t kMost = 40;
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  const std::string text = printable(value.dump(-1, ' ', true, json::error_handler_t::replace));
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

// Reads the members of a file, and remembers the first error in it.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  const std::optional<Error>& problem() const { return problem_; }
  void refuse(const std::string& place, const std::string& expected, const json& found) {
    if (problem_) return;
    problem_ = Error{
        fmt::format("{}: {}: expected {}, found {}; {}", path_, printable(place), expected, shown(found), kRemedy)};
  }

  // Missing members are 0.
  std::uint64_t number(const json& object, const std::string& name, const std::string& place) {
    const auto found = object.find(name);
    if (found == object.end()) return 0;
    return value(*found, place + ", " + name);
  }
  // The object's numbers by name.
  std::map<std::string, std::uint64_t> numbers(const json& object, const std::string& place) {
    std::map<std::string, std::uint64_t> all;
    for (const auto& [name, value] : object.items()) all[name] = number(object, name, place);
    return all;
  }
  std::vector<std::uint64_t> list(const json& object, const std::string& name, const std::string& place) {
    const auto found = object.find(name);
    if (found == object.end()) return {};
    if (!found->is_array()) {
      refuse(place + ", " + name, "a list of bytes by GPU", *found);
      return {};
    }
    std::vector<std::uint64_t> all;
    for (const json& each : *found) {
      all.push_back(value(each, fmt::format("{}, {}, number {}", place, name, all.size() + 1)));
    }
    return all;
  }

 private:
  std::uint64_t value(const json& found, const std::string& place) {
    if (found.is_number_unsigned() && found.get<std::uint64_t>() <= kLargest) return found.get<std::uint64_t>();
    refuse(place, fmt::format("a whole number from 0 to {}", kLargest), found);
    return 0;
  }

  const std::string& path_;
  std::optional<Error> problem_;
};

BaselineEntry read_entry(Reader& reader, const json& entry, const std::string& test) {
  BaselineEntry made;
  made.time_ns = reader.number(entry, "time_ns", test);
  made.gpu_peak_bytes = reader.list(entry, "gpu_peak_bytes", test);
  if (entry.contains("added_bytes")) made.added_bytes = reader.number(entry, "added_bytes", test);
  for (const Member& member : kMembers) made.use.*member.value = reader.number(entry, member.name, test);
  const auto functions = entry.find("functions");
  made.use.has_functions = functions != entry.end();
  if (made.use.has_functions) {
    const std::string place = test + ", functions";
    if (!functions->is_object()) reader.refuse(place, "an object of numbers of calls by function", *functions);
    made.use.functions = reader.numbers(functions->is_object() ? *functions : json::object(), place);
  }
  const auto errors = entry.find("errors");
  if (errors == entry.end()) return made;
  if (!errors->is_object()) {
    made.use.errors = reader.number(entry, "errors", test);
    return made;
  }
  for (const auto& [error, calls] : reader.numbers(*errors, test + ", errors")) {
    const std::size_t blank = error.find(' ');
    if (blank == std::string::npos) reader.refuse(test + ", errors", "names as in \"cuMemAlloc CUDA_ERROR_X\"", error);
    if (reader.problem()) break;
    made.use.failures[{error.substr(0, blank), error.substr(blank + 1)}] = calls;
    made.use.errors += calls;
  }
  return made;
}

// The place in the text at which the parser stopped.
std::string syntax_problem(const std::string& text) {
  std::size_t at = 0;
  try {
    [[maybe_unused]] const json unused = json::parse(text);
  } catch (const json::parse_error& error) {
    at = std::min(error.byte, text.size());
  } catch (const json::exception&) {  // a number beyond all bounds
    return "a number is out of range";
  }
  const auto before = text.substr(0, at);
  return fmt::format("no JSON from line {} on", std::ranges::count(before, '\n') + 1);
}

std::uint64_t steady(std::uint64_t before, std::uint64_t now) {
  const std::uint64_t quarter = before / 4;
  return before != 0 && now >= before - quarter && now <= before + quarter ? before : now;
}

}  // namespace

Result<Baseline> parse_baseline(const std::string& text, const std::string& path) {
  const json file = json::parse(text, nullptr, false);
  if (file.is_discarded()) return Error{fmt::format("{}: {}; {}", path, syntax_problem(text), kRemedy)};
  if (!file.is_object() || !file.contains("tests") || !file.contains("version")) {
    return Error{fmt::format("{} is not a baseline of rota: `rota report DIR --update {}` writes one", path, path)};
  }
  if (file["version"] != kBaselineVersion) {
    return Error{fmt::format("{}: version: this rota reads {}, the file says {}; write a new one with --update", path,
                             kBaselineVersion, shown(file["version"]))};
  }
  Reader reader(path);
  Baseline baseline;
  if (!file["tests"].is_object()) reader.refuse("tests", "an object of tests by name", file["tests"]);
  for (const auto& [name, entry] : file["tests"].items()) {
    if (!entry.is_object()) reader.refuse(name, "an object of what the test took", entry);
    if (reader.problem()) break;
    baseline[name] = read_entry(reader, entry, name);
  }
  if (reader.problem()) return *reader.problem();
  return baseline;
}

Result<Baseline> read_baseline(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    return Error{fmt::format("cannot read the baseline {}: it is not a file", path)};
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return Error{fmt::format("cannot read the baseline {}: {}; `rota report DIR --update {}` writes one", path,
                             std::strerror(errno), path)};
  }
  return parse_baseline(std::string(std::istreambuf_iterator<char>(file), {}), path);
}

std::string baseline_text(const Baseline& baseline) {
  json tests = json::object();
  for (const auto& [name, entry] : baseline) {
    json made = json::object();
    for (const Member& member : kMembers) {
      if (entry.use.*member.value != 0) made[member.name] = entry.use.*member.value;
    }
    if (entry.time_ns != 0) made["time_ns"] = entry.time_ns;
    if (!entry.gpu_peak_bytes.empty()) made["gpu_peak_bytes"] = entry.gpu_peak_bytes;
    if (entry.added_bytes) made["added_bytes"] = *entry.added_bytes;
    if (entry.use.has_functions) {
      made["functions"] = json::object();
      for (const auto& [function, calls] : entry.use.functions) made["functions"][function] = calls;
      for (const auto& [key, calls] : entry.use.failures) made["errors"][key.first + " " + key.second] = calls;
    } else if (entry.use.errors != 0) {
      made["errors"] = entry.use.errors;
    }
    tests[printable(name)] = std::move(made);
  }
  return json{{"version", kBaselineVersion}, {"tests", std::move(tests)}}.dump(2) + "\n";
}

void update_baseline(Baseline& kept, const Baseline& fresh) {
  for (const auto& [name, entry] : fresh) {
    const auto before = kept.find(name);
    if (before == kept.end()) {
      kept[name] = entry;
      continue;
    }
    BaselineEntry made = entry;
    made.time_ns = steady(before->second.time_ns, entry.time_ns);
    made.use.gpu_ns = steady(before->second.use.gpu_ns, entry.use.gpu_ns);
    made.use.waited_ns = steady(before->second.use.waited_ns, entry.use.waited_ns);
    before->second = std::move(made);
  }
}

}  // namespace rota::report
