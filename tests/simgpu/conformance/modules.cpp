// Modules: images, the functions and variables in them. The images are written as PTX here, so that it is known what is
// in them; their kernels carry the names of tests/programs/kernels.cu, which simgpu knows.
#include <cstdio>
#include <string>
#include <vector>

#include "tests/simgpu/conformance/conformance.h"

namespace {

const char kHeader[] = ".version 7.0\n.target sm_75\n.address_size 64\n";

// Two kernels and three variables.
std::string image() {
  return std::string(kHeader) +
         "// .entry not_an_entry() is in a comment\n"
         ".visible .global .align 4 .u32 answer = 42;\n"
         ".visible .global .align 8 .b8 table[64];\n"
         ".visible .const .align 4 .u32 pair[2] = {7, 9};\n"
         ".visible .entry " +
         Session::mangled("spin") + "(.param .u64 p0)\n{\n  ret;\n}\n.visible .entry " + Session::mangled("fill") +
         "(.param .u64 p0, .param .u64 p1, .param .u32 p2)\n{\n  ret;\n}\n";
}

CUmodule load(const std::string& text) {
  CUmodule module = nullptr;
  CHECK_OK(cu.cuModuleLoadData(&module, text.c_str()));
  return module;
}

CUdeviceptr global(CUmodule module, const char* name, size_t* bytes = nullptr) {
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuModuleGetGlobal_v2(&address, bytes, module, name));
  return address;
}

unsigned word(CUdeviceptr address) {
  unsigned value = 0;
  CHECK_OK(cu.cuMemcpyDtoH_v2(&value, address, sizeof value));
  return value;
}

std::string mangled(const char* name) {
  return Session::mangled(name);
}

}  // namespace

RULE(modules, loading_gives_a_module, "idle:cuModuleLoadData", "cuModuleLoadData of a PTX text gives a module") {
  Session session;
  CHECK(load(image()) != nullptr);
}

RULE(modules, loading_needs_a_context, "lenient:cuModuleLoadData",
     "cuModuleLoadData with no context current answers CUDA_ERROR_INVALID_CONTEXT") {
  CHECK_OK(cu.cuInit(0));
  CUmodule module = nullptr;
  CHECK_EQ(cu.cuModuleLoadData(&module, image().c_str()), CUDA_ERROR_INVALID_CONTEXT);
}

RULE(modules, what_is_no_image, "lenient:cuModuleLoadData",
     "cuModuleLoadData of a text that is no PTX fails and gives no module") {
  Session session;
  CUmodule module = nullptr;
  CHECK_NE(cu.cuModuleLoadData(&module, "this is no image of a module"), CUDA_SUCCESS);
  CHECK(module == nullptr);
}

RULE(modules, ptx_with_an_open_body, "lenient:cuModuleLoadData",
     "cuModuleLoadData of PTX whose last function does not end answers CUDA_ERROR_INVALID_PTX") {
  Session session;
  CUmodule module = nullptr;
  std::string text = std::string(kHeader) + ".visible .entry " + mangled("spin") + "(.param .u64 p0)\n{\n  ret;\n";
  CHECK_EQ(cu.cuModuleLoadData(&module, text.c_str()), CUDA_ERROR_INVALID_PTX);
}

RULE(modules, ptx_of_a_later_version, "lenient:cuModuleLoadData",
     "cuModuleLoadData of PTX of a version that is yet to come answers CUDA_ERROR_UNSUPPORTED_PTX_VERSION") {
  Session session;
  CUmodule module = nullptr;
  std::string text = ".version 99.0\n.target sm_75\n.address_size 64\n";
  CHECK_EQ(cu.cuModuleLoadData(&module, text.c_str()), CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
}

RULE(modules, files_that_are_not_there, "lenient:cuModuleLoad",
     "cuModuleLoad of a file that there is not answers CUDA_ERROR_FILE_NOT_FOUND") {
  Session session;
  CUmodule module = nullptr;
  CHECK_EQ(cu.cuModuleLoad(&module, "/nowhere/kernels.ptx"), CUDA_ERROR_FILE_NOT_FOUND);
}

RULE(modules, options_fill_the_logs, "idle:cuModuleLoadDataEx",
     "cuModuleLoadDataEx says in the option how much of the log buffer it filled, and ends the log with a zero byte") {
  Session session;
  char log[256];
  std::memset(log, 'x', sizeof log);
  CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CUmodule module = nullptr;
  CHECK_OK(cu.cuModuleLoadDataEx(&module, image().c_str(), 2, options, values));
  CHECK(std::memchr(log, 0, sizeof log) != nullptr);
  CHECK(reinterpret_cast<uintptr_t>(values[1]) < sizeof log);
}

RULE(modules, errors_are_logged, "idle:cuModuleLoadDataEx",
     "a PTX text that cannot be compiled leaves a message in the log of errors") {
  Session session;
  char log[1024] = {};
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CUmodule module = nullptr;
  std::string text = std::string(kHeader) + ".visible .entry " + mangled("spin") + "(.param .u64 p0)\n{\n  ret;\n";
  CHECK_NE(cu.cuModuleLoadDataEx(&module, text.c_str(), 2, options, values), CUDA_SUCCESS);
  CHECK(log[0] != '\0');
}

RULE(modules, functions_by_name, "idle:cuModuleGetFunction",
     "cuModuleGetFunction finds an entry of the image, the same handle each time") {
  Session session;
  CUmodule module = load(image());
  CUfunction first = nullptr;
  CUfunction second = nullptr;
  CHECK_OK(cu.cuModuleGetFunction(&first, module, mangled("spin").c_str()));
  CHECK_OK(cu.cuModuleGetFunction(&second, module, mangled("spin").c_str()));
  CHECK(first != nullptr);
  CHECK_EQ(first, second);
}

RULE(modules, functions_that_are_not_there, "lenient:cuModuleGetFunction",
     "cuModuleGetFunction of a name that the image has not answers CUDA_ERROR_NOT_FOUND") {
  Session session;
  CUfunction function = nullptr;
  CHECK_EQ(cu.cuModuleGetFunction(&function, load(image()), "not_an_entry"), CUDA_ERROR_NOT_FOUND);
}

RULE(modules, functions_of_other_modules, "images_hold_everything",
     "cuModuleGetFunction does not find a kernel that only another module has") {
  Session session;
  session.function("saxpy");
  CUfunction function = nullptr;
  CHECK_EQ(cu.cuModuleGetFunction(&function, load(image()), mangled("saxpy").c_str()), CUDA_ERROR_NOT_FOUND);
}

RULE(modules, functions_are_counted, "idle:cuModuleGetFunctionCount",
     "cuModuleGetFunctionCount tells how many entries the image has") {
  SKIP_UNLESS(exported("cuModuleGetFunctionCount"), "needs CUDA 12.4");
  Session session;
  unsigned count = 0;
  CHECK_OK(cu.cuModuleGetFunctionCount(&count, load(image())));
  CHECK_EQ(count, 2U);
}

RULE(modules, functions_are_listed, "idle:cuModuleEnumerateFunctions",
     "cuModuleEnumerateFunctions gives handles of the image's entries") {
  SKIP_UNLESS(exported("cuModuleEnumerateFunctions"), "needs CUDA 12.4");
  Session session;
  CUfunction functions[2] = {};
  CHECK_OK(cu.cuModuleEnumerateFunctions(functions, 2, load(image())));
  CHECK(functions[0] != nullptr && functions[1] != nullptr);
  const char* first = nullptr;
  const char* second = nullptr;
  CHECK_OK(cu.cuFuncGetName(&first, functions[0]));
  CHECK_OK(cu.cuFuncGetName(&second, functions[1]));
  std::string names = std::string(first) + " " + second;
  CHECK(names.find(mangled("spin")) != std::string::npos);
  CHECK(names.find(mangled("fill")) != std::string::npos);
}

RULE(modules, functions_know_their_module, "idle:cuFuncGetModule", "cuFuncGetModule gives the module of a function") {
  Session session;
  CUmodule module = load(image());
  CUfunction function = nullptr;
  CHECK_OK(cu.cuModuleGetFunction(&function, module, mangled("fill").c_str()));
  CUmodule found = nullptr;
  CHECK_OK(cu.cuFuncGetModule(&found, function));
  CHECK_EQ(found, module);
}

RULE(modules, parameters_are_laid_out, "idle:cuFuncGetParamInfo",
     "cuFuncGetParamInfo tells offset and size of each parameter, each aligned to its own size") {
  SKIP_UNLESS(exported("cuFuncGetParamInfo"), "needs CUDA 12.4");
  Session session;
  size_t offset = 77;
  size_t size = 77;
  CUfunction function = session.function("saxpy");  // int, float, const float*, float*
  CHECK_OK(cu.cuFuncGetParamInfo(function, 1, &offset, &size));
  CHECK_EQ(offset, 4U);
  CHECK_EQ(size, 4U);
  CHECK_OK(cu.cuFuncGetParamInfo(function, 3, &offset, &size));
  CHECK_EQ(offset, 16U);
  CHECK_EQ(size, 8U);
}

RULE(modules, parameters_end, "lenient:cuFuncGetParamInfo",
     "cuFuncGetParamInfo of a parameter behind the last answers CUDA_ERROR_INVALID_VALUE") {
  SKIP_UNLESS(exported("cuFuncGetParamInfo"), "needs CUDA 12.4");
  Session session;
  size_t offset = 0;
  size_t size = 0;
  CHECK_EQ(cu.cuFuncGetParamInfo(session.function("saxpy"), 4, &offset, &size), CUDA_ERROR_INVALID_VALUE);
}

RULE(modules, globals_have_a_size, "idle:cuModuleGetGlobal_v2",
     "cuModuleGetGlobal tells the address and the size of a variable") {
  Session session;
  CUmodule module = load(image());
  size_t bytes = 0;
  CHECK_NE(global(module, "answer", &bytes), 0U);
  CHECK_EQ(bytes, 4U);
  CHECK_NE(global(module, "table", &bytes), 0U);
  CHECK_EQ(bytes, 64U);
}

RULE(modules, globals_have_initial_values, "variables_start_as_zero",
     "a module's variables have the values that the image gives them, zeros without one") {
  Session session;
  CUmodule module = load(image());
  CHECK_EQ(word(global(module, "answer")), 42U);
  CHECK_EQ(word(global(module, "pair") + 4), 9U);
  CHECK_EQ(word(global(module, "table") + 60), 0U);
}

RULE(modules, globals_can_be_written, "variables_ignore_names", "a module's variables lie apart and can be written") {
  Session session;
  CUmodule module = load(image());
  CHECK_OK(cu.cuMemsetD32_v2(global(module, "table"), 5, 16));
  CHECK_EQ(word(global(module, "table") + 60), 5U);
  CHECK_EQ(word(global(module, "answer")), 42U);
}

RULE(modules, globals_either_place, "refuse:cuModuleGetGlobal_v2",
     "cuModuleGetGlobal does with the address alone, or the size alone") {
  Session session;
  CUmodule module = load(image());
  CUdeviceptr address = 0;
  size_t bytes = 0;
  CHECK_OK(cu.cuModuleGetGlobal_v2(&address, nullptr, module, "answer"));
  CHECK_OK(cu.cuModuleGetGlobal_v2(nullptr, &bytes, module, "answer"));
  CHECK_NE(address, 0U);
  CHECK_EQ(bytes, 4U);
}

RULE(modules, globals_that_are_not_there, "lenient:cuModuleGetGlobal_v2",
     "cuModuleGetGlobal of a name that the image has not answers CUDA_ERROR_NOT_FOUND") {
  Session session;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  CHECK_EQ(cu.cuModuleGetGlobal_v2(&address, &bytes, load(image()), "nothing"), CUDA_ERROR_NOT_FOUND);
}

RULE(modules, each_module_has_its_variables, "modules_share_variables",
     "an image that is loaded twice has its variables twice") {
  Session session;
  CUmodule first = load(image());
  CUmodule second = load(image());
  CHECK_NE(first, second);
  CHECK_NE(global(first, "answer"), global(second, "answer"));
  CHECK_OK(cu.cuMemsetD32_v2(global(first, "answer"), 1, 1));
  CHECK_EQ(word(global(second, "answer")), 42U);
}

RULE(modules, globals_are_not_freed, "lenient:cuMemFree_v2", "cuMemFree of a module's variable fails") {
  Session session;
  CUdeviceptr address = global(load(image()), "table");
  CHECK_NE(cu.cuMemFree_v2(address), CUDA_SUCCESS);
}

RULE(modules, kernels_use_the_globals, "variables_start_as_zero",
     "a kernel works on the variables of its own module, with their initial values") {
  Session session;
  size_t bytes = 0;
  CUdeviceptr counter = global(session.module(), "counter", &bytes);
  CHECK_EQ(bytes, 4U);
  CHECK_EQ(word(counter), 5U);
}

RULE(modules, unloading_ends_the_variables, "unload_keeps_variables",
     "after cuModuleUnload nothing is at the address of a variable of the module") {
  Session session;
  std::string text = std::string(kHeader) + ".visible .global .align 8 .b8 large[33554432];\n";
  CUmodule module = load(text);
  CUdeviceptr address = global(module, "large");
  CHECK_OK(cu.cuMemsetD8_v2(address, 1, 64));
  CHECK_OK(cu.cuModuleUnload(module));
  CHECK_NE(cu.cuMemsetD8_v2(address, 1, 64), CUDA_SUCCESS);
}

RULE(modules, unloading_needs_a_module, "lenient:cuModuleUnload", "cuModuleUnload of no module fails") {
  Session session;
  CHECK_NE(cu.cuModuleUnload(nullptr), CUDA_SUCCESS);
}

RULE(modules, functions_of_one_context, "functions_run_everywhere",
     "a module's function cannot be launched in another context") {
  Session session;
  CUfunction function = session.function("spin");
  CUcontext other = nullptr;
  CHECK_OK(cu.cuCtxCreate_v2(&other, 0, 0));
  CHECK_NE(launch(function, 1, 1, nullptr, 0UL), CUDA_SUCCESS);
}

RULE(modules, no_texture_references, "idle:cuModuleGetTexRef",
     "cuModuleGetTexRef of a name that the image has not fails") {
  Session session;
  CUtexref reference = nullptr;
  CHECK_NE(cu.cuModuleGetTexRef(&reference, load(image()), "nothing"), CUDA_SUCCESS);
}

RULE(modules, loading_mode_is_told, "idle:cuModuleGetLoadingMode",
     "cuModuleGetLoadingMode tells eager or lazy loading") {
  SKIP_UNLESS(exported("cuModuleGetLoadingMode"), "needs CUDA 11.7");
  Session session;
  auto mode = static_cast<CUmoduleLoadingMode>(0);
  CHECK_OK(cu.cuModuleGetLoadingMode(&mode));
  CHECK(mode == CU_MODULE_LAZY_LOADING || mode == CU_MODULE_EAGER_LOADING);
}
