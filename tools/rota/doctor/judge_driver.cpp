// The driver: whether it exists, loads and answers, which release it is, and what it has that rota does not know.
#include <fmt/format.h>

#include <cstring>

#include "tools/rota/doctor/findings.h"
#include "tools/rota/run/preload.h"

namespace rota::doctor {
namespace {

void judge_search(const Facts& facts, Findings& findings) {
  const DriverFacts& driver = facts.driver;
  for (const PassedOver& other : driver.passed_over) {
    const nlohmann::json values = {{"path", other.path}, {"place", other.place}, {"why", other.why}};
    if (other.own && other.place == tool::kPlaceLoaderCache) {
      findings.push_back(
          {"driver.loader_cache", Level::kProblem,
           fmt::format("{} is rota's own library but is in the loader's cache: every program loads it as its driver",
                       other.path),
           "remove its folder from /etc/ld.so.conf and /etc/ld.so.conf.d, then run ldconfig; remove a "
           "libcuda.so.1 link that ldconfig made there",
           values});
    } else {
      findings.push_back(
          {"driver.passed_over", Level::kNote,
           fmt::format("{} ({}) is skipped: {}", other.path, other.place, other.why),
           "remove it, or if it is the one you meant, set ROTA_REAL_LIBCUDA to the driver's libcuda.so.1", values});
    }
  }
  switch (driver.search) {
    case Search::kFound: {
      const bool link = !driver.file.empty() && driver.file != driver.path;
      findings.push_back({"driver",
                          Level::kOk,
                          fmt::format("{}{}, found {} {}", driver.path, link ? " (" + driver.file + ")" : "",
                                      driver.place == tool::kPlaceVariable ? "by" : "in", driver.place),
                          "",
                          {{"path", driver.path}, {"file", driver.file}, {"place", driver.place}}});
      break;
    }
    case Search::kRefused:
      findings.push_back(
          {"driver",
           Level::kProblem,
           fmt::format("ROTA_REAL_LIBCUDA is {}: {}", driver.path, driver.why),
           "set it to the path of the NVIDIA driver's libcuda.so.1, or unset it to have the driver found",
           {{"path", driver.path}, {"why", driver.why}}});
      break;
    case Search::kNotFound:
      findings.push_back(
          {"driver", Level::kProblem, "no NVIDIA driver's libcuda.so.1 found on this machine",
           facts.host.container.empty()
               ? "install the NVIDIA driver; if it is in an unusual place, set ROTA_REAL_LIBCUDA to its libcuda.so.1"
               : "start the container with --gpus all (Kubernetes: ask for nvidia.com/gpu and install the device "
                 "plugin): the driver's libraries come from the host"});
      break;
  }
}

// How querying the driver ended, if it failed.
void judge_probe(const ProbeFacts& probe, Findings& findings) {
  nlohmann::json values = {{"step", probe.step}, {"output", probe.output}};
  const std::string where =
      fmt::format("in {}{}", probe.step, probe.output.empty() ? "" : fmt::format("; it printed: {}", probe.output));
  switch (probe.end) {
    case End::kNotRun:
    case End::kFinished:
      break;
    case End::kFailed:
      values["exit_code"] = probe.detail;
      findings.push_back({"driver.probe", Level::kProblem,
                          fmt::format("the driver ends the process that calls it (exit {}), {}", probe.detail, where),
                          "see whether nvidia-smi works and what dmesg says (NVRM, Xid); install the driver again",
                          values});
      break;
    case End::kCrashed:
      values["signal"] = probe.detail;
      findings.push_back({"driver.probe", Level::kProblem,
                          fmt::format("the driver crashes ({}), {}", strsignal(probe.detail), where),
                          "programs crash there too: see what dmesg says (NVRM, Xid) and install the driver again, in "
                          "the kernel module's version",
                          values});
      break;
    case End::kTimedOut:
      values["limit_seconds"] = probe.limit_seconds;
      findings.push_back(
          {"driver.probe", Level::kProblem,
           fmt::format("the driver hangs: no answer within {:g} s, {}", probe.limit_seconds, where),
           "see whether nvidia-smi hangs too and what dmesg says (NVRM, Xid); a GPU in that state needs a reset or a "
           "reboot; --timeout waits longer",
           values});
      break;
  }
  if (!probe.load_error.empty()) {
    findings.push_back(
        {"driver.load",
         Level::kProblem,
         fmt::format("the driver does not load: {}", probe.load_error),
         "install the driver again; the libraries it needs come with it (libnvidia-*.so of the same version)",
         {{"error", probe.load_error}}});
  }
}

void judge_version(const Facts& facts, Findings& findings) {
  if (!facts.probe.version) {
    findings.push_back({"driver.version", Level::kWarning, "the driver does not report its version",
                        "a CUDA driver has cuDriverGetVersion: see whether the file above is one"});
    return;
  }
  const int version = *facts.probe.version;
  const std::string covered =
      fmt::format("{} to {}", version_text(facts.oldest_covered), version_text(facts.newest_covered));
  const nlohmann::json values = {
      {"version", version}, {"oldest_covered", facts.oldest_covered}, {"newest_covered", facts.newest_covered}};
  if (version < facts.oldest_covered) {
    findings.push_back(
        {"driver.version", Level::kNote,
         fmt::format("the driver is for CUDA {}, older than what rota covers ({}): rota was tested only on simulated "
                     "drivers of that age",
                     version_text(version), covered),
         "update the driver if something does not work", values});
  } else if (version >= facts.newest_covered + 10) {
    findings.push_back({"driver.version", Level::kNote,
                        fmt::format("the driver is for CUDA {}, newer than what rota covers ({}): new functions "
                                    "pass through untouched",
                                    version_text(version), covered),
                        "update rota when programs begin to use them", values});
  } else {
    findings.push_back({"driver.version", Level::kOk,
                        fmt::format("the driver is for CUDA {}; rota covers {}", version_text(version), covered), "",
                        values});
  }
}

void judge_exports(const Facts& facts, Findings& findings) {
  const DriverFacts& driver = facts.driver;
  if (!driver.compared) return;
  if (!driver.unreadable.empty()) {
    findings.push_back({"driver.exports",
                        Level::kWarning,
                        fmt::format("cannot read the driver's exports: {}", driver.unreadable),
                        "install the driver again if programs have trouble with it",
                        {{"error", driver.unreadable}}});
    return;
  }
  const nlohmann::json values = {{"exports", driver.exports},
                                 {"known", facts.known_functions},
                                 {"unknown", driver.unknown},
                                 {"missing", driver.missing}};
  // Whether programs see these functions all the same is a finding of the preload.
  const std::string absent = driver.missing.empty()
                                 ? ""
                                 : fmt::format("; {} that rota knows {} missing", driver.missing.size(),
                                               driver.missing.size() == 1 ? "is" : "are");
  if (driver.unknown.empty()) {
    findings.push_back({"driver.exports", Level::kOk,
                        fmt::format("rota knows all {} of the driver's functions{}", driver.exports, absent), "",
                        values});
    return;
  }
  findings.push_back({"driver.exports", Level::kNote,
                      fmt::format("{} of the driver's {} functions {} unknown to rota and pass{} through untouched{}",
                                  driver.unknown.size(), driver.exports, driver.unknown.size() == 1 ? "is" : "are",
                                  driver.unknown.size() == 1 ? "es" : "", absent),
                      "update rota when programs begin to use them; --verbose and --json name them", values});
}

}  // namespace

void judge_driver(const Facts& facts, Findings& findings) {
  const ProbeFacts& probe = facts.probe;
  judge_search(facts, findings);
  judge_probe(probe, findings);
  // What was reported before a crash is valid. What was not reported is no separate finding then.
  const bool asked = probe.end == End::kFinished && probe.load_error.empty();
  if (asked || probe.version) judge_version(facts, findings);
  judge_exports(facts, findings);
  if (probe.init == 0 && probe.count.value_or(0) > 0) {
    findings.push_back(
        {"driver.init",
         Level::kOk,
         fmt::format("the driver starts and shows {}", counted(static_cast<std::size_t>(*probe.count), "GPU")),
         "",
         {{"error", 0}, {"count", *probe.count}}});
  } else if (asked || probe.init.value_or(0) != 0) {
    judge_init_error(facts, findings);
  }
}

}  // namespace rota::doctor
