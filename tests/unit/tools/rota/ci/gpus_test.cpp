// Which GPUs `rota ci --gpus-per-test` spreads tests over, by what a driver shows.
#include <catch2/catch.hpp>

#include "tools/rota/ci/gpus.h"

namespace {

using namespace rota;
using namespace rota::ci;

using Names = std::vector<std::string>;
using Shown = Result<std::vector<VisibleGpu>>;

// A driver that shows these to those who name them, and `all` to those who name none.
ShowGpus driver_with(const std::map<std::string, Names>& visible, const Names& all) {
  return [=](const std::optional<std::string>& names) -> Shown {
    const auto found = names ? visible.find(*names) : visible.end();
    std::vector<VisibleGpu> gpus;
    for (const std::string& uuid : names ? (found != visible.end() ? found->second : Names{}) : all) {
      gpus.push_back({uuid, "", 1000});
    }
    return gpus;
  };
}

Names names_of(const Result<std::vector<VisibleGpu>>& gpus) {
  Names names;
  REQUIRE(gpus);
  for (const VisibleGpu& gpu : *gpus) names.push_back(gpu.name);
  return names;
}

}  // namespace

TEST_CASE("GPUs are named by their UUIDs, in the driver's order, of those that the command sees") {
  const ShowGpus show =
      driver_with({{"2,0", {"GPU-c", "GPU-a"}}, {"GPU-c,GPU-a", {"GPU-c", "GPU-a"}}}, {"GPU-a", "GPU-b", "GPU-c"});
  CHECK(names_of(find_gpus("2,0", 1, show)) == Names{"GPU-c", "GPU-a"});
}

TEST_CASE("more GPUs for a test than the command sees are an error that names both numbers") {
  const ShowGpus two = driver_with({{"GPU-a,GPU-b", {"GPU-a", "GPU-b"}}, {"0", {"GPU-a"}}}, {"GPU-a", "GPU-b"});
  CHECK(find_gpus(std::nullopt, 2, two));
  CHECK(find_gpus(std::nullopt, 3, two).error().text == "--gpus-per-test 3: the command sees 2 GPUs; use at most 2");
  CHECK(find_gpus("0", 2, two).error().text == "--gpus-per-test 2: the command sees 1 GPU; use 1");
  CHECK(find_gpus("", 1, two).error().text == "--gpus-per-test 1: the command sees no GPU; `rota doctor` says why");
}

TEST_CASE("each MIG instance that CUDA_VISIBLE_DEVICES names can be a test's, although a process sees only one") {
  const ShowGpus show =
      driver_with({{"MIG-1", {"GPU-1"}}, {"MIG-GPU-x/2/0", {"GPU-2"}}, {"MIG-1,MIG-GPU-x/2/0", {"GPU-1"}}}, {});
  CHECK(names_of(find_gpus("MIG-1,MIG-GPU-x/2/0,MIG-1", 1, show)) == Names{"MIG-1", "MIG-GPU-x/2/0"});
  CHECK(names_of(find_gpus("MIG-1,MIG-gone,MIG-GPU-x/2/0", 1, show)) == Names{"MIG-1"});
  CHECK(find_gpus("MIG-1,MIG-GPU-x/2/0", 2, show).error().text ==
        "--gpus-per-test 2: CUDA_VISIBLE_DEVICES names MIG instances, and a process sees 1 of them at most; use 1");
}

TEST_CASE("a MIG instance that the driver shows by itself is named as one") {
  CHECK(names_of(find_gpus(std::nullopt, 1, driver_with({{"MIG-1", {"GPU-1"}}}, {"GPU-1"}))) == Names{"MIG-1"});
}

TEST_CASE("more GPUs than rotad chooses among are refused with what to do") {
  const WhoSees who{"--gpus", "program"};
  CHECK(too_many_text(16, 16, who).empty());
  CHECK(too_many_text(17, 16, who) ==
        "the program sees 17 GPUs, and rota chooses among 16 at most; name up to 16 of them in CUDA_VISIBLE_DEVICES");
}

TEST_CASE("a driver that does not know its GPUs by name is an error") {
  CHECK(find_gpus(std::nullopt, 1, driver_with({}, {"GPU-a"})).error().text ==
        "--gpus-per-test 1: the driver does not show its GPUs by their UUIDs in CUDA_VISIBLE_DEVICES");
}
