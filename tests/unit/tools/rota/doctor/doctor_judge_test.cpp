// What `rota doctor` concludes about driver, GPUs and machine from facts made up here.
#include "tests/unit/tools/rota/doctor/doctor_support.h"

namespace rota::doctor {
namespace {

TEST_CASE("a healthy machine has nothing but good findings") {
  const Findings findings = judged(healthy());
  CHECK(complaints(healthy()).empty());
  CHECK(findings.size() >= 12);
}

TEST_CASE("a found driver is named with the file behind its link and how it was found") {
  const Finding finding = find(healthy(), "driver");
  CHECK(says(finding, "/usr/lib/libcuda.so.1 (/usr/lib/libcuda.so.580.1), found in the loader's cache"));
  Facts facts = healthy();
  facts.driver.place = tool::kPlaceVariable;
  facts.driver.file = facts.driver.path;
  CHECK(find(facts, "driver").text == "/usr/lib/libcuda.so.1, found by ROTA_REAL_LIBCUDA");
}

Facts without_driver() {
  Facts facts = healthy();
  facts.driver = {};
  facts.probe = {};
  facts.preload.trial.asked_driver = false;
  facts.preload.trial.version.reset();
  return facts;
}

TEST_CASE("no driver at all is a problem, with another remedy in a container") {
  Facts facts = without_driver();
  CHECK(only(facts).id == "driver");
  CHECK(only(facts).level == Level::kProblem);
  CHECK(advises(only(facts), "install the NVIDIA driver"));
  facts.host.container = "docker";
  CHECK(advises(only(facts), "--gpus all"));
}

TEST_CASE("a refused driver is named with the reason") {
  Facts facts = without_driver();
  facts.driver.search = Search::kRefused;
  facts.driver.path = "/tmp/x.so";
  facts.driver.why = "there is no such file";
  CHECK(only(facts).level == Level::kProblem);
  CHECK(only(facts).text == "ROTA_REAL_LIBCUDA is /tmp/x.so: there is no such file");
  CHECK(advises(only(facts), "unset it"));
}

TEST_CASE("a library that is passed over is a note, rota's own in the loader's cache a problem") {
  Facts facts = healthy();
  facts.driver.passed_over = {{"/opt/libcuda.so.1", tool::kPlaceLibraryPath, "it is not a shared library", false}};
  CHECK(only(facts).id == "driver.passed_over");
  CHECK(only(facts).level == Level::kNote);
  CHECK(says(only(facts), "/opt/libcuda.so.1 (LD_LIBRARY_PATH) is skipped: it is not a shared library"));
  facts.driver.passed_over = {{"/usr/lib/libcuda.so.1", tool::kPlaceLoaderCache, "it is rota's own", true}};
  CHECK(only(facts).id == "driver.loader_cache");
  CHECK(only(facts).level == Level::kProblem);
  CHECK(advises(only(facts), "ldconfig"));
  facts.driver.passed_over[0].place = tool::kPlaceLibraryPath;
  CHECK(only(facts).id == "driver.passed_over");
}

TEST_CASE("a driver that does not load is a problem with the loader's words") {
  Facts facts = healthy();
  facts.probe = {};
  facts.probe.end = End::kFinished;
  facts.probe.load_error = "libnvidia-x.so: cannot open";
  CHECK(only(facts).id == "driver.load");
  CHECK(says(only(facts), "libnvidia-x.so: cannot open"));
}

TEST_CASE("a driver that crashes, hangs or exits is a problem that names the call, and what was said before counts") {
  Facts facts = healthy();
  facts.probe.gpus.clear();
  facts.probe.init.reset();
  facts.probe.count.reset();
  facts.probe.step = "cuInit";
  facts.probe.end = End::kCrashed;
  facts.probe.detail = 11;
  facts.probe.output = "assertion";
  CHECK(only(facts).id == "driver.probe");
  CHECK(only(facts).level == Level::kProblem);
  CHECK(says(only(facts), "crashes (Segmentation fault), in cuInit; it printed: assertion"));
  CHECK(only(facts).values["signal"] == 11);
  facts.probe.end = End::kTimedOut;
  facts.probe.output.clear();
  CHECK(says(only(facts), "no answer within 30 s, in cuInit"));
  CHECK(advises(only(facts), "--timeout"));
  facts.probe.end = End::kFailed;
  facts.probe.detail = 3;
  CHECK(says(only(facts), "(exit 3), in cuInit"));
  CHECK(find(facts, "driver.version").level == Level::kOk);
}

TEST_CASE("the driver's version is compared with the covered releases") {
  Facts facts = healthy();
  CHECK(says(find(facts, "driver.version"), "CUDA 13.0; rota covers 11.7 to 13.5"));
  CHECK(version_text(12100) == "12.10");
  facts.probe.version = 11060;
  CHECK(only(facts).id == "driver.version");
  CHECK(only(facts).level == Level::kNote);
  CHECK(says(only(facts), "CUDA 11.6, older than what rota covers (11.7 to 13.5)"));
  facts.probe.version = 13060;
  CHECK(only(facts).level == Level::kNote);
  CHECK(says(only(facts), "CUDA 13.6, newer"));
  for (const int covered : {11070, 13050, 13051}) {
    facts.probe.version = covered;
    CHECK(complaints(facts).empty());
  }
  facts.probe.version.reset();
  CHECK(only(facts).id == "driver.version");
  CHECK(only(facts).level == Level::kWarning);
}

TEST_CASE("functions that rota does not know are a note, functions that the driver lacks are none") {
  Facts facts = healthy();
  facts.driver.missing = {"cuNew"};
  CHECK(complaints(facts).empty());
  CHECK(says(find(facts, "driver.exports"), "1 that rota knows is missing"));
  facts.driver.unknown = {"cuA", "cuB"};
  CHECK(only(facts).level == Level::kNote);
  CHECK(says(only(facts), "2 of the driver's 700 functions are unknown to rota"));
  CHECK(only(facts).values["unknown"] == nlohmann::json({"cuA", "cuB"}));
  facts.driver = healthy().driver;
  facts.driver.unreadable = "damaged";
  CHECK(only(facts).level == Level::kWarning);
}

Facts failing(int error) {
  Facts facts = healthy();
  facts.probe.init = error;
  facts.probe.count.reset();
  facts.probe.gpus.clear();
  facts.probe.nvml = {};
  return facts;
}

TEST_CASE("each error of cuInit is named with what people do about it") {
  const struct {
    int error;
    const char* name;
    const char* remedy;
  } kCases[] = {{2, "OUT_OF_MEMORY", "ulimit -v"},
                {34, "STUB_LIBRARY", "stubs"},
                {35, "INSUFFICIENT_DRIVER", "update"},
                {36, "REQUIRES_NEWER_DRIVER", "update"},
                {46, "DEVICE_UNAVAILABLE", "nvidia-smi -c 0"},
                {101, "INVALID_DEVICE", "CUDA_VISIBLE_DEVICES"},
                {102, "NOT_LICENSED", "licence"},
                {304, "OPERATING_SYSTEM", "/dev/nvidia"},
                {800, "NOT_PERMITTED", "forbids"},
                {801, "NOT_SUPPORTED", "driver that does"},
                {802, "SYSTEM_NOT_READY", "fabricmanager"},
                {803, "DRIVER_MISMATCH", "reboot"},
                {804, "COMPAT_NOT_SUPPORTED", "compat"},
                {805, "MPS_CONNECTION_FAILED", "MPS"},
                {806, "MPS_RPC_FAILURE", "MPS"},
                {807, "MPS_SERVER_NOT_READY", "MPS"},
                {808, "MPS_MAX_CLIENTS", "MPS"},
                {809, "MPS_MAX_CONNECTIONS", "MPS"},
                {810, "MPS_CLIENT_TERMINATED", "MPS"},
                {999, "UNKNOWN", "nvidia_uvm"},
                {719, "error 719", "dmesg"}};
  for (const auto& expected : kCases) {
    const Finding finding = only(failing(expected.error));
    INFO(finding.text << " -> " << finding.remedy);
    CHECK(finding.id == "driver.init");
    CHECK(finding.level == Level::kProblem);
    CHECK(says(finding, expected.name));
    CHECK(says(finding, std::to_string(expected.error)));
    CHECK(advises(finding, expected.remedy));
    CHECK(finding.values["error"] == expected.error);
  }
}

TEST_CASE("a mismatch names both versions, and the image's own driver in a container") {
  Facts facts = failing(803);
  facts.host.kernel_module = "570.2";
  CHECK(says(only(facts), "the kernel module has version 570.2, the library /usr/lib/libcuda.so.580.1"));
  facts.host.container = "docker";
  CHECK(advises(only(facts), "remove the libcuda.so.1 that is part of the image"));
}

TEST_CASE("where the driver sees no GPU, kernel module and device files say why") {
  Facts facts = failing(100);
  CHECK(says(only(facts), "CUDA_ERROR_NO_DEVICE (100)"));
  CHECK(advises(only(facts), "nvidia-smi lists"));
  facts.host.kernel_module.clear();
  CHECK(says(only(facts), "kernel module is not loaded"));
  CHECK(advises(only(facts), "modprobe nvidia"));
  facts.host.container = "docker";
  CHECK(advises(only(facts), "on the host"));
  facts.host.kernel_module = "580.1";
  facts.host.devices.clear();
  CHECK(advises(only(facts), "--gpus all"));
  facts.host.container.clear();
  CHECK(says(only(facts), "no /dev/nvidia0"));
  CHECK(advises(only(facts), "nvidia-modprobe -c=0"));
  facts.host.devices = {{"/dev/nvidia-uvm", true}, {"/dev/nvidia0", false}, {"/dev/nvidiactl", true}};
  CHECK(says(only(facts), "may not open /dev/nvidia0"));
  CHECK(advises(only(facts), "chmod a+rw /dev/nvidia0"));
  facts.host.container = "kubernetes";
  CHECK(advises(only(facts), "cgroup"));
  facts.host.container.clear();
  facts.host.devices = {{"/dev/nvidia0", true}, {"/dev/nvidiactl", true}};
  CHECK(says(only(facts), "no /dev/nvidia-uvm"));
  CHECK(advises(only(facts), "nvidia-modprobe -u"));
  facts.host.devices = {{"/dev/dxg", true}};
  facts.host.kernel_module.clear();  // WSL has neither
  CHECK(advises(only(facts), "nvidia-smi lists"));
}

TEST_CASE("a variable or MIG without instances may hide every GPU") {
  Facts facts = failing(100);
  facts.variables["CUDA_VISIBLE_DEVICES"] = "";
  CHECK(says(only(facts), "CUDA_VISIBLE_DEVICES='' shows none"));
  CHECK(advises(only(facts), "unset CUDA_VISIBLE_DEVICES"));
  facts = failing(0);
  CHECK(says(only(facts), "starts but shows no GPU"));
  facts = failing(100);
  facts.probe.nvml = {.asked = true, .error = 0, .driver_version = "", .gpus = {{"GPU-x", 1, 1}}};
  CHECK(says(find(facts, "driver.init"), "GPU-x is in MIG mode and has no instance"));
  CHECK(advises(find(facts, "driver.init"), "mig -cgi"));
  facts = failing(0);
  facts.probe.init.reset();
  CHECK(says(only(facts), "no working cuInit"));
}

TEST_CASE("a GPU's line says what it is and can") {
  const Finding gpu = find(healthy(), "gpu");
  CHECK(gpu.text ==
        "GPU 0: NVIDIA Test, 80.0 GiB, compute capability 9.0, GPU-00000000-0000-0000-0000-000000000000; Unified "
        "Memory, virtual memory management, memory pools");
  CHECK(gpu.values["bytes"] == 80 * kGiB);
  CHECK(gpu.values["compute_mode"] == "default");
  CHECK(gpu.values["concurrent_managed_access"] == true);
}

TEST_CASE("what a GPU cannot do is said of that GPU") {
  Facts facts = healthy();
  facts.probe.gpus[1].concurrent_managed = false;
  CHECK(only(facts).id == "gpu.managed");
  CHECK(only(facts).level == Level::kWarning);
  CHECK(says(only(facts), "GPU 1 cannot page Unified Memory"));
  facts.probe.gpus[1].managed = false;
  CHECK(says(only(facts), "GPU 1 has no Unified Memory"));
  facts = healthy();
  facts.probe.gpus[0].virtual_memory = false;
  CHECK(only(facts).id == "gpu.virtual_memory");
  CHECK(only(facts).level == Level::kNote);
  facts = healthy();
  facts.probe.gpus[0].compute_mode = 3;
  CHECK(only(facts).id == "gpu.compute_mode");
  CHECK(only(facts).level == Level::kProblem);
  CHECK(says(only(facts), "exclusive process"));
  CHECK(advises(only(facts), "nvidia-smi -i GPU-00000000-0000-0000-0000-000000000000 -c 0"));
  facts.probe.gpus[0].compute_mode = 2;
  CHECK(says(only(facts), "prohibited: no program may use it"));
}

TEST_CASE("MIG mode is noted, now and after the next reset") {
  Facts facts = healthy();
  facts.probe.nvml.gpus[0].mig_now = 1;
  CHECK(only(facts).id == "gpu.mig");
  CHECK(says(only(facts), "split by MIG"));
  facts.probe.nvml.gpus[0] = {.uuid = "GPU-x", .mig_now = 0, .mig_later = 1};
  CHECK(says(only(facts), "next reset"));
  facts.probe.nvml.gpus[0].mig_now = -1;
  facts.probe.nvml.gpus[0].mig_later = -1;
  CHECK(complaints(facts).empty());
}

TEST_CASE("GPUs that CUDA_VISIBLE_DEVICES hides are counted") {
  Facts facts = healthy();
  facts.probe.gpus.pop_back();
  facts.probe.count = 1;
  CHECK(complaints(facts).empty());
  facts.variables["CUDA_VISIBLE_DEVICES"] = "0";
  CHECK(only(facts).id == "gpu.hidden");
  CHECK(says(only(facts), "CUDA_VISIBLE_DEVICES=0 shows 1 and hides 1"));
  facts.probe.gpus = healthy().probe.gpus;
  CHECK(complaints(facts).empty());
}

TEST_CASE("a place for rotad that was passed over is warned of") {
  Facts facts = healthy();
  facts.daemon.skipped = "/tmp/rota-7 was skipped";
  CHECK(only(facts).id == "rotad.place");
  CHECK(says(only(facts), "/tmp/rota-7"));
}

TEST_CASE("a rotad that accepts connections and does not answer is a problem, with what helps") {
  Facts facts = healthy();
  facts.daemon.answered = false;
  facts.daemon.silent = "the rotad at /s (pid 12) is stopped: `kill -CONT 12` lets it go on";
  CHECK(only(facts).id == "rotad");
  CHECK(only(facts).level == Level::kProblem);
  CHECK(says(only(facts), "kill -CONT 12"));
}

TEST_CASE("a rotad that may have few open files is warned of") {
  Facts facts = healthy();
  facts.daemon.descriptors = 20;
  CHECK(only(facts).id == "rotad.limits");
  CHECK(says(only(facts), "20 open files"));
  facts.daemon.descriptors = 1024;
  CHECK(complaints(facts).empty());
}

TEST_CASE("a living MPS daemon is warned of, and its limits with it") {
  Facts facts = healthy();
  facts.variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = "50";
  CHECK(complaints(facts).empty());
  facts.host.mps = {.directory = "/tmp/nvidia-mps", .alive = true, .pid = 12};
  const Findings findings = complaints(facts);
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].id == "mps");
  CHECK(findings[0].level == Level::kWarning);
  CHECK(says(findings[0], "(pid 12)"));
  CHECK(findings[1].id == "mps.limit");
  CHECK(advises(findings[1], "unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
}

TEST_CASE("a variable that pins Unified Memory to the GPU is warned of") {
  Facts facts = healthy();
  facts.variables["CUDA_MANAGED_FORCE_DEVICE_ALLOC"] = "0";
  CHECK(complaints(facts).empty());
  facts.variables["CUDA_MANAGED_FORCE_DEVICE_ALLOC"] = "1";
  CHECK(only(facts).id == "cuda.force_device_alloc");
}

TEST_CASE("host memory is compared with the largest GPU that can use it") {
  Facts facts = healthy();
  facts.host.memory_free = 60 * kGiB;
  CHECK(only(facts).id == "host.memory");
  CHECK(only(facts).level == Level::kNote);
  CHECK(says(only(facts), "60.0 GiB of host memory"));
  facts.host.memory_free = 19 * kGiB;
  CHECK(only(facts).level == Level::kWarning);
  CHECK(advises(only(facts), "ROTA_GPU_MEM_LIMIT"));
  facts.variables["ROTA_MEMORY"] = "native";
  CHECK(complaints(facts).empty());
  facts = healthy();
  facts.host.cgroup_limit = 64 * kGiB;
  facts.host.cgroup_used = 54 * kGiB;
  CHECK(only(facts).level == Level::kWarning);
  CHECK(says(only(facts), "10.0 GiB of host memory"));
  CHECK(says(only(facts), "cgroup limit 64.0 GiB"));
  CHECK(advises(only(facts), "limits.memory"));
  facts.host.cgroup_used = 70 * kGiB;  // over it for a moment
  CHECK(only(facts).values["room_bytes"] == 0);
}

TEST_CASE("limits of the process that are too low are warned of") {
  Facts facts = healthy();
  facts.host.open_files = 64;
  CHECK(only(facts).id == "limits.open_files");
  CHECK(only(facts).remedy == "ulimit -n 4096");
  facts.host.open_files_max = 64;
  CHECK(advises(only(facts), "hard limit"));
  facts = healthy();
  facts.host.address_space = 8 * kGiB;
  CHECK(only(facts).id == "limits.address_space");
  facts = healthy();
  facts.host.locked_memory = 0;
  CHECK(complaints(facts).empty());
}

TEST_CASE("what the kernel lacks is said with what it means") {
  Facts facts = healthy();
  facts.host.membarrier = false;
  CHECK(only(facts).id == "kernel.membarrier");
  CHECK(only(facts).level == Level::kNote);
  facts.host.container = "docker";
  CHECK(advises(only(facts), "seccomp"));
  facts = healthy();
  facts.host.pidfd = false;
  CHECK(only(facts).id == "kernel.pidfd");
  CHECK(only(facts).level == Level::kWarning);
  facts = healthy();
  facts.host.sealed_memory = false;
  CHECK(only(facts).id == "kernel.sealed_memory");
  CHECK(only(facts).level == Level::kProblem);
}

TEST_CASE("where processes can be checkpointed, what the driver does not restore is a note") {
  Facts facts = healthy();
  facts.host.checkpoint_program = "/usr/bin/cuda-checkpoint";
  CHECK(only(facts).id == "host.checkpoint");
  CHECK(only(facts).level == Level::kNote);
  CHECK(says(only(facts), "/usr/bin/cuda-checkpoint"));
  CHECK(advises(only(facts), "--trust none"));
}

}  // namespace
}  // namespace rota::doctor
