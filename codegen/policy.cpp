#include "codegen/policy.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "codegen/files.h"

namespace rota::codegen {
namespace {

constexpr std::array kTables = {"driver", "runtime", "export_tables", "collective_kernels"};
constexpr std::array kContexts = {"init",    "create",  "destroy", "attach",   "current",
                                  "primary", "release", "reset",   "settings", "peer"};
constexpr std::array kCaptures = {"begin", "end", "update", "query", "thread_mode"};

class PolicyReader {
 public:
  explicit PolicyReader(const std::string& path) : path_(path) {}

  Result<Policy> read(const toml::table& root) {
    for (const auto& [key, node] : root) {
      if (std::ranges::find(kTables, key.str()) == kTables.end())
        fail(node, fmt::format("unknown table '{}' (known: {})", key.str(), fmt::join(kTables, ", ")));
    }
    const toml::table* driver = root["driver"].as_table();
    if (!driver) return Error{fmt::format("{}: the table [driver] is missing", path_)};
    read_table(*driver, policy_.functions);
    if (const toml::table* runtime = root["runtime"].as_table()) {
      read_table(*runtime, policy_.runtime);
      for (const auto& [base, function] : policy_.runtime) {
        if (function.states_a_fact() || !function.reason.empty() || !function.passes.empty() ||
            !function.untouched.empty() || !function.redirected.empty() || !function.counted.empty())
          fail(*(*runtime)[base].node(),
               fmt::format("{}: a runtime function has only params, makes, ends and memory", base));
      }
    }
    if (const toml::table* tables = root["export_tables"].as_table()) {
      for (const auto& [key, node] : *tables) read_export_table(std::string(key.str()), node);
    }
    if (const toml::node* kernels = root.get("collective_kernels")) read_collective_kernels(*kernels);
    if (!failures_.empty()) return Error{failures_};
    return std::move(policy_);
  }

 private:
  void fail(const toml::node& node, const std::string& text) {
    failures_ += fmt::format("{}{}:{}: {}", failures_.empty() ? "" : "\n", path_, node.source().begin.line, text);
  }

  void read_text(const toml::node& node, std::string_view key, std::string& into) {
    if (const auto text = node.value_exact<std::string>()) {
      into = *text;
    } else {
      fail(node, fmt::format("{} must be a string", key));
    }
  }

  void read_flag(const toml::node& node, std::string_view key, bool& into) {
    if (const auto flag = node.value_exact<bool>()) {
      into = *flag;
    } else {
      fail(node, fmt::format("{} must be true or false", key));
    }
  }

  void read_list(const toml::node& node, std::string_view key, std::vector<std::string>& into) {
    if (const toml::array* list = node.as_array()) {
      for (const toml::node& item : *list) {
        std::string text;
        read_text(item, key, text);
        into.push_back(text);
      }
    } else {
      std::string text;
      read_text(node, key, text);
      into.push_back(text);
    }
  }

  void read_waiting(const toml::node& node, FunctionPolicy& function) {
    function.waits_for_others = node.value_exact<std::string>() == "others";
    function.may_block = function.waits_for_others || node.value_exact<bool>().value_or(false);
    if (!function.waits_for_others && !node.is_boolean()) fail(node, "may_block must be true, false or \"others\"");
  }

  template <class Known>
  void read_word(const toml::node& node, std::string_view key, const Known& known, std::string& into) {
    read_text(node, key, into);
    if (std::ranges::find(known, into) == known.end()) {
      fail(node, fmt::format("{} = \"{}\" is unknown (known: {})", key, into, fmt::join(known, ", ")));
    }
  }

  // "in", "out", "inout", each with [count] or [*count]; "string"; "opaque".
  void read_use(const std::string& name, const toml::node& node, std::map<std::string, ParameterUse>& into) {
    std::string text;
    read_text(node, name, text);
    ParameterUse use;
    use.reviewed = true;
    std::string direction = text;
    if (const std::size_t bracket = text.find('['); bracket != std::string::npos && text.back() == ']') {
      direction = text.substr(0, bracket);
      use.count = text.substr(bracket + 1, text.size() - bracket - 2);
      if (use.count.starts_with('*')) {
        use.count_is_pointer = true;
        use.count.erase(0, 1);
      }
    }
    if (direction == "out") {
      use.direction = Direction::kOut;
    } else if (direction == "inout") {
      use.direction = Direction::kInOut;
    } else if (text == "string") {
      use.string = true;
    } else if (text == "opaque") {
      use.opaque = true;
    } else if (direction != "in") {
      fail(node,
           fmt::format("{} = \"{}\" is unknown (known: in, out, inout, each also with [count] or [*count]; string; "
                       "opaque)",
                       name, text));
    }
    into[name] = use;
  }

  void read_memory(const std::string& base, const toml::table& table, FunctionPolicy& function) {
    MemoryPlace place;
    for (const auto& [key_node, node] : table) {
      const std::string_view key = key_node.str();
      if (key == "address") {
        read_text(node, key, place.address);
      } else if (key == "bytes") {
        read_text(node, key, place.bytes);
      } else if (key == "rows") {
        read_text(node, key, place.rows);
      } else if (key == "host") {
        read_flag(node, key, place.host);
      } else if (key == "known") {
        read_flag(node, key, place.known);
      } else {
        fail(node,
             fmt::format("{}: unknown part '{}' of memory (known: address, bytes, rows, host, known)", base, key));
      }
    }
    if (place.address.empty()) fail(table, fmt::format("{}: memory has no address", base));
    function.memory = place;
  }

  void read_table(const toml::table& table, FactTable& into) {
    for (const auto& [key, node] : table) {
      if (const toml::table* facts = node.as_table()) {
        read_function(std::string(key.str()), *facts, into);
      } else {
        fail(node, fmt::format("{} is not a table of facts: write {} = {{ … }}", key.str(), key.str()));
      }
    }
  }

  void read_function(const std::string& base, const toml::table& facts, FactTable& into) {
    FunctionPolicy function;
    function.base = base;
    function.line = static_cast<int>(facts.source().begin.line);
    for (const auto& [key_node, node] : facts) {
      const std::string_view key = key_node.str();
      if (key == "submits") {
        read_text(node, key, function.submits);
      } else if (key == "needs_mapping") {
        read_list(node, key, function.needs_mapping);
      } else if (key == "needs_room") {
        function.needs_room = node.value_exact<bool>().value_or(false);
        if (!function.needs_room) fail(node, "needs_room must be true, or left out");
      } else if (key == "may_block") {
        read_waiting(node, function);
      } else if (key == "captures") {
        read_word(node, key, kCaptures, function.captures);
      } else if (key == "allocates") {
        read_list(node, key, function.allocates);
      } else if (key == "frees") {
        read_list(node, key, function.frees);
      } else if (key == "exports") {
        read_list(node, key, function.exports);
      } else if (key == "context") {
        read_word(node, key, kContexts, function.context);
      } else if (key == "query") {
        read_flag(node, key, function.query);
      } else if (key == "undeclared") {
        read_flag(node, key, function.undeclared);
      } else if (key == "reason") {
        read_text(node, key, function.reason);
      } else if (key == "passes") {
        read_text(node, key, function.passes);
        if (function.passes.find_first_not_of(' ') == std::string::npos)
          fail(node, fmt::format("{}: passes must say why nothing needs to be done", base));
      } else if (key == "untouched") {
        read_text(node, key, function.untouched);
        if (function.untouched.find_first_not_of(' ') == std::string::npos)
          fail(node, fmt::format("{}: untouched must say why memory need not be in place", base));
      } else if (key == "redirected" || key == "counted") {
        std::string& how = key == "counted" ? function.counted : function.redirected;
        read_text(node, key, how);
        if (how.find_first_not_of(' ') == std::string::npos)
          fail(node, fmt::format("{}: {} must say how the memory is counted", base, key));
      } else if (key == "makes") {
        read_list(node, key, function.makes);
      } else if (key == "ends") {
        read_list(node, key, function.ends);
      } else if (key == "memory" && node.is_table()) {
        read_memory(base, *node.as_table(), function);
      } else if (key == "params" && node.is_table()) {
        for (const auto& [name, use] : *node.as_table()) {
          read_use(std::string(name.str()), use, function.parameters);
        }
      } else {
        fail(node, fmt::format("{}: unknown fact '{}'", base, key));
      }
    }
    if (&into == &policy_.functions && !function.states_a_fact())
      fail(facts, fmt::format("{} states no fact; for a pure query write query = true", base));
    into.emplace(base, std::move(function));
  }

  // "6bd5fb6c-5bf4-e74a-8987-d93912fd9df9": 16 bytes in memory order.
  static bool read_uuid(std::string_view text, std::array<unsigned char, 16>& into) {
    constexpr std::string_view kForm = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    constexpr std::string_view kDigits = "0123456789abcdef";
    if (text.size() != kForm.size()) return false;
    std::size_t digit = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
      const std::size_t value = kDigits.find(text[at]);
      if (kForm[at] == '-' ? text[at] != '-' : value == std::string_view::npos) return false;
      if (kForm[at] == '-') continue;
      into[digit / 2] = static_cast<unsigned char>(into[digit / 2] * 16 + value);
      ++digit;
    }
    return true;
  }

  void read_export_table(const std::string& uuid, const toml::node& node) {
    ExportTable table;
    table.uuid = uuid;
    table.line = static_cast<int>(node.source().begin.line);
    if (!read_uuid(uuid, table.id)) fail(node, fmt::format("{} is not a UUID in lower-case letters", uuid));
    const toml::table* facts = node.as_table();
    if (!facts) {
      fail(node,
           fmt::format("{} is not a table: write \"{}\" = {{ bytes = …, asked_by = …, evidence = … }}", uuid, uuid));
      return;
    }
    for (const auto& [key_node, value] : *facts) {
      const std::string_view key = key_node.str();
      const auto bytes = value.value_exact<std::int64_t>();
      if (key == "bytes" && bytes && *bytes >= 0 && *bytes % 8 == 0) {
        table.bytes = static_cast<std::uint64_t>(*bytes);
      } else if (key == "bytes") {
        fail(value, fmt::format("{}: bytes must be a multiple of 8, or 0", uuid));
      } else if (key == "gated") {
        const auto gated = value.value_exact<bool>();
        if (!gated) fail(value, fmt::format("{}: gated must be true or false", uuid));
        table.gated = gated.value_or(false);
      } else if (key == "asked_by") {
        read_list(value, key, table.asked_by);
      } else if (key == "evidence") {
        read_text(value, key, table.evidence);
      } else {
        fail(value,
             fmt::format("{}: unknown fact '{}' of a table (known: bytes, gated, asked_by, evidence)", uuid, key));
      }
    }
    if (!facts->contains("bytes")) fail(node, fmt::format("{}: bytes is missing", uuid));
    if (table.gated && table.bytes == 0)
      fail(node, fmt::format("{}: a gated table is copied, so bytes must be its length", uuid));
    if (table.asked_by.empty()) fail(node, fmt::format("{}: asked_by is missing", uuid));
    if (table.evidence.empty())
      fail(node, fmt::format("{}: evidence is missing: state what was observed of its users", uuid));
    policy_.export_tables.push_back(std::move(table));
  }

  void read_collective_kernels(const toml::node& node) {
    const toml::table* table = node.as_table();
    if (!table || table->size() != 1 || !table->contains("prefixes")) {
      fail(node, "collective_kernels is a table with prefixes = [...] and nothing else");
      return;
    }
    const toml::node& prefixes = *table->get("prefixes");
    read_list(prefixes, "prefixes", policy_.collective_kernels);
    for (const std::string& prefix : policy_.collective_kernels) {
      // Almost every kernel's name begins with "_Z".
      const bool is_name =
          std::ranges::all_of(prefix, [](unsigned char letter) { return std::isalnum(letter) != 0 || letter == '_'; });
      if (prefix.size() < 8 || !is_name)
        fail(prefixes,
             fmt::format("'{}' does not tell collective kernels apart: use 8 or more letters, digits and _", prefix));
    }
  }

  const std::string& path_;
  Policy policy_;
  std::string failures_;
};

}  // namespace

bool FunctionPolicy::states_a_fact() const {
  return query || undeclared || may_block || !submits.empty() || !needs_mapping.empty() || !captures.empty() ||
         !allocates.empty() || !frees.empty() || !exports.empty() || !context.empty();
}

std::vector<std::string> FunctionPolicy::binding_facts() const {
  constexpr std::array kKnownOfContexts = {"create", "destroy", "attach", "primary", "release", "reset"};
  constexpr std::array kKnownOfCaptures = {"begin", "end", "update"};
  std::vector<std::string> facts;
  if (!allocates.empty()) facts.emplace_back("allocates");
  if (!frees.empty()) facts.emplace_back("frees");
  if (!exports.empty()) facts.emplace_back("exports");
  if (std::ranges::find(kKnownOfCaptures, captures) != kKnownOfCaptures.end())
    facts.push_back(fmt::format("captures = \"{}\"", captures));
  if (std::ranges::find(kKnownOfContexts, context) != kKnownOfContexts.end())
    facts.push_back(fmt::format("context = \"{}\"", context));
  return facts;
}

const FunctionPolicy* Policy::find(std::string_view base) const {
  const auto found = functions.find(base);
  return found == functions.end() ? nullptr : &found->second;
}

const FunctionPolicy* find_facts(const FactTable& table, const Function& function, int major) {
  auto found = major == 0 ? table.end() : table.find(fmt::format("{}@{}", function.name, major));
  if (found == table.end()) found = table.find(function.base);
  return found == table.end() ? nullptr : &found->second;
}

Result<Policy> parse_policy(std::string_view text, const std::string& path_for_errors) {
  try {
    return PolicyReader(path_for_errors).read(toml::parse(text, path_for_errors));
  } catch (const toml::parse_error& problem) {
    return Error{fmt::format("{}:{}: {}", path_for_errors, problem.source().begin.line, problem.description())};
  }
}

Result<Policy> load_policy(const std::string& path) {
  const auto text = read_file(path);
  if (!text) return Error{fmt::format("{}: cannot be opened", path)};
  return parse_policy(*text, path);
}

ParameterUse parameter_use(const Api& api, const FunctionPolicy* policy, const Function& /*function*/,
                           const Parameter& parameter) {
  if (policy) {
    if (const auto stated = policy->parameters.find(parameter.name); stated != policy->parameters.end()) {
      return stated->second;
    }
  }
  ParameterUse use;
  const auto resolved = api.resolve(parameter.type);
  if (!resolved || resolved->kind != TypeKind::kPointer || api.is_handle(parameter.type)) return use;
  const auto target = api.resolve(resolved->pointee);
  if (!target || target->kind == TypeKind::kVoid || target->kind == TypeKind::kCallback) {
    use.opaque = true;
  } else if (target->kind == TypeKind::kCharacter && target->is_const) {
    use.string = true;
  } else if (!target->is_const) {
    use.direction = Direction::kOut;
  }
  return use;
}

}  // namespace rota::codegen
