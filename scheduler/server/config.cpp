#include "scheduler/server/config.h"

#include <fmt/format.h>
#include <limits.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "scheduler/base/byte_size.h"
#include "scheduler/protocol/protocol.h"
#include "scheduler/server/listen_address.h"

namespace rota::server {
namespace {

using scheduler::Bytes;
using scheduler::Limits;

// Errors in the file are thrown as this; read_config returns them as an Error.
struct Problem {
  toml::source_position at;
  std::string text;
};

[[noreturn]] void complain(const toml::node& node, const std::string& text) {
  throw Problem{node.source().begin, text};
}

std::string text_of(const toml::node& node, const char* example) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  complain(node, fmt::format("a string is expected, as in {}", example));
}

Bytes bytes_of(const toml::node& node) {
  const auto number = node.value_exact<std::int64_t>();
  const auto text = number && *number > 0 ? std::to_string(*number) : node.value_exact<std::string>();
  const auto bytes = text ? parse_bytes(*text) : std::nullopt;
  if (!bytes) complain(node, "an amount of memory is expected: bytes with an optional K, M, G or T, as in \"8G\"");
  if (lacks_unit(*text)) {
    complain(node, fmt::format("{0} without a unit is {0} bytes: write \"{0}G\" or \"{0}M\"", *text));
  }
  return *bytes;
}

const toml::table& table_of(const toml::node& node, const char* what) {
  if (const toml::table* table = node.as_table()) return *table;
  complain(node, fmt::format("a table is expected: {}", what));
}

template <typename Each>
void each_entry(const toml::table& table, const Each& each) {
  for (auto&& [key, node] : table) each(std::string(key.str()), node);
}

Limits limits_of(const toml::node& node) {
  Limits limits;
  each_entry(table_of(node, "{ gpu = \"8G\", host = \"32G\" }"), [&](const std::string& key, const toml::node& value) {
    if (key == "gpu") {
      limits.device = bytes_of(value);
    } else if (key == "host") {
      limits.host = bytes_of(value);
    } else {
      complain(
          value,
          fmt::format("'{}' is not a limit: use gpu (bytes on each GPU) or host (bytes in the host's memory)", key));
    }
  });
  return limits;
}

std::map<std::string, Limits> named_limits(const toml::node& node) {
  std::map<std::string, Limits> all;
  each_entry(table_of(node, "a name and its limits"),
             [&](const std::string& name, const toml::node& value) { all[name] = limits_of(value); });
  return all;
}

// As the kernel writes them: absolute, without a slash at the end.
std::map<std::string, Limits> cgroup_limits(const toml::node& node) {
  std::map<std::string, Limits> all;
  each_entry(table_of(node, "a path and its limits"), [&](std::string path, const toml::node& value) {
    if (path.empty() || path.front() != '/') complain(value, fmt::format("cgroup '{}' has to begin with /", path));
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    all[path] = limits_of(value);
  });
  return all;
}

LimitSettings all_limits(const toml::node& node) {
  LimitSettings limits;
  each_entry(table_of(node, "[limits.user] and so on"), [&](const std::string& key, const toml::node& value) {
    if (key == "process") {
      limits.process = limits_of(value);
    } else if (key == "session") {
      limits.session = limits_of(value);
    } else if (key == "user") {
      limits.user = limits_of(value);
    } else if (key == "users") {
      limits.users = named_limits(value);
    } else if (key == "cgroups") {
      limits.cgroups = cgroup_limits(value);
    } else if (key == "host_memory") {
      limits.host_budget = bytes_of(value);
    } else {
      complain(value, fmt::format("'{}' is unknown: use process, session, user, users, cgroups or host_memory", key));
    }
  });
  return limits;
}

std::chrono::nanoseconds duration_of(const toml::node& node) {
  const std::string text = text_of(node, "\"100ms\"");
  const auto duration = scheduler::parse_duration(text);
  if (!duration) complain(node, fmt::format("'{}' is not a duration above 0: use e.g. \"100ms\" or \"2s\"", text));
  return *duration;
}

std::string listen_of(const toml::node& node) {
  std::string text = text_of(node, "\"127.0.0.1:9410\"");
  if (parse_listen_address(text)) return text;
  complain(node, fmt::format("'{}' is not a numeric address with a port: use e.g. \"127.0.0.1:9410\" or \"[::1]:9410\"",
                             text));
}

std::string textfile_of(const toml::node& node) {
  std::string text = text_of(node, "\"/var/lib/prometheus/node-exporter/rota.prom\"");
  if (text.starts_with('/') && text.ends_with(".prom") && text.size() < PATH_MAX) return text;
  complain(node, fmt::format("'{}' is not an absolute path that ends with .prom, as node_exporter reads them", text));
}

MetricsSettings metrics_of(const toml::node& node) {
  MetricsSettings metrics;
  const toml::node* listen = nullptr;
  each_entry(table_of(node, "[metrics]"), [&](const std::string& key, const toml::node& value) {
    if (key == "listen") {
      listen = &value;
      metrics.listen = listen_of(value);
    } else if (key == "allow_remote") {
      const auto yes = value.value_exact<bool>();
      if (!yes) complain(value, "true or false is expected");
      metrics.allow_remote = *yes;
    } else if (key == "textfile") {
      metrics.textfile = textfile_of(value);
    } else if (key == "interval") {
      metrics.interval = duration_of(value);
      if (metrics.interval < std::chrono::seconds(1)) complain(value, "the interval is at least a second");
    } else {
      complain(value, fmt::format("'{}' is unknown: use listen, allow_remote, textfile or interval", key));
    }
  });
  if (listen != nullptr && !metrics.allow_remote && !parse_listen_address(metrics.listen)->loopback) {
    complain(*listen,
             fmt::format("other machines reach {}, and whoever does reads the names of users and sessions: use "
                         "127.0.0.1, or add allow_remote = true",
                         metrics.listen));
  }
  return metrics;
}

Config config_of(const toml::table& file) {
  Config config;
  each_entry(file, [&](const std::string& key, const toml::node& value) {
    if (key == "mode") {
      const std::string text = text_of(value, "\"automatic\"");
      config.mode = scheduler::parse_mode(text);
      if (!config.mode) {
        complain(value, fmt::format("'{}' is not a mode: use \"automatic\", \"exclusive\" or \"concurrent\"", text));
      }
    } else if (key == "quantum") {
      const std::string text = text_of(value, "\"100ms\"");
      config.quantum = scheduler::parse_quantum(text);
      if (!config.quantum) {
        complain(value,
                 fmt::format("'{}' is not a duration above 0: use e.g. \"100ms\" or \"2s\", or \"automatic\"", text));
      }
    } else if (key == "grace") {
      config.grace = duration_of(value);
    } else if (key == "memory_wait") {
      config.memory_wait = scheduler::parse_wait(text_of(value, "\"60s\""));
      if (!config.memory_wait) complain(value, "memory_wait is a duration, e.g. \"60s\", or \"0\"");
    } else if (key == "trust") {
      const std::string text = text_of(value, "\"user\"");
      config.trust = parse_trust(text);
      if (!config.trust) {
        complain(value,
                 fmt::format("'{}' is not a value of trust: use \"user\", \"user-everywhere\", \"machine\" or \"none\"",
                             text));
      }
    } else if (key == "visibility") {
      const std::string text = text_of(value, "\"own\"");
      if (text != "own" && text != "all") {
        complain(value, fmt::format("'{}' is not a value of visibility: use \"all\" or \"own\"", text));
      }
      config.visibility = text == "own" ? Visibility::kOwn : Visibility::kAll;
    } else if (key == "gpus") {
      const auto gpus = value.value_exact<std::int64_t>();
      if (!gpus || *gpus < 0 || *gpus > protocol::kMaxCandidates) {
        complain(value, fmt::format("gpus is a number from 1 to {}, or 0: `rota run` then chooses no GPUs",
                                    protocol::kMaxCandidates));
      }
      config.gpus = static_cast<std::uint16_t>(*gpus);
    } else if (key == "limits") {
      config.limits = all_limits(value);
    } else if (key == "metrics") {
      config.metrics = metrics_of(value);
    } else {
      complain(
          value,
          fmt::format(
              "'{}' is unknown: use mode, quantum, grace, memory_wait, trust, visibility, gpus, [limits] or [metrics]",
              key));
    }
  });
  return config;
}

std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const auto begin = text.find_first_not_of(kSpace);
  return begin == text.npos ? "" : std::string(text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin));
}

// What to write instead, for the commonest mistake, a value without quotes. Nothing for other mistakes: the parser's
// own text is shown.
std::string why_no_value(const std::string& path, toml::source_position at) {
  std::ifstream file(path);
  std::string line;
  for (toml::source_index number = 0; number < at.line; ++number) std::getline(file, line);
  const auto equals = line.substr(0, at.column).rfind('=');
  if (equals == line.npos) return {};
  const auto before = line.find_last_of("{,", equals);
  const std::string key = trimmed(line.substr(0, equals).substr(before == line.npos ? 0 : before + 1));
  const std::string rest = line.substr(equals + 1);
  const std::string value = trimmed(rest.substr(0, rest.find_first_of(",}#")));
  if (value.empty() || value.find_first_of("\"'[{") != value.npos) return {};
  return fmt::format("the value of {} has to be in quotes: {} = \"{}\"", key, key, value);
}

}  // namespace

Result<Config> read_config(const std::string& path) {
  // The parser reads a folder as an empty file.
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return Error{path + " is a folder: name the file in it"};
  try {
    return config_of(toml::parse_file(path));
  } catch (const toml::parse_error& error) {
    const toml::source_position at = error.source().begin;
    const std::string why = why_no_value(path, at);
    return Error{fmt::format("{}{}: {}", path, at.line == 0 ? "" : fmt::format(", line {}", at.line),
                             why.empty() ? std::string(error.description()) : why)};
  } catch (const Problem& problem) {
    return Error{fmt::format("{}, line {}: {}", path, problem.at.line, problem.text)};
  }
}

std::string default_config() {
  std::string path = "/etc/rota/rotad.toml";
  if (geteuid() != 0) {
    // NOLINTBEGIN(concurrency-mt-unsafe): no other thread yet
    const char* folder = std::getenv("XDG_CONFIG_HOME");
    const char* home = std::getenv("HOME");
    // NOLINTEND(concurrency-mt-unsafe)
    if (folder != nullptr && *folder == '/') {
      path = std::string(folder) + "/rota/rotad.toml";
    } else if (home != nullptr && *home == '/') {
      path = std::string(home) + "/.config/rota/rotad.toml";
    } else {
      return {};
    }
  }
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? path : std::string();
}

}  // namespace rota::server
