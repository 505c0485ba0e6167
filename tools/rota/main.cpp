// rota: the command line. Every subcommand ends by throwing its exit code as CLI::RuntimeError.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tools/rota/ci/ci.h"
#include "tools/rota/control/control.h"
#include "tools/rota/demo/demo.h"
#include "tools/rota/doctor/doctor.h"
#include "tools/rota/report/format.h"
#include "tools/rota/report/report.h"
#include "tools/rota/run/output.h"
#include "tools/rota/run/run.h"
#include "tools/rota/run/signals.h"
#include "tools/rota/sim/sim.h"
#include "tools/rota/status/status.h"
#include "tools/rota/top/top.h"
#include "tools/rota/trace/trace.h"
#include "tools/rota/try/try.h"

namespace {

// Removes the `--` in front of the program in `rota run … -- program …` and similar commands: CLI11 2.1 changes the
// order of what follows it, while without it everything from the program's name on is left alone. A `--` among the
// program's own arguments stays.
void drop_separator(CLI::App& app, std::vector<std::string>& arguments) {
  if (arguments.empty()) return;
  const auto named = app.get_subcommands([&](const CLI::App* command) { return command->get_name() == arguments[0]; });
  if (named.empty()) return;
  const CLI::App* command = named.front();
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
    if (argument.empty() || argument[0] != '-') return;
    const bool has_value = argument.find('=') != std::string::npos;
    const CLI::Option* option = command->get_option_no_throw(argument);
    if (!has_value && option != nullptr && option->get_items_expected_max() > 0) ++i;
  }
}

// For commands that start a program, the usage line shows where the program goes.
class Usages : public CLI::Formatter {
  std::string make_usage(const CLI::App* app, std::string name) const override {
    const std::string usage = CLI::Formatter::make_usage(app, name);
    const std::string own = app->get_name();
    std::string program;
    if (own == "run" || own == "ci" || own == "try" || own == "sim" || own == "trace")
      program = " -- COMMAND [ARGUMENTS…]";
    if (own == "doctor") program = " [-- COMMAND [ARGUMENTS…]]";
    if (program.empty()) return usage;
    std::string first = usage.substr(0, usage.find('\n'));
    const std::size_t options = first.find("[OPTIONS]");
    if (options != std::string::npos) first.resize(options + std::strlen("[OPTIONS]"));
    return first + program + "\n";
  }
};

// Empty, or the line about a first word that is not a command.
std::string wrong_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0].starts_with('-')) return {};
  std::string names;
  const auto all = app.get_subcommands([](const CLI::App*) { return true; });
  std::vector<const CLI::App*> commands;
  for (const CLI::App* command : all) {
    if (command->get_name() == arguments[0]) return {};
    if (!command->get_group().empty()) commands.push_back(command);  // those for rota itself are in no group
  }
  for (std::size_t i = 0; i < commands.size(); ++i) {
    names += (i == 0 ? "" : i + 1 == commands.size() ? " or " : ", ") + commands[i]->get_name();
  }
  return "rota: '" + rota::report::printable(arguments[0]) + "' is not a command: use " + names +
         "; `rota --help` says more\n";
}

}  // namespace

int main(int argc, char** argv) {
  rota::tool::occupy_standard_descriptors();
  CLI::App app{"rota: many CUDA programs take turns on one GPU, each as if it had the whole GPU", "rota"};
  app.set_version_flag("--version", std::string("rota ") + ROTA_VERSION);
  app.formatter(std::make_shared<Usages>());
  app.require_subcommand(1);
  rota::tool::register_run(app);
  rota::tool::register_try(app);
  rota::tool::register_demo(app);
  rota::tool::register_sim(app);
  rota::tool::register_status(app);
  rota::tool::register_top(app);
  rota::tool::register_control(app);
  rota::tool::register_doctor(app);
  rota::tool::register_trace(app);
  rota::ci::register_ci(app);
  rota::report::register_report(app);
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (const std::string line = wrong_command(app, arguments); !line.empty()) {
    rota::tool::write_message(line);
    return 2;
  }
  drop_separator(app, arguments);
  std::reverse(arguments.begin(), arguments.end());  // the order that CLI11 expects
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    std::string command = "rota";
    for (auto used = failed->get_subcommands(); !used.empty(); used = used[0]->get_subcommands()) {
      command += " " + used[0]->get_name();
    }
    return command + ": " + rota::report::printable(error.what()) + "; `" + command + " --help` says more\n";
  });
  try {
    app.parse(arguments);
  } catch (const CLI::RuntimeError& end) {
    return rota::tool::end_as(end.get_exit_code());
  } catch (const CLI::ParseError& error) {
    std::ostringstream text;
    std::ostringstream problem;
    const int code = app.exit(error, text, problem);
    rota::tool::write_message(problem.str());
    if (code == 0) return rota::tool::print("rota", text.str()) ? 0 : 1;
    // Commands that start programs, or return the status of one, use the status of env and timeout, so that it cannot
    // be mistaken for the program's.
    const auto used = app.get_subcommands();
    const bool starts = !used.empty() && used[0]->get_subcommands().empty() &&
                        (app.got_subcommand("run") || app.got_subcommand("sim") || app.got_subcommand("trace") ||
                         app.got_subcommand("try") || app.got_subcommand("report") || app.got_subcommand("ci"));
    return starts ? 125 : 2;
  }
  return 0;
}
