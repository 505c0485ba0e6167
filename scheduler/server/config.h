// rotad.toml: what an administrator sets for a machine. README.md in scheduler/ has an example.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "scheduler/core/quota.h"
#include "scheduler/core/settings.h"
#include "scheduler/protocol/result.h"

namespace rota::server {

struct LimitSettings {
  scheduler::Limits process;                         // each
  scheduler::Limits session;                         // each, where it has no lower one of its own
  scheduler::Limits user;                            // each that is not named
  std::map<std::string, scheduler::Limits> users;    // by name or number
  std::map<std::string, scheduler::Limits> cgroups;  // by path: of it and all below it
  // Bytes of the host's memory for what does not fit the GPUs; nothing: nine tenths of what is available.
  std::optional<scheduler::Bytes> host_budget;
};

// Whose memory goes to whom without the driver in between, who could read what the next one puts there.
enum class Trust {
  kNone,     // nobody's to anybody
  kUser,     // among programs of one user in one container (the same user and pid namespaces)
  kMachine,  // among all: they are one team's
};
std::optional<Trust> parse_trust(const std::string& text);

// Whose programs a user who asks is told of; root is told of all.
enum class Visibility { kAll, kOwn };

struct Config {
  // As on the command line, which comes first.
  std::optional<scheduler::Mode> mode;
  std::optional<std::chrono::nanoseconds> quantum;  // 0: automatic
  std::optional<std::chrono::nanoseconds> grace;
  std::optional<Trust> trust;
  std::optional<Visibility> visibility;
  LimitSettings limits;
};

// The error names the file, the line, what is wrong there and what may stand there.
Result<Config> read_config(const std::string& path);
// Where it is looked for by a rotad that is not told: /etc/rota/rotad.toml for root, else $XDG_CONFIG_HOME or ~/.config
// and rota/rotad.toml. Empty: there is no such file.
std::string default_config();

}  // namespace rota::server
