// What `rota doctor` concludes about preload, rotad, settings and a command; how children report; what is printed.
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tests/unit/tools/rota/doctor/doctor_support.h"
#include "tools/rota/doctor/child.h"
#include "tools/rota/doctor/gather.h"
#include "tools/rota/doctor/output.h"

namespace rota::doctor {
namespace {

TEST_CASE("a missing shim is a problem, a missing runtime shim a warning, and each is named") {
  Facts facts = healthy();
  facts.preload.files[1].error = ENOENT;
  facts.preload.trial = {};
  CHECK(only(facts).id == "preload.files");
  CHECK(only(facts).level == Level::kProblem);
  CHECK(says(only(facts), "/usr/local/lib/rota/librota-core.so"));
  CHECK(advises(only(facts), "install rota again"));
  facts = healthy();
  facts.preload.files[2].error = EACCES;
  CHECK(only(facts).level == Level::kWarning);
  CHECK(says(only(facts), "no runtime API"));
  CHECK(advises(only(facts), "chmod"));
  facts = healthy();
  facts.preload.files[3].error = ENOENT;
  CHECK(only(facts).level == Level::kWarning);
  CHECK(says(only(facts), "librota-nvml.so: No such file or directory: no NVML"));
}

TEST_CASE("a folder that the loader cannot preload from is a problem") {
  Facts facts = healthy();
  facts.preload.problem = "/opt/my rota has a space";
  facts.preload.trial = {};
  CHECK(only(facts).id == "preload.path");
  CHECK(only(facts).level == Level::kProblem);
}

TEST_CASE("a fitted preload is well, one that could not be made is noted") {
  Facts facts = healthy();
  facts.preload.fitted = true;
  facts.preload.library = "/home/u/.cache/rota/librota.so";
  CHECK(says(find(facts, "preload.fit"), "/home/u/.cache/rota/librota.so shows exactly what the driver has"));
  facts.preload.fit_note = "cannot write";
  CHECK(only(facts).id == "preload.fit");
  CHECK(only(facts).level == Level::kNote);
}

TEST_CASE("a core that needs a newer C library is a problem that names the version") {
  Facts facts = healthy();
  facts.preload.trial.core_error =
      "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.36' not found (required by "
      "/usr/local/lib/rota/librota-core.so)";
  facts.preload.trial.attached = false;
  CHECK(only(facts).id == "preload.trial");
  CHECK(only(facts).level == Level::kProblem);
  CHECK(says(only(facts), "needs GLIBC_2.36, which"));
  CHECK(advises(only(facts), "glibc 2.28"));
  facts.preload.trial.core_error = "file too short";
  CHECK(says(only(facts), "librota-core.so does not load: file too short"));
  CHECK(advises(only(facts), "install rota again"));
}

TEST_CASE("a preload that is not in force, does not attach, crashes or hangs is a problem") {
  Facts facts = healthy();
  facts.preload.trial.attached = false;
  CHECK(says(only(facts), "does not attach"));
  facts.preload.trial.lines = {"librota.so and librota-core.so come from different builds; CUDA goes on without rota."};
  CHECK(says(only(facts), "different builds"));
  facts.preload.trial.preloaded = false;
  CHECK(says(only(facts), "does not preload"));
  facts.preload.trial.end = End::kCrashed;
  facts.preload.trial.detail = 6;
  facts.preload.trial.step = "the first CUDA call";
  CHECK(says(only(facts), "crashes (Aborted) in the first CUDA call"));
  facts.preload.trial.end = End::kTimedOut;
  CHECK(says(only(facts), "hangs"));
  facts.preload.trial.end = End::kFailed;
  facts.preload.trial.output = "symbol lookup error";
  facts.preload.trial.step.clear();
  CHECK(says(only(facts), "in its start; it printed: symbol lookup error"));
  facts = healthy();
  facts.preload.trial.cudart_error = "undefined symbol";
  CHECK(only(facts).id == "preload.cudart");
  CHECK(only(facts).level == Level::kWarning);
  facts = healthy();
  facts.preload.trial.nvml_error = "undefined symbol";
  CHECK(only(facts).id == "preload.nvml");
  CHECK(only(facts).level == Level::kWarning);
}

TEST_CASE("what is preloaded in front of NVML is said where there is one, and why nothing is") {
  Facts facts = healthy();
  CHECK(std::ranges::none_of(judge(facts), [](const Finding& finding) { return finding.id == "preload.nvml"; }));
  facts.preload.nvml_library = "/usr/local/lib/rota/librota-nvml.so";
  CHECK(find(facts, "preload.nvml").level == Level::kOk);
  CHECK(says(find(facts, "preload.nvml"), "/usr/local/lib/rota/librota-nvml.so"));
  facts.preload.nvml_library = "";
  facts.preload.nvml_note = "NVML is not preloaded";
  CHECK(only(facts).id == "preload.nvml");
  CHECK(only(facts).level == Level::kNote);
  CHECK(advises(only(facts), "ROTA_CACHE"));
}

TEST_CASE("the trial says whether it had a driver to reach") {
  Facts facts = healthy();
  CHECK(says(find(facts, "preload.trial"), "reaches the driver"));
  facts.preload.trial.asked_driver = false;
  CHECK_FALSE(says(find(facts, "preload.trial"), "reaches the driver"));
}

TEST_CASE("other tools that hook CUDA are warned of, harmless preloads are not") {
  Facts facts = healthy();
  facts.preload.libraries = {{.path = "/usr/lib/libjemalloc.so", .source = "LD_PRELOAD", .present = true}};
  CHECK(complaints(facts).empty());
  facts.preload.libraries[0] = {
      .path = "/opt/libnvshare.so", .source = "/etc/ld.so.preload", .present = true, .cuda_functions = 15};
  CHECK(only(facts).id == "preload.other");
  CHECK(only(facts).level == Level::kWarning);
  CHECK(says(only(facts), "/etc/ld.so.preload names /opt/libnvshare.so, which also hooks CUDA (15 functions)"));
}

TEST_CASE("rota's own preload: in force, set but not in force, gone, or out of reach") {
  Facts facts = healthy();
  CHECK(says(find(facts, "preload.in_force"), "not active here"));
  facts.preload.libraries = {
      {.path = "/l/librota.so", .source = "LD_PRELOAD", .present = true, .ours = true, .cuda_functions = 700},
      {.path = "/l/librota-cudart.so", .source = "LD_PRELOAD", .present = true, .companion = true}};
  facts.preload.in_force = true;
  CHECK(complaints(facts).empty());
  facts.preload.in_force = false;
  CHECK(only(facts).id == "preload.in_force");
  CHECK(only(facts).level == Level::kWarning);
  facts.preload.in_force = true;
  facts.preload.libraries[1].present = false;
  CHECK(only(facts).id == "preload.broken");
  facts = healthy();
  facts.preload.secure = true;
  CHECK(says(only(facts), "raised privileges"));
}

TEST_CASE("a static CUDA runtime is in reach on a real driver, and not on simgpu") {
  Facts facts = healthy();
  facts.command =
      CommandFacts{.name = "a.out", .path = "a.out", .interpreter = "a.out", .uncovered = "", .static_runtime = true};
  CHECK(complaints(facts).empty());
  facts.driver.simulated = true;
  CHECK(only(facts).id == "command.runtime");
  CHECK(only(facts).level == Level::kProblem);
  CHECK(advises(only(facts), "nvcc -cudart shared"));
}

TEST_CASE("a command is in reach, out of reach, or not there") {
  Facts facts = healthy();
  facts.command = CommandFacts{.name = "python", .path = "/bin/python", .interpreter = "/bin/python", .uncovered = ""};
  CHECK(says(find(facts, "command"), "/bin/python can be run under rota"));
  facts.command->uncovered = "statically linked";
  CHECK(only(facts).id == "command");
  CHECK(only(facts).level == Level::kNote);
  facts.command->error = ENOENT;
  CHECK(only(facts).level == Level::kProblem);
  CHECK(says(only(facts), "python: command not found"));
  facts.command->error = EACCES;
  CHECK(says(only(facts), "Permission denied"));
}

TEST_CASE("an absent rotad is a note, and a warning where programs wait for it") {
  Facts facts = healthy();
  facts.daemon.error = ECONNREFUSED;
  facts.daemon.answered = false;
  facts.daemon.places = {"/run/a", "/tmp/b"};
  CHECK(only(facts).id == "rotad");
  CHECK(only(facts).level == Level::kNote);
  CHECK(says(only(facts), "/run/a, /tmp/b"));
  CHECK(advises(only(facts), "`rota run` starts one"));
  facts.variables["ROTA_WAIT"] = "1";
  CHECK(only(facts).level == Level::kWarning);
  CHECK(says(only(facts), "ROTA_WAIT=1"));
  facts.daemon.program = "/usr/bin/rotad";
  facts.daemon.program_error = ENOENT;
  CHECK(only(facts).level == Level::kProblem);
  CHECK(says(only(facts), "/usr/bin/rotad cannot be started: No such file"));
}

TEST_CASE("each way in which a rotad cannot be used is told apart") {
  Facts facts = healthy();
  facts.daemon.answered = false;
  const struct {
    int error;
    const char* text;
  } kCases[] = {{0, "does not answer"},       {EACCES, "may not connect"},  {EPERM, "another user owns"},
                {EPROTOTYPE, "is not rotad"}, {ENAMETOOLONG, "4095 bytes"}, {EMFILE, "Too many open files"}};
  for (const auto& expected : kCases) {
    facts.daemon.error = expected.error;
    CHECK(only(facts).id == "rotad");
    CHECK(only(facts).level == Level::kProblem);
    CHECK(says(only(facts), expected.text));
  }
}

TEST_CASE("a GPU that another rotad has is named with its user, and with the remedy for the one who asks") {
  Facts facts = healthy();
  facts.daemon.socket = "/tmp/rota-7/rotad.sock";
  tool::GpuHolder& holder = facts.daemon.elsewhere.emplace_back();
  holder = {.gpu = "GPU-1",
            .name = "H100",
            .pid = 12,
            .uid = 4242,
            .user = "alice",
            .socket = "/tmp/rota-4242/rotad.sock",
            .programs = 2,
            .machine = false};
  CHECK(only(facts).id == "rotad.elsewhere");
  CHECK(only(facts).level == Level::kWarning);
  CHECK(says(only(facts), "another rotad, of alice (pid 12) at /tmp/rota-4242/rotad.sock, has GPU-1"));
  CHECK(
      advises(only(facts), "ask for one rotad for all users, which root starts: rotad --socket /run/rota/rotad.sock"));
  holder.uid = geteuid();
  CHECK(advises(only(facts), "set ROTA_SOCKET=/tmp/rota-4242/rotad.sock"));
  holder.uid = 0;
  holder.machine = true;
  CHECK(advises(only(facts), "unset ROTA_SOCKET"));
  holder.machine = false;
  facts.daemon.socket = "/run/rota/rotad.sock";
  CHECK(only(facts).level == Level::kNote);
}

TEST_CASE("a rotad of another version is a warning, of another protocol a problem") {
  Facts facts = healthy();
  facts.daemon.version = "0.2.0";
  CHECK(only(facts).id == "rotad.version");
  CHECK(only(facts).level == Level::kWarning);
  CHECK(says(only(facts), "rotad belongs to rota 0.2.0, this is rota 0.1.0"));
  facts.daemon.version.clear();
  CHECK(only(facts).level == Level::kWarning);
  facts.daemon.answered = false;
  facts.daemon.other_protocol = 9;
  CHECK(only(facts).level == Level::kProblem);
  CHECK(says(only(facts), "speaks version 9 of the protocol, this rota version 1"));
}

TEST_CASE("settings are shown, misspelt ones with the name that was meant") {
  Facts facts = healthy();
  CHECK(says(find(facts, "settings"), "no ROTA_* variable"));
  facts.variables = {{"ROTA_GPU_MEM_LIMIT", "8G"}, {"ROTA_MEMORY", "managed"}, {"CUDA_HOME", "/usr/local/cuda"}};
  CHECK(find(facts, "settings").text == "ROTA_GPU_MEM_LIMIT=8G, ROTA_MEMORY=managed");
  facts.variables = {{"ROTA_GPU_MEM_LIMT", "8G"}};
  CHECK(only(facts).id == "settings.unknown");
  CHECK(only(facts).level == Level::kWarning);
  CHECK(only(facts).remedy == "did you mean ROTA_GPU_MEM_LIMIT?");
  facts.variables = {{"ROTA_XYZZY_PLUGH", "1"}};
  CHECK(advises(only(facts), "unset ROTA_XYZZY_PLUGH"));
}

TEST_CASE("the nearest variable is the one with the fewest letters changed") {
  CHECK(nearest_variable("ROTA_SOKET") == "ROTA_SOCKET");
  CHECK(nearest_variable("ROTA_MEM_LIMIT") == "ROTA_GPU_MEM_LIMIT");
  CHECK(nearest_variable("ROTA_REAL_LIBCUDA_PATH") == "ROTA_REAL_LIBCUDA");
  CHECK(nearest_variable("ROTA_").empty());
  CHECK(nearest_variable("SOMETHING_ELSE_ALTOGETHER").empty());
}

TEST_CASE("what the shim says of a setting becomes a finding of its own") {
  Facts facts = healthy();
  facts.variables = {{"ROTA_MEMORY", "hologram"}};
  facts.preload.trial.lines = {"ROTA_MEMORY is 'hologram': use managed or native; the default is used",
                               "the real driver is /usr/lib/libcuda.so.1",
                               "ROTA_REAL_LIBCUDA is /nonexistent/libcuda.so.1: there is no such file"};
  CHECK(only(facts).id == "settings.invalid");
  CHECK(only(facts).text == "ROTA_MEMORY is 'hologram'");
  CHECK(only(facts).remedy == "use managed or native; the default is used");
  facts = healthy();
  facts.variables = {{"ROTA_WAIT", "yes"}};
  CHECK(only(facts).id == "settings.invalid");
  facts.variables = {{"ROTA_TRACE_MAX_BYTES", "1X"}};
  CHECK(only(facts).id == "settings.invalid");
  facts.variables = {{"ROTA_TRACE_MAX_BYTES", "64m"}};
  CHECK(complaints(facts).empty());
}

TEST_CASE("a child's report counts up to its last complete line") {
  const auto report =
      merge_report("{\"step\":\"a\",\"version\":13000}\nnonsense\n[1]\n{\"step\":\"cuInit\"}\n{\"step\":\"cut off");
  CHECK(report == nlohmann::json({{"step", "cuInit"}, {"version", 13000}}));
}

TEST_CASE("facts from a child's report leave out what is missing or of another type") {
  ChildResult result;
  result.end = End::kFinished;
  result.report = {{"version", "13"}, {"init", 100},
                   {"step", 5},       {"gpus", {1, {{"index", 2}, {"name", "G"}, {"managed", 1}, {"bytes", -5.5}}}},
                   {"nvml", 0},       {"nvml_gpus", {{{"uuid", "GPU-1"}, {"mig_now", 1}}}}};
  result.output = "first\nthe last \x1b[31mline\n\n";
  const ProbeFacts facts = probe_facts(result, std::chrono::milliseconds(1500));
  CHECK_FALSE(facts.version);
  CHECK(facts.init == 100);
  CHECK(facts.step == "its start");
  CHECK(facts.output == "the last  [31mline");
  CHECK(facts.limit_seconds == 1.5);
  REQUIRE(facts.gpus.size() == 1);
  CHECK(facts.gpus[0].index == 2);
  CHECK(facts.gpus[0].managed);
  CHECK_FALSE(facts.gpus[0].virtual_memory);
  CHECK(facts.nvml.asked);
  REQUIRE(facts.nvml.gpus.size() == 1);
  CHECK(facts.nvml.gpus[0].mig_later == -1);
}

TEST_CASE("a GPU has the number that nvidia-smi gives it, whatever the driver's order is") {
  ChildResult result;
  result.end = End::kFinished;
  result.report = {{"gpus", {{{"index", 0}, {"uuid", "GPU-b"}}, {{"index", 1}, {"uuid", "GPU-c"}}}},
                   {"nvml", 0},
                   {"nvml_gpus", {{{"uuid", "GPU-a"}, {"number", 0}}, {{"uuid", "GPU-b"}, {"number", 1}}}}};
  const ProbeFacts facts = probe_facts(result, std::chrono::milliseconds(1500));
  REQUIRE(facts.gpus.size() == 2);
  CHECK(facts.gpus[0].index == 1);
  CHECK(facts.gpus[1].index == 1);  // as the driver has it: NVML does not know it
}

TEST_CASE("a trial is attached unless the shim says that CUDA goes on without it") {
  ChildResult result;
  result.end = End::kFinished;
  result.report = {{"preloaded", true}, {"core_error", ""}, {"result", 0}, {"version", 13000}};
  result.output = "rota: ROTA_MEMORY is 'x': use y\nnot rota's\n";
  TrialFacts facts = trial_facts(result, true);
  CHECK(facts.attached);
  CHECK(facts.version == 13000);
  CHECK(facts.lines == std::vector<std::string>{"ROTA_MEMORY is 'x': use y"});
  result.output = "rota: rota could not start in this process; CUDA goes on without it\n";
  CHECK_FALSE(trial_facts(result, true).attached);
  result.output.clear();
  result.report["core_error"] = "no";
  CHECK_FALSE(trial_facts(result, true).attached);
}

TEST_CASE("the cgroup with the least memory left decides, page cache does not count") {
  HostFacts host;
  host.memory = 100 * kGiB;
  read_cgroup("max\n", "5\n", "", host);
  CHECK(host.cgroup_limit == 0);
  read_cgroup("9223372036854771712\n", "5\n", "", host);
  CHECK(host.cgroup_limit == 0);
  read_cgroup("10737418240\n", "6442450944\n", "anon 1\ninactive_file 2147483648\nactive_file 1073741824\n", host);
  CHECK(host.cgroup_limit == 10 * kGiB);
  CHECK(host.cgroup_used == 3 * kGiB);
  read_cgroup("21474836480\n", "0\n", "", host);
  CHECK(host.cgroup_limit == 10 * kGiB);
  read_cgroup("5368709120\n", "1073741824\n", "", host);
  CHECK(host.cgroup_limit == 5 * kGiB);
  read_cgroup("", "", "", host);
  CHECK(host.cgroup_limit == 5 * kGiB);
}

TEST_CASE("the kernel module's version is read in both of its spellings") {
  CHECK(kernel_module_version(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\nGCC version: 12.3") ==
        "535.129.03");
  CHECK(kernel_module_version("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build") ==
        "580.159.04");
  CHECK(kernel_module_version("NVRM version: NVIDIA UNIX Kernel Module 7 580.1") == "580.1");
  CHECK(kernel_module_version("").empty());
}

TEST_CASE("preload lists are split as the loader does") {
  CHECK(preload_entries("/a.so:/b.so  c.so") == std::vector<std::string>{"/a.so", "/b.so", "c.so"});
  CHECK(preload_entries("# none\n/a.so # why\n").size() == 1);
  CHECK(preload_entries("").empty());
}

TEST_CASE("people get one aligned line for each finding, with the remedy below and a count at the end") {
  const Findings findings = {{"driver", Level::kOk, "all well", "", {}},
                             {"driver.exports", Level::kNote, "2 unknown", "update", {{"unknown", {"cuA", "cuB"}}}},
                             {"mps", Level::kProblem, "bad", "end it", {}}};
  CHECK(as_text(findings, false) ==
        "ok      driver          all well\n"
        "note    driver.exports  2 unknown\n"
        "                        -> update\n"
        "problem mps             bad\n"
        "                        -> end it\n"
        "\nrota does not work here: 1 problem, 0 warnings, 1 note\n");
  CHECK(as_text(findings, true).find("unknown to rota: cuB\n") != std::string::npos);
  CHECK_FALSE(all_well(findings));
  CHECK(all_well({findings[0], findings[1]}));
}

TEST_CASE("programs get an object with every finding, whatever bytes are in it") {
  const Findings findings = {{"driver", Level::kWarning, "odd \xff name", "rename", {{"path", "\xfe"}}}};
  const auto parsed = nlohmann::json::parse(as_json(findings, "0.1.0"));
  CHECK(parsed["version"] == "0.1.0");
  CHECK(parsed["ok"] == true);
  CHECK(parsed["counts"]["warning"] == 1);
  CHECK(parsed["counts"]["problem"] == 0);
  REQUIRE(parsed["findings"].size() == 1);
  CHECK(parsed["findings"][0]["id"] == "driver");
  CHECK(parsed["findings"][0]["level"] == "warning");
  CHECK(parsed["findings"][0]["remedy"] == "rename");
  CHECK(parsed["findings"][0]["values"].contains("path"));
}

}  // namespace
}  // namespace rota::doctor
