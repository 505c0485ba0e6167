#include "tools/rota/run/options.h"

#include <CLI/CLI.hpp>

#include "scheduler/core/settings.h"
#include "scheduler/protocol/byte_size.h"

namespace rota::tool {

void add_launch_options(CLI::App& command, const std::shared_ptr<LaunchOptions>& options) {
  command.add_option("--mode", options->mode, "for a rotad that has to be started: automatic, exclusive or concurrent")
      ->check([](const std::string& text) {
        if (scheduler::parse_mode(text)) return std::string();
        return "'" + text + "' is no mode: use automatic, exclusive or concurrent";
      });
  command
      .add_option("--quantum", options->quantum, "for a rotad that has to be started: e.g. 100ms or 2s, or automatic")
      ->check([](const std::string& text) {
        if (scheduler::parse_quantum(text)) return std::string();
        return "'" + text + "' is no duration above 0: use e.g. 100ms or 2s, or automatic";
      });
  const auto bytes_option = [&command](const char* name, std::uint64_t& bytes, const char* help) {
    command
        .add_option_function<std::string>(
            name, [&bytes](const std::string& text) { bytes = *protocol::parse_bytes(text); }, help)
        ->type_name("BYTES")
        ->check([](const std::string& text) {
          if (protocol::parse_bytes(text)) return std::string();
          return "'" + text + "' is no amount of memory: use bytes with an optional K, M, G or T, as in 8G";
        });
  };
  command
      .add_option_function<std::string>(
          "--memory", [options](const std::string& kind) { options->environment.emplace_back("ROTA_MEMORY", kind); },
          "how the program's device memory is served: managed (Unified Memory, the default), swap (device memory that "
          "rota moves to the host while others need the room) or native (left as it is)")
      ->check(CLI::IsMember({"managed", "native", "swap"}));
  bytes_option("--gpu-mem", options->session.device_bytes,
               "the most that the program and all that it starts may have together on each GPU, as in 8G");
  bytes_option("--host-mem", options->session.host_bytes,
               "the most of it that may have to lie in the host's memory while others use the GPU");
  command.add_flag_callback(
      "--oversubscribe", [options] { options->environment.emplace_back("ROTA_OVERSUBSCRIBE", "1"); },
      "let the program have more memory than the GPU (and as much of the host's as is left)");
}

std::vector<std::string> program_of(const CLI::App& command) {
  std::vector<std::string> program = command.remaining();
  if (program.empty()) throw CLI::RequiredError("the program and its arguments");
  if (program[0].empty() || program[0][0] == '-') throw CLI::ExtrasError({program[0]});
  return program;
}

}  // namespace rota::tool
