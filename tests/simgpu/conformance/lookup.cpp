// Starting the driver, finding its functions, and the names of errors.
#include <dlfcn.h>

#include <string>
#include <thread>

#include "tests/simgpu/conformance/conformance.h"

namespace {

// What dlsym finds in the driver's library.
void* symbol(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  CHECK(library != nullptr);
  return dlsym(library, name);
}

struct Found {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
};

Found find(const char* name, int version, cuuint64_t flags = CU_GET_PROC_ADDRESS_DEFAULT) {
  Found found;
  CHECK_OK(cu.cuGetProcAddress_v2(name, &found.function, version, flags, &found.status));
  return found;
}

int driver_version() {
  int version = 0;
  CHECK_OK(cu.cuDriverGetVersion(&version));
  return version;
}

}  // namespace

RULE(lookup, init_refuses_flags, "lenient:cuInit", "cuInit with flags other than 0 answers CUDA_ERROR_INVALID_VALUE") {
  CHECK_EQ(cu.cuInit(1), CUDA_ERROR_INVALID_VALUE);
}

RULE(lookup, init_can_be_repeated, "refuse:cuInit", "cuInit may be called again and has no further effect") {
  CHECK_OK(cu.cuInit(0));
  CUcontext context = nullptr;
  CHECK_OK(cu.cuDevicePrimaryCtxRetain(&context, 0));
  CHECK_OK(cu.cuCtxSetCurrent(context));
  CHECK_OK(cu.cuInit(0));
  CUcontext current = nullptr;
  CHECK_OK(cu.cuCtxGetCurrent(&current));
  CHECK_EQ(current, context);
}

RULE(lookup, init_on_several_threads, "refuse:cuInit", "cuInit may be called by several threads at once") {
  CUresult results[4] = {};
  std::thread threads[4];
  for (int index = 0; index < 4; ++index) {
    threads[index] = std::thread([&results, index] { results[index] = cu.cuInit(0); });
  }
  for (std::thread& thread : threads) thread.join();
  for (CUresult result : results) CHECK_OK(result);
}

RULE(lookup, devices_need_init, "lenient:cuDeviceGetCount",
     "cuDeviceGetCount before cuInit answers CUDA_ERROR_NOT_INITIALIZED") {
  int count = 0;
  CHECK_EQ(cu.cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
}

RULE(lookup, attributes_need_init, "lenient:cuDeviceGetAttribute",
     "cuDeviceGetAttribute before cuInit answers CUDA_ERROR_NOT_INITIALIZED") {
  int value = 0;
  CHECK_EQ(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0), CUDA_ERROR_NOT_INITIALIZED);
}

RULE(lookup, memory_needs_init, "lenient:cuMemAlloc_v2",
     "cuMemAlloc before cuInit answers CUDA_ERROR_NOT_INITIALIZED") {
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAlloc_v2(&address, 16), CUDA_ERROR_NOT_INITIALIZED);
}

RULE(lookup, primary_contexts_need_init, "lenient:cuDevicePrimaryCtxRetain",
     "cuDevicePrimaryCtxRetain before cuInit answers CUDA_ERROR_NOT_INITIALIZED") {
  CUcontext context = nullptr;
  CHECK_EQ(cu.cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_NOT_INITIALIZED);
}

RULE(lookup, version_needs_no_init, "refuse:cuDriverGetVersion",
     "cuDriverGetVersion works before cuInit and tells 1000 * major + 10 * minor") {
  int version = 0;
  CHECK_OK(cu.cuDriverGetVersion(&version));
  CHECK(version >= 11000);
  CHECK(version < 100000);
  CHECK_EQ(version % 10, 0);
}

RULE(lookup, version_needs_a_place, "lenient:cuDriverGetVersion",
     "cuDriverGetVersion without a place for the version answers CUDA_ERROR_INVALID_VALUE") {
  CHECK_EQ(cu.cuDriverGetVersion(nullptr), CUDA_ERROR_INVALID_VALUE);
}

RULE(lookup, context_calls_need_a_context, "lenient:cuMemAlloc_v2",
     "with the driver initialised but no context current, cuMemAlloc answers CUDA_ERROR_INVALID_CONTEXT") {
  CHECK_OK(cu.cuInit(0));
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAlloc_v2(&address, 16), CUDA_ERROR_INVALID_CONTEXT);
}

RULE(lookup, proc_address_needs_no_init, "refuse:cuGetProcAddress_v2",
     "cuGetProcAddress finds functions before cuInit") {
  CHECK(find("cuInit", 2000).function != nullptr);
}

RULE(lookup, proc_address_is_the_export, "idle:cuGetProcAddress_v2",
     "cuGetProcAddress gives the address of the export itself") {
  Found found = find("cuInit", 2000);
  CHECK_EQ(found.status, CU_GET_PROC_ADDRESS_SUCCESS);
  CHECK_EQ(found.function, symbol("cuInit"));
}

RULE(lookup, proc_address_gives_newer_forms, "lookup_ignores_versions",
     "cuGetProcAddress gives the form of a function that belongs to the version asked for") {
  CHECK_EQ(find("cuCtxCreate", 3020).function, symbol("cuCtxCreate_v2"));
  CHECK_EQ(find("cuCtxCreate", 11040).function, symbol("cuCtxCreate_v3"));
  CHECK_NE(symbol("cuCtxCreate_v2"), symbol("cuCtxCreate_v3"));
}

RULE(lookup, proc_address_of_allocation, "idle:cuGetProcAddress_v2",
     "cuGetProcAddress of cuMemAlloc at a current version is the export cuMemAlloc_v2") {
  CHECK_EQ(find("cuMemAlloc", driver_version()).function, symbol("cuMemAlloc_v2"));
}

RULE(lookup, proc_address_of_per_thread_forms, "lookup_ignores_flags",
     "CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM gives the per-thread form of a function that has one") {
  cuuint64_t flag = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  CHECK_EQ(find("cuLaunchKernel", 7000, flag).function, symbol("cuLaunchKernel_ptsz"));
  CHECK_EQ(find("cuMemcpy", 7000, flag).function, symbol("cuMemcpy_ptds"));
}

RULE(lookup, proc_address_of_legacy_forms, "lookup_ignores_flags",
     "CU_GET_PROC_ADDRESS_LEGACY_STREAM gives the plain form, and the per-thread one is another function") {
  void* legacy = find("cuLaunchKernel", 7000, CU_GET_PROC_ADDRESS_LEGACY_STREAM).function;
  CHECK_EQ(legacy, symbol("cuLaunchKernel"));
  CHECK_NE(legacy, find("cuLaunchKernel", 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM).function);
}

RULE(lookup, proc_address_without_a_per_thread_form, "idle:cuGetProcAddress_v2",
     "CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM gives the plain form of a function that has no other") {
  cuuint64_t flag = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  CHECK_EQ(find("cuDeviceGetCount", 2000, flag).function, symbol("cuDeviceGetCount"));
}

RULE(lookup, proc_address_of_an_unknown_name, "idle:cuGetProcAddress_v2",
     "cuGetProcAddress of a name that is no function says SYMBOL_NOT_FOUND and gives no pointer") {
  Found found = find("cuThereIsNoSuchFunction", driver_version());
  CHECK(found.function == nullptr);
  CHECK_EQ(found.status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

RULE(lookup, proc_address_of_a_versioned_name, "lookup_takes_versioned_names",
     "cuGetProcAddress does not know names with a version in them: they are for linking") {
  Found found = find("cuMemAlloc_v2", driver_version());
  CHECK(found.function == nullptr);
  CHECK_EQ(found.status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

RULE(lookup, proc_address_of_a_later_function, "lookup_ignores_versions",
     "cuGetProcAddress at a version before a function came says VERSION_NOT_SUFFICIENT") {
  Found found = find("cuLaunchKernelEx", 11000);
  CHECK(found.function == nullptr);
  CHECK_EQ(found.status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

RULE(lookup, proc_address_refuses_flags, "lenient:cuGetProcAddress_v2",
     "cuGetProcAddress with flags that there are not answers CUDA_ERROR_INVALID_VALUE") {
  void* function = nullptr;
  CHECK_EQ(cu.cuGetProcAddress_v2("cuInit", &function, 2000, 64, nullptr), CUDA_ERROR_INVALID_VALUE);
}

RULE(lookup, older_proc_address_says_not_found, "idle:cuGetProcAddress",
     "the form of cuGetProcAddress without a status answers CUDA_ERROR_NOT_FOUND for an unknown name") {
  void* function = nullptr;
  CHECK_EQ(cu.cuGetProcAddress("cuThereIsNoSuchFunction", &function, driver_version(), 0), CUDA_ERROR_NOT_FOUND);
}

RULE(lookup, found_functions_work, "refuse:cuDeviceGetCount",
     "a function that cuGetProcAddress gave does what the linked one does") {
  CHECK_OK(cu.cuInit(0));
  int linked = 0;
  int found = -1;
  CHECK_OK(cu.cuDeviceGetCount(&linked));
  auto function = reinterpret_cast<cuDeviceGetCount_fn*>(find("cuDeviceGetCount", 2000).function);
  CHECK_OK(function(&found));
  CHECK_EQ(found, linked);
}

RULE(lookup, error_names_are_the_enumerators, "error_names_are_plain",
     "cuGetErrorName gives the enumerator's own name") {
  const char* name = nullptr;
  CHECK_OK(cu.cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name));
  CHECK_EQ(name, "CUDA_ERROR_OUT_OF_MEMORY");
  CHECK_OK(cu.cuGetErrorName(CUDA_SUCCESS, &name));
  CHECK_EQ(name, "CUDA_SUCCESS");
  CHECK_OK(cu.cuGetErrorName(CUDA_ERROR_UNKNOWN, &name));
  CHECK_EQ(name, "CUDA_ERROR_UNKNOWN");
}

RULE(lookup, error_names_of_unknown_numbers, "lenient:cuGetErrorName",
     "cuGetErrorName of a number that is no error answers CUDA_ERROR_INVALID_VALUE and gives a null name") {
  const char* name = "something";
  CHECK_EQ(cu.cuGetErrorName(static_cast<CUresult>(5000), &name), CUDA_ERROR_INVALID_VALUE);
  CHECK(name == nullptr);
}

RULE(lookup, error_texts_differ, "error_texts_are_names",
     "cuGetErrorString gives a text that is not the name, one for each error") {
  const char* memory = nullptr;
  const char* value = nullptr;
  CHECK_OK(cu.cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &memory));
  CHECK_OK(cu.cuGetErrorString(CUDA_ERROR_INVALID_VALUE, &value));
  CHECK(memory != nullptr && value != nullptr);
  CHECK_NE(std::string(memory), std::string(value));
  CHECK(std::string(memory).find("CUDA_ERROR") == std::string::npos);
  CHECK(!std::string(memory).empty());
}

RULE(lookup, error_texts_of_unknown_numbers, "lenient:cuGetErrorString",
     "cuGetErrorString of a number that is no error answers CUDA_ERROR_INVALID_VALUE and gives a null text") {
  const char* text = "something";
  CHECK_EQ(cu.cuGetErrorString(static_cast<CUresult>(5000), &text), CUDA_ERROR_INVALID_VALUE);
  CHECK(text == nullptr);
}

RULE(lookup, error_names_need_no_init, "refuse:cuGetErrorName", "cuGetErrorName works before cuInit, on any thread") {
  CUresult result = CUDA_ERROR_UNKNOWN;
  const char* name = nullptr;
  std::thread([&] { result = cu.cuGetErrorName(CUDA_ERROR_INVALID_CONTEXT, &name); }).join();
  CHECK_OK(result);
  CHECK_EQ(name, "CUDA_ERROR_INVALID_CONTEXT");
}

RULE(lookup, no_export_table_for_unknown_ids, "idle:cuGetExportTable",
     "cuGetExportTable of an id that nobody has given out fails") {
  CUuuid id{};
  const void* table = nullptr;
  CHECK_NE(cu.cuGetExportTable(&table, &id), CUDA_SUCCESS);
}
