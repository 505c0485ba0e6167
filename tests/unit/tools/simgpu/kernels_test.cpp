// Libraries of kernels that are not as they should be.
#include <catch2/catch.hpp>
#include <fstream>

#include "tests/unit/tools/simgpu/process.h"

using namespace simgpu_test;

namespace {

std::string with_kernels(const std::string& libraries, const std::function<std::string(Library&)>& run) {
  TemporaryFolder folder;
  Child child([&] {
    Library library(folder.file("state"));
    setenv("ROTA_SIM_KERNELS", libraries.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): one thread
    return run(library);
  });
  return child.wait();
}

}  // namespace

TEST_CASE("a kernel that throws fails its launch, and the program goes on") {
  CHECK(with_kernels(SIMGPU_THROWING_KERNELS, [](Library& library) -> std::string {
          CUcontext context = nullptr;
          CUmodule module = nullptr;
          CUfunction function = nullptr;
          const char* image =
              ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry _Z6throwsv()\n{\n  ret;\n}\n";
          EXPECT_OK(CU(cuInit)(0));
          EXPECT_OK(CU(cuCtxCreate_v2)(&context, 0, 0));
          EXPECT_OK(CU(cuModuleLoadData)(&module, image));
          EXPECT_OK(CU(cuModuleGetFunction)(&function, module, "_Z6throwsv"));
          EXPECT_OK(CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
          EXPECT_RESULT(CUDA_ERROR_LAUNCH_FAILED, CU(cuCtxSynchronize)());
          EXPECT_OK(CU(cuCtxDestroy_v2)(context));
          EXPECT_OK(CU(cuCtxCreate_v2)(&context, 0, 0));
          EXPECT_OK(CU(cuCtxSynchronize)());
          return "";
        }) == "");
}

TEST_CASE("the driver does not start without a library of kernels that it is to have") {
  TemporaryFolder folder;
  std::ofstream(folder.file("text.so")) << "no library\n";
  for (const std::string& bad : {folder.file("nothing.so"), folder.file("text.so"), std::string(SIMGPU_LIBRARY)}) {
    CHECK(with_kernels(SIMGPU_KERNELS + (":" + bad), [](Library& library) -> std::string {
            EXPECT_RESULT(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, CU(cuInit)(0));
            return "";
          }) == "");
  }
}
