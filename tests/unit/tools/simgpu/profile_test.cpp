// Profiles: what is built in, and what is wrong with a file in one line.
#include "tools/simgpu/profile.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/unit/tools/simgpu/process.h"

using namespace rota::sim;
using simgpu_test::TemporaryFolder;

namespace {

// Why a file with this text cannot be used; empty: it can.
std::string problem(const TemporaryFolder& folder, const std::string& text, Profile* profile = nullptr) {
  std::string path = folder.file("card.toml");
  std::ofstream(path) << text;
  auto loaded = load_profile(path);
  if (!loaded) {
    CHECK(loaded.error().text.rfind(path, 0) == 0);  // the file is named
    return loaded.error().text.substr(path.size());
  }
  if (profile != nullptr) *profile = *loaded;
  return "";
}

}  // namespace

TEST_CASE("every profile that is built in says all there is, and no two are the same card") {
  std::vector<std::string> names = profile_names();
  CHECK(names == std::vector<std::string>{"h200", "h100", "a100", "l4", "t4", "rtx4090", "mig-1g"});
  CHECK(default_profile().name == "h200");
  for (const std::string& name : names) {
    INFO(name);
    auto loaded = load_profile(name);
    REQUIRE(loaded);
    const Profile& profile = *loaded;
    const CostFigures& cost = profile.cost;
    // A figure that the file does not give would be 0: nothing fills in for a built-in one.
    for (double rate : {cost.pinned_host_to_device, cost.pinned_device_to_host, cost.pageable_host_to_device,
                        cost.pageable_device_to_host, cost.peer, cost.link_raw, cost.device_bandwidth, cost.first_touch,
                        cost.first_touch_preferred, cost.fresh_prefetch, cost.prefetch_in}) {
      CHECK(rate > 1e9);
    }
    for (int64_t figure : {cost.copy_fixed_host_to_device, cost.copy_fixed_device_to_host, cost.link_payload,
                           cost.link_completion, cost.link_write, cost.link_request, cost.link_request_bytes,
                           cost.link_acknowledgement, cost.fault_piece, cost.launch, cost.launch_latency, cost.slice,
                           cost.context_switch, cost.call, cost.context_bytes, cost.context_share}) {
      CHECK(figure > 0);
    }
    CHECK(profile.device.memory >= uint64_t{1} << 30);
    CHECK(cost.duplex_host_to_device() < cost.pinned_host_to_device);
    CHECK(cost.duplex_device_to_host() < cost.pinned_device_to_host);
    // What goes over the wire in each direction, overheads included, is not more than it carries.
    CHECK(cost.pinned_host_to_device * (1 + static_cast<double>(cost.link_completion) / 256) < cost.link_raw);
    CHECK(cost.pinned_device_to_host * (1 + static_cast<double>(cost.link_write) / 256) < cost.link_raw);
    CHECK(cost.fault_in() < cost.first_touch);
  }
}

TEST_CASE("a file takes what it does not give from its base") {
  TemporaryFolder folder;
  Profile profile;
  CHECK(problem(folder, "base = \"t4\"\n[copy]\npeer = 5e9\n[device]\nname = \"mine\"\nmemory = \"2G\"\n", &profile) ==
        "");
  CHECK(profile.cost.peer == 5e9);
  CHECK(profile.cost.launch == load_profile("t4")->cost.launch);
  CHECK(profile.device.name == "mine");
  CHECK(profile.device.memory == uint64_t{2} << 30);
  CHECK(problem(folder, "", &profile) == "");
  CHECK(profile.cost.pinned_host_to_device == default_profile().cost.pinned_host_to_device);
}

TEST_CASE("what is wrong with a file is one line with its name, the line and the key") {
  TemporaryFolder folder;
  CHECK(problem(folder, "[copy]\n\npere = 5e9\n") == ":3: copy.pere: no such figure");
  CHECK(problem(folder, "[copy]\npeer = \"fast\"\n") == ":2: copy.peer: give a number");
  CHECK(problem(folder, "[compute]\nslice = 1.5\n") == ":2: compute.slice: give a whole number");
  CHECK(problem(folder, "[compute]\nslice = 0\n") == ":2: compute.slice: give 1 to 1e15");
  CHECK(problem(folder, "[compute]\nlaunch = -1\n") == ":2: compute.launch: give 0 to 1e15");
  CHECK(problem(folder, "[copy]\npeer = nan\n") == ":2: copy.peer: give 1 to 1e15");
  CHECK(problem(folder, "[copies]\npeer = 5e9\n") == ":2: copies.peer: no such figure");
  CHECK(problem(folder, "speed = 5\n") == ":1: speed: no such key");
  CHECK(problem(folder, "base = \"h300\"\n")
            .find("there is no profile 'h300': give h200, h100, a100, l4, t4, rtx4090, mig-1g") != std::string::npos);
  CHECK(problem(folder, "[device]\nmemory = \"1 byte\"\n").find(":2: device.memory: give bytes from") == 0);
  CHECK(problem(folder, "[device]\nname = 5\n").find(":2: device.name: give a string") == 0);
  CHECK(problem(folder, "[device.attributes]\nno_such_thing = 5\n").find(":2: device.attributes.no_such_thing: ") == 0);
  CHECK(problem(folder, "[copy\n").rfind(":1: ", 0) == 0);
  CHECK(load_profile("h300").error().text ==
        "there is no profile 'h300': give h200, h100, a100, l4, t4, rtx4090, mig-1g or a file's path");
  CHECK(load_profile("/nonexistent/card.toml").error().text == "cannot read the profile /nonexistent/card.toml");
  CHECK(load_profile("/proc/").error().text == "cannot read the profile /proc/");
}
