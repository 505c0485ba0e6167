#include "tools/rota/run/options.h"

#include <CLI/CLI.hpp>

#include "scheduler/base/byte_size.h"
#include "scheduler/core/settings.h"

namespace rota::tool {

void add_launch_options(CLI::App& command, const std::shared_ptr<LaunchOptions>& options) {
  command.add_option("--mode", options->mode, "used if a rotad has to be started: automatic, exclusive or concurrent")
      ->check([](const std::string& text) {
        if (scheduler::parse_mode(text)) return std::string();
        return "'" + text + "' is not a mode: use automatic, exclusive or concurrent";
      });
  command
      .add_option("--quantum", options->quantum, "used if a rotad has to be started: e.g. 100ms or 2s, or automatic")
      ->check([](const std::string& text) {
        if (scheduler::parse_quantum(text)) return std::string();
        return "'" + text + "' is not a duration above 0: use e.g. 100ms or 2s, or automatic";
      });
  const auto bytes_option = [&command](const char* name, std::uint64_t& bytes, const char* help) {
    command
        .add_option_function<std::string>(
            name, [&bytes](const std::string& text) { bytes = *parse_bytes(text); }, help)
        ->type_name("BYTES")
        ->check([](const std::string& text) {
          if (lacks_unit(text)) return text + " without a unit is bytes: write " + text + "G or " + text + "M";
          if (parse_bytes(text)) return std::string();
          return "'" + text + "' is not an amount of memory: use bytes with an optional K, M, G or T, as in 8G";
        });
  };
  command
      .add_option_function<std::string>(
          "--memory", [options](const std::string& kind) { options->environment.emplace_back("ROTA_MEMORY", kind); },
          "how the program's device memory is served: swap (device memory that rota moves to the host while others "
          "need it), managed (Unified Memory), native (left as it is) or auto (the default: swap where the GPU can, "
          "managed elsewhere and with --oversubscribe)")
      ->check(CLI::IsMember({"auto", "managed", "native", "swap"}));
  bytes_option("--gpu-mem", options->session.device_bytes,
               "limit on the memory of the program and all that it starts, together, on each GPU, as in 8G");
  bytes_option("--host-mem", options->session.host_bytes,
               "limit on how much of that memory may have to be in the host's memory while others use the GPU");
  command
      .add_option_function<std::string>(
          "--name",
          [options](const std::string& text) {
            options->name = text;
            options->session.name = protocol::as_session_name(text);
          },
          "what `rota status`, metrics and the report call the program and all that it starts")
      ->check([](const std::string& text) { return text.empty() ? "the name is empty" : std::string(); });
  command.add_flag_callback(
      "--oversubscribe", [options] { options->environment.emplace_back("ROTA_OVERSUBSCRIBE", "1"); },
      "let the program have more memory than the GPU (up to most of the host's memory that is left)");
}

void add_system_preload_option(CLI::App& command, const std::shared_ptr<LaunchOptions>& options) {
  command.add_flag("--system-preload", options->everywhere,
                   "reach also programs that are started with a clean environment (env -i, bazel, a script that unsets "
                   "LD_PRELOAD): by /etc/ld.so.preload in a mount namespace of the command's own");
}

std::vector<std::string> program_of(const CLI::App& command) {
  std::vector<std::string> program = command.remaining();
  if (program.empty()) throw CLI::RequiredError("the program and its arguments");
  if (program[0].starts_with('-')) throw CLI::ExtrasError({program[0]});
  return program;
}

}  // namespace rota::tool
