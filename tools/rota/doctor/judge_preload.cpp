// The preload: do its files exist and come from one build, does a program reach the driver through it, what else hooks
// CUDA.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tools/rota/doctor/findings.h"

namespace rota::doctor {
namespace {

constexpr const char* kInstallAgain = "install rota again: cmake --install BUILD --prefix PREFIX";

void judge_files(const PreloadFacts& preload, Findings& findings) {
  std::string present;
  bool complete = true;
  for (const ShimFile& file : preload.files) {
    if (file.error == 0) {
      present += (present.empty() ? "" : ", ") + file.name;
      continue;
    }
    complete = false;
    findings.push_back(
        {"preload.files",
         file.required ? Level::kProblem : Level::kWarning,
         fmt::format("{}/{}: {}{}", preload.directory, file.name, strerror(file.error),
                     file.required ? ": programs run without rota" : ": " + file.without),
         file.error == EACCES ? "make it readable for all users: chmod a+r, and a+x for its folders" : kInstallAgain,
         {{"directory", preload.directory}, {"file", file.name}, {"error", file.error}}});
  }
  if (complete) {
    findings.push_back({"preload.files",
                        Level::kOk,
                        fmt::format("{} in {}", present, preload.directory),
                        "",
                        {{"directory", preload.directory}}});
  }
  if (!preload.problem.empty()) {
    findings.push_back({"preload.path",
                        Level::kProblem,
                        preload.problem,
                        "install rota in a folder whose path has neither spaces nor colons: the loader splits there",
                        {{"directory", preload.directory}}});
  }
}

// A driver with other functions than rota knows gets a copy of librota.so that shows just those.
void judge_fit(const PreloadFacts& preload, Findings& findings) {
  const nlohmann::json values = {{"library", preload.library}, {"fitted", preload.fitted}, {"note", preload.fit_note}};
  if (!preload.fit_note.empty()) {
    findings.push_back({"preload.fit", Level::kNote,
                        fmt::format("programs see functions that the driver lacks, or do not see all that it has: {}",
                                    preload.fit_note),
                        "make ROTA_CACHE or ~/.cache a folder that you can write to, or update rota", values});
  } else if (preload.fitted) {
    findings.push_back(
        {"preload.fit", Level::kOk, fmt::format("{} shows exactly what the driver has", preload.library), "", values});
  }
}

// "GLIBC_2.36" out of the loader's "version `GLIBC_2.36' not found (required by …)".
std::string missing_glibc(const std::string& words) {
  const std::size_t begin = words.find("GLIBC_2.");
  if (begin == std::string::npos || words.find("not found") == std::string::npos) return {};
  return words.substr(begin, words.find_first_not_of("GLIBC_.0123456789", begin) - begin);
}

// No finding if there is no NVML.
void judge_nvml(const PreloadFacts& preload, Findings& findings) {
  const nlohmann::json values = {{"library", preload.nvml_library}, {"note", preload.nvml_note}};
  if (!preload.nvml_note.empty()) {
    findings.push_back({"preload.nvml", Level::kNote, preload.nvml_note,
                        "make ROTA_CACHE or ~/.cache a folder that you can write to, or update rota", values});
  } else if (!preload.nvml_library.empty()) {
    findings.push_back(
        {"preload.nvml", Level::kOk,
         fmt::format("{} shows a program with a limit its own share in nvidia-smi", preload.nvml_library), "", values});
  }
}

void judge_trial_end(const PreloadFacts& preload, Findings& findings) {
  const TrialFacts& trial = preload.trial;
  const nlohmann::json values = {{"step", trial.step}, {"detail", trial.detail}, {"output", trial.output}};
  const std::string printed = trial.output.empty() ? "" : fmt::format("; it printed: {}", trial.output);
  std::string text;
  if (trial.end == End::kCrashed) text = fmt::format("crashes ({})", strsignal(trial.detail));
  if (trial.end == End::kTimedOut) text = "hangs";
  if (trial.end == End::kFailed) text = fmt::format("ends (exit {})", trial.detail);
  findings.push_back(
      {"preload.trial", Level::kProblem,
       fmt::format("a program under rota {} in {}{}", text, trial.step.empty() ? "its start" : trial.step, printed),
       "run it without rota, and report this with the output of `rota doctor --json`", values});
}

void judge_trial(const PreloadFacts& preload, Findings& findings) {
  const TrialFacts& trial = preload.trial;
  if (trial.end == End::kNotRun) return;
  if (trial.end != End::kFinished) return judge_trial_end(preload, findings);
  const auto problem = [&](std::string text, std::string remedy) {
    findings.push_back(
        {"preload.trial",
         Level::kProblem,
         std::move(text),
         std::move(remedy),
         {{"core_error", trial.core_error}, {"preloaded", trial.preloaded}, {"attached", trial.attached}}});
  };
  if (const std::string glibc = missing_glibc(trial.core_error); !glibc.empty()) {
    return problem(fmt::format("librota-core.so needs {}, which this system's C library does not have: programs run "
                               "without rota",
                               glibc),
                   "use rota's package, which runs from glibc 2.28 on, or the rota that was built for this system");
  }
  if (!trial.core_error.empty()) {
    return problem(fmt::format("librota-core.so does not load: {}: programs run without rota", trial.core_error),
                   kInstallAgain);
  }
  if (!trial.preloaded) {
    return problem(
        "the loader does not preload librota.so here: programs run without rota",
        "see whether LD_PRELOAD takes effect at all: AppArmor or a wrapper may drop it, and the loader ignores it for "
        "setuid and static programs");
  }
  if (!trial.attached) {
    const auto different = std::any_of(trial.lines.begin(), trial.lines.end(), [](const std::string& line) {
      return line.find("different builds") != std::string::npos;
    });
    return problem(different ? "librota.so and librota-core.so come from different builds: programs run without rota"
                             : "librota-core.so does not attach: programs run without rota",
                   kInstallAgain);
  }
  if (!trial.cudart_error.empty()) {
    findings.push_back({"preload.cudart",
                        Level::kWarning,
                        fmt::format("librota-cudart.so does not load: {}: rota trace does not see the runtime API",
                                    trial.cudart_error),
                        kInstallAgain,
                        {{"error", trial.cudart_error}}});
  }
  if (!trial.nvml_error.empty()) {
    findings.push_back({"preload.nvml",
                        Level::kWarning,
                        fmt::format("librota-nvml.so does not load: {}: nvidia-smi shows the whole GPU to a program "
                                    "with a limit",
                                    trial.nvml_error),
                        kInstallAgain,
                        {{"error", trial.nvml_error}}});
  }
  findings.push_back({"preload.trial",
                      Level::kOk,
                      trial.asked_driver && trial.version ? "a program under rota reaches the driver"
                                                          : "a program under rota loads all of it",
                      "",
                      {{"attached", true}}});
}

void judge_others(const PreloadFacts& preload, Findings& findings) {
  bool listed = false;
  for (const PreloadedLibrary& library : preload.libraries) {
    const nlohmann::json values = {{"path", library.path}, {"source", library.source}};
    if (library.ours) listed = true;
    if (!library.present && (library.ours || library.companion)) {
      findings.push_back({"preload.broken", Level::kWarning,
                          fmt::format("{} names {}, which does not exist: the loader says so whenever a program starts",
                                      library.source, library.path),
                          fmt::format("remove it from {}, or install rota there", library.source), values});
    } else if (library.cuda_functions > 0 && !library.ours && !library.companion) {
      findings.push_back({"preload.other", Level::kWarning,
                          fmt::format("{} names {}, which also hooks CUDA ({})", library.source, library.path,
                                      counted(library.cuda_functions, "function")),
                          fmt::format("remove it from {}: two tools that share GPUs (nvshare, HAMi) work against each "
                                      "other",
                                      library.source),
                          values});
    }
  }
  const nlohmann::json values = {{"in_force", preload.in_force}};
  if (preload.secure) {
    findings.push_back({"preload.in_force", Level::kWarning,
                        "this process runs with raised privileges, so the loader ignores LD_PRELOAD",
                        "run rota without setuid, setgid or file capabilities", values});
  } else if (preload.in_force) {
    findings.push_back({"preload.in_force", Level::kOk, "rota's preload is active in this process", "", values});
  } else if (listed) {
    findings.push_back({"preload.in_force", Level::kWarning, "rota's preload is set but not active in this process",
                        "see what the loader says: LD_DEBUG=libs /bin/true", values});
  } else {
    findings.push_back(
        {"preload.in_force", Level::kOk, "rota's preload is not active here: `rota run` sets it", "", values});
  }
}

void judge_command(const CommandFacts& command, bool simulated, Findings& findings) {
  const nlohmann::json values = {
      {"command", command.name}, {"path", command.path}, {"interpreter", command.interpreter}};
  if (command.error != 0) {
    findings.push_back({"command", Level::kProblem,
                        command.error == ENOENT ? fmt::format("{}: command not found", command.name)
                                                : fmt::format("{}: {}", command.path, strerror(command.error)),
                        "name a program that can be run, with its path if it is not in PATH", values});
  } else if (!command.uncovered.empty()) {
    findings.push_back(
        {"command", Level::kNote,
         fmt::format(
             "{} is {}: rota cannot be preloaded into it, so it runs without rota; programs that it starts are covered",
             command.interpreter, command.uncovered),
         command.uncovered == "statically linked" ? "link it dynamically, or start the CUDA program itself under rota"
                                                  : "start the CUDA program itself under rota",
         values});
  } else if (command.static_runtime && simulated) {
    findings.push_back({"command.runtime", Level::kProblem,
                        fmt::format("{} has a static CUDA runtime, which needs private tables of NVIDIA's driver; the "
                                    "driver here is simgpu, which has none: its CUDA calls fail",
                                    command.interpreter),
                        "compile it with `nvcc -cudart shared`, or run it on a GPU", values});
  } else {
    findings.push_back(
        {"command", Level::kOk, fmt::format("{} can be run under rota", command.interpreter), "", values});
  }
}

}  // namespace

void judge_preload(const Facts& facts, Findings& findings) {
  judge_files(facts.preload, findings);
  judge_fit(facts.preload, findings);
  judge_nvml(facts.preload, findings);
  judge_trial(facts.preload, findings);
  judge_others(facts.preload, findings);
  if (facts.command) judge_command(*facts.command, facts.driver.simulated, findings);
}

}  // namespace rota::doctor
