// `rota run [--mode M] [--quantum Q] [--memory M] [--gpu-mem B] [--host-mem B] [--oversubscribe]
// [--gang NAME[:SIZE]] [--system-preload] [--report FILE] [--name NAME] [--gpus N] [--] command …`
#include "tools/rota/run/run.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <csignal>
#include <memory>
#include <optional>
#include <string>

#include "runtime/client/gang_name.h"
#include "tools/rota/report/record.h"
#include "tools/rota/run/choose.h"
#include "tools/rota/run/daemon.h"
#include "tools/rota/run/fresh_start.h"
#include "tools/rota/run/options.h"
#include "tools/rota/run/output.h"

namespace rota::tool {

namespace {

std::optional<unsigned> gpus_of(const std::string& text) {
  unsigned count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count == 0) return std::nullopt;
  return count;
}

// For the library in a program whose rotad was killed (runtime/client/next_rotad.h).
void register_start_rotad(CLI::App& app) {
  auto request = std::make_shared<DaemonRequest>();
  CLI::App* start = app.add_subcommand("start-rotad", "")->group("");
  start->add_option("--mode", request->mode);
  start->add_option("--quantum", request->quantum);
  start->callback([request] {
    sigset_t none;  // all are blocked, as in the thread that has started this
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    close_descriptors_from(STDERR_FILENO + 1);  // those of the program, where the kernel did not do that
    const Daemon daemon = find_or_start_daemon(*request);
    if (daemon.socket.empty()) write_message(daemon.problem + "\n");
    throw CLI::RuntimeError(daemon.socket.empty() ? 1 : 0);
  });
}

}  // namespace

void register_run(CLI::App& app) {
  register_start_rotad(app);
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* run = app.add_subcommand("run", "start a program that shares the GPUs with others under rota");
  add_launch_options(*run, options);
  run->add_option_function<std::string>(
         "--gang", [options](const std::string& text) { options->environment.emplace_back("ROTA_GANG", text); },
         "all programs of this user (and container) that name the same gang have their turns together, which ranks of "
         "one job need if they wait for each other; with a size, as in train:4, none begins its first turn before that "
         "many programs use a GPU, or 60 s have passed")
      ->type_name("NAME[:SIZE]")
      ->check([](const std::string& text) {
        if (client::named_gang(text)) return std::string();
        return "'" + text + "' names no gang: " + client::kGangForm;
      });
  auto gpus = std::make_shared<GpusWanted>();
  run->add_option_function<std::string>(
         "--gpus",
         [gpus](const std::string& text) {
           gpus->all = text == "all";
           if (!gpus->all) gpus->count = gpus_of(text);
         },
         "give the program that many GPUs, those with the most free memory of the ones in CUDA_VISIBLE_DEVICES, "
         "and reserve them until it uses them; or all (default: gpus in rotad.toml, otherwise all)")
      ->type_name("N|all")
      ->check([](const std::string& text) {
        if (text == "all" || gpus_of(text)) return std::string();
        return "'" + text + "' is not a number of GPUs: use 1 or more, or all";
      });
  options->choose_gpus = [gpus](const Daemon& daemon, const std::string& session) {
    return choose_gpus(*gpus, daemon, session);
  };
  add_system_preload_option(*run, options);
  auto reported = std::make_shared<report::Recording>();
  CLI::Option* const wanted = run->add_option(
      "--report", reported->target,
      "afterwards write what the program and all that it starts did on GPUs: to a file .txt, .json, .xml (JUnit) or "
      ".html, or all of them to a folder, with the records that they were made from, for rota report");
  // Everything from the program's name on belongs to the program, whatever it looks like: no positional option may take
  // part of it. (main.cpp removes a "--" in front of it.)
  run->prefix_command();
  run->callback([options, reported, wanted, run] {
    options->command = program_of(*run);
    reported->name = options->name;
    if (wanted->count() > 0) throw CLI::RuntimeError(report::run_and_report(*options, *reported));
    throw CLI::RuntimeError(run_in_place(*options));
  });
}

}  // namespace rota::tool
