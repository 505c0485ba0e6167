// `rota doctor [--json] [--verbose] [--timeout SECONDS] [--] [command …]`, and its hidden children.
#include "tools/rota/doctor/doctor.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "tools/rota/doctor/gather.h"
#include "tools/rota/doctor/output.h"
#include "tools/rota/doctor/probe.h"
#include "tools/rota/run/output.h"

namespace rota::tool {
namespace {

struct Choices {
  bool json = false;
  bool verbose = false;
  double seconds = 30;
};

// The arguments of a child; see probe.h.
struct ChildChoices {
  std::string driver, nvml, preload, directory;
  int report = -1;
};

void register_children(CLI::App& app) {
  auto choices = std::make_shared<ChildChoices>();
  CLI::App* probe = app.add_subcommand("doctor-probe", "")->group("");
  probe->add_option("--driver", choices->driver)->required();
  probe->add_option("--nvml", choices->nvml);
  CLI::App* trial = app.add_subcommand("doctor-trial", "")->group("");
  trial->add_option("--preload", choices->preload)->required();
  trial->add_option("--directory", choices->directory)->required();
  for (CLI::App* child : {probe, trial}) child->add_option("--report", choices->report)->required();
  probe->callback(
      [choices] { throw CLI::RuntimeError(doctor::probe_driver(choices->driver, choices->nvml, choices->report)); });
  trial->callback([choices] {
    throw CLI::RuntimeError(doctor::try_preload(choices->preload, choices->directory, choices->report));
  });
}

}  // namespace

void register_doctor(CLI::App& app) {
  auto choices = std::make_shared<Choices>();
  CLI::App* command = app.add_subcommand("doctor", "say what would stop rota on this machine and how to fix it");
  command->add_flag("--json", choices->json, "for programs");
  command->add_flag("--verbose", choices->verbose, "name the functions that only the driver or only rota has");
  command
      ->add_option("--timeout", choices->seconds,
                   "seconds to wait for the driver before it counts as hanging (default 30)")
      ->check(CLI::Range(0.01, 3600.0));
  // A program and its arguments: can rota be preloaded into it?
  command->prefix_command();
  command->callback([choices, command] {
    doctor::Options options;
    options.limit = std::chrono::milliseconds(static_cast<long>(choices->seconds * 1e3));
    const std::vector<std::string> rest = command->remaining();
    if (!rest.empty()) {
      if (rest[0].empty() || rest[0][0] == '-') throw CLI::ExtrasError({rest[0]});
      options.command = rest[0];
    }
    const doctor::Facts facts = doctor::gather(options);
    const doctor::Findings findings = doctor::judge(facts);
    const std::string text =
        choices->json ? doctor::as_json(findings, facts.version) : doctor::as_text(findings, choices->verbose);
    if (!print("rota doctor", text)) throw CLI::RuntimeError(1);
    throw CLI::RuntimeError(doctor::all_well(findings) ? 0 : 1);
  });
  register_children(app);
}

}  // namespace rota::tool
