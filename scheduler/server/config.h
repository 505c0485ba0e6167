// rotad.toml: what an administrator sets for a machine. scheduler/CONFIGURATION.md describes it.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "scheduler/base/result.h"
#include "scheduler/core/settings.h"
#include "scheduler/limits/quota.h"
#include "scheduler/server/trust_domain.h"

namespace rota::server {

struct LimitSettings {
  scheduler::Limits process;                         // each
  scheduler::Limits session;                         // each, unless it has a lower one of its own
  scheduler::Limits user;                            // each that is not named
  std::map<std::string, scheduler::Limits> users;    // by name or number
  std::map<std::string, scheduler::Limits> cgroups;  // by path: of it and all below it
  // Bytes of host memory for what does not fit on the GPUs; nothing: nine tenths of what is available.
  std::optional<scheduler::Bytes> host_budget;
  // How long an allocation waits for others to free memory that cannot be evicted; nothing: Quota's default.
  std::optional<std::chrono::nanoseconds> memory_wait;
  bool operator==(const LimitSettings&) const = default;
};

// Where rotad offers figures to Prometheus.
struct MetricsSettings {
  std::string listen;                                            // ListenAddress; empty: nowhere
  bool allow_remote = false;                                     // it may be an address that other machines reach
  std::string textfile;                                          // for node_exporter; empty: none
  std::chrono::nanoseconds interval = std::chrono::seconds(15);  // at which it is written
  bool operator==(const MetricsSettings&) const = default;
};

// Which programs a trust domain can see; root in rotad's own container can see all.
enum class Visibility { kAll, kOwn };

struct Config {
  // These are also options of the command line, which take precedence.
  std::optional<scheduler::Mode> mode;
  std::optional<std::chrono::nanoseconds> quantum;  // 0: automatic
  std::optional<std::chrono::nanoseconds> grace;
  std::optional<std::chrono::nanoseconds> memory_wait;
  std::optional<Trust> trust;
  std::optional<Visibility> visibility;
  std::uint16_t gpus = 0;
  LimitSettings limits;
  MetricsSettings metrics;
};

// The settings that apply: of the command line, then the file, then the defaults.
struct Configuration {
  scheduler::Settings settings;
  LimitSettings limits;
  Trust trust = Trust::kUser;
  Visibility visibility = Visibility::kAll;
  std::uint16_t gpus = 0;  // how many `rota run` chooses for a program that does not say; 0: none
  MetricsSettings metrics;
  std::string file;  // empty: there is none
};

// The error names the file, the line, what is wrong and what is allowed.
Result<Config> read_config(const std::string& path);
// Where rotad looks for it by default: /etc/rota/rotad.toml for root, else $XDG_CONFIG_HOME or ~/.config and
// rota/rotad.toml. Empty: there is no such file.
std::string default_config();

}  // namespace rota::server
