// How faults on demand are written.
#include "tools/simgpu/driver/entry/faults.h"

#include <catch2/catch.hpp>
#include <string>

using rota::sim::Fault;
using rota::sim::Faults;
using rota::sim::parse_faults;

namespace {

Faults parsed(const std::string& text) {
  Faults faults;
  std::string error;
  REQUIRE(parse_faults(text, &faults, &error));
  return faults;
}

}  // namespace

TEST_CASE("a fault names a function, its calls and what they answer") {
  Faults faults =
      parsed("cuMemAlloc@3=CUDA_ERROR_OUT_OF_MEMORY,cuLaunchKernel@5+=719,cuCtxSynchronize@2=lost,copies=2.5");
  REQUIRE(faults.calls.size() == 3);
  CHECK(faults.calls[0].function == "cuMemAlloc");
  CHECK(faults.calls[0].call == 3);
  CHECK_FALSE(faults.calls[0].onwards);
  CHECK(faults.calls[0].error == rota::api::CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(faults.calls[1].onwards);
  CHECK(faults.calls[1].error == rota::api::CUDA_ERROR_LAUNCH_FAILED);
  CHECK(faults.calls[2].kind == Fault::Kind::kLost);
  CHECK(faults.copy_factor == 2.5);
  CHECK(parsed("cuMemFree@1=sticky:700").calls[0].kind == Fault::Kind::kSticky);
  CHECK_FALSE(faults.calls[0].if_full);
  const Fault full = parsed("cuCtxCreate@full=46").calls.at(0);
  CHECK(full.if_full);
  CHECK(full.error == rota::api::CUDA_ERROR_DEVICE_UNAVAILABLE);
}

TEST_CASE("a name without its version stands for all versions and stream forms, and for nothing longer") {
  const Fault fault{.function = "cuMemcpy"};
  CHECK(fault.names("cuMemcpy"));
  CHECK(fault.names("cuMemcpy_ptds"));
  CHECK_FALSE(fault.names("cuMemcpyAsync"));
  const Fault allocation{.function = "cuMemAlloc"};
  CHECK(allocation.names("cuMemAlloc_v2"));
  CHECK_FALSE(allocation.names("cuMemAllocManaged"));
  const Fault star{.function = "cuMemcpy*"};
  CHECK(star.names("cuMemcpyAsync_ptsz"));
  CHECK_FALSE(star.names("cuMemsetD8_v2"));
}

TEST_CASE("what is no fault is refused, naming the item") {
  for (const char* text :
       {"cuMemAlloc", "cuMemAlloc=2", "cuMemAlloc@0=2", "cuMemAlloc@x=2", "cuNothing@1=2",
        "cuMemAlloc@1=", "cuMemAlloc@1=NOTHING", "cuMemAlloc@1=0", "cuMemAlloc@1=12345", "copies=0.5",
        "cuCtxCreate@full=lost", "cuCtxCreate@full+=46", "cuCtxCreate@full=sticky:46", "copies=", "copies=x", "@1=2",
        "cuMemAlloc@1=sticky:", "cuMemAlloc@99999999999999999999=2"}) {
    Faults faults;
    std::string error;
    std::string list = "copies=2,";
    list += text;
    std::string quoted = "'";
    quoted.append(text).append("'");
    CHECK_FALSE(parse_faults(list, &faults, &error));
    CHECK(error.find(quoted) != std::string::npos);
  }
}
