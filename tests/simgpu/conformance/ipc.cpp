// Legacy interprocess handles of memory.
#include "tests/simgpu/conformance/pools.h"
#include "tests/simgpu/conformance/vmm.h"

namespace {

CUipcMemHandle handle_of(CUdeviceptr address) {
  CUipcMemHandle handle{};
  CHECK_OK(cu.cuIpcGetMemHandle(&handle, address));
  return handle;
}

CUdeviceptr open_handle(const CUipcMemHandle& handle) {
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CHECK(address != 0);
  return address;
}

bool same(const CUipcMemHandle& one, const CUipcMemHandle& other) {
  return std::memcmp(&one, &other, sizeof one) == 0;
}

constexpr size_t kBytes = 4 * kMiB;

}  // namespace

// Opens the memory, tells its first word, adds one to it, closes it.
CHILD(ipc_reader) {
  Session session;
  auto handle = parent.receive_value<CUipcMemHandle>();
  CUdeviceptr address = open_handle(handle);
  unsigned word = first_word(address);
  parent.send_value(word);
  set_first_word(address, word + 1);
  CHECK_OK(cu.cuCtxSynchronize());
  CHECK_OK(cu.cuIpcCloseMemHandle(address));
  parent.send("closed");
}

RULE(ipc, other_process_reads_the_memory, "opened_memory_is_other_memory",
     "A process that opens an exported allocation reads what the exporter wrote") {
  Session session;
  Buffer memory(kBytes);
  set_first_word(memory, 80);
  Child child("ipc_reader");
  child.send_value(handle_of(memory));
  CHECK_EQ(child.receive_value<unsigned>(), 80U);
  CHECK_EQ(child.receive(), "closed");
  child.finish();
}

RULE(ipc, exporter_sees_what_others_write, "opened_memory_is_other_memory",
     "What another process writes to opened memory is there for the exporter") {
  Session session;
  Buffer memory(kBytes);
  set_first_word(memory, 80);
  Child child("ipc_reader");
  child.send_value(handle_of(memory));
  child.receive_value<unsigned>();
  CHECK_EQ(child.receive(), "closed");
  CHECK_EQ(first_word(memory), 81U);
  child.finish();
}

RULE(ipc, exported_memory_stays_usable, "idle:cuMemcpyHtoD_v2",
     "Exporting an allocation changes neither its contents nor its address") {
  Session session;
  Buffer memory(kBytes);
  set_first_word(memory, 33);
  handle_of(memory);
  CHECK_EQ(first_word(memory), 33U);
  set_first_word(memory, 34);
  CHECK_EQ(first_word(memory), 34U);
}

RULE(ipc, closing_leaves_the_exporters_memory, "closing_clears_the_memory",
     "Closing opened memory leaves the exporter's allocation with its contents") {
  Session session;
  Buffer memory(kBytes);
  set_first_word(memory, 90);
  Child child("ipc_reader");
  child.send_value(handle_of(memory));
  CHECK_EQ(child.receive_value<unsigned>(), 90U);
  CHECK_EQ(child.receive(), "closed");
  child.finish();
  CHECK_EQ(first_word(memory), 91U);
}

RULE(ipc, own_memory_cannot_be_opened, "lenient:cuIpcOpenMemHandle_v2",
     "The exporting process itself cannot open the handle: CUDA_ERROR_INVALID_CONTEXT") {
  Session session;
  Buffer memory(kBytes);
  CUipcMemHandle handle = handle_of(memory);
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT);
}

RULE(ipc, exporting_again_gives_the_same_handle, "idle:cuIpcGetMemHandle",
     "An allocation that is exported twice has the same handle, which is not empty") {
  Session session;
  Buffer memory(kBytes);
  CUipcMemHandle one = handle_of(memory);
  CUipcMemHandle other = handle_of(memory);
  CHECK(same(one, other));
  CHECK(!same(one, CUipcMemHandle{}));
}

RULE(ipc, new_memory_has_a_new_handle, "handles_stay_with_addresses",
     "Memory that is allocated at the address of freed memory has another handle") {
  Session session;
  Buffer first(kBytes);
  CUipcMemHandle before = handle_of(first);
  CUdeviceptr address = first.address();
  CHECK_OK(cu.cuMemFree_v2(first.release()));
  for (int attempt = 0; attempt < 4; ++attempt) {
    CUdeviceptr again = 0;
    CHECK_OK(cu.cuMemAlloc_v2(&again, kBytes));
    bool there = again == address;
    CHECK(!same(handle_of(again), before));
    if (there) return;
  }
}

RULE(ipc, two_allocations_have_two_handles, "idle:cuIpcGetMemHandle", "Two allocations have different handles") {
  Session session;
  Buffer one(kBytes);
  Buffer other(kBytes);
  CHECK(!same(handle_of(one), handle_of(other)));
}

CHILD(ipc_opens_wrongly) {
  Session session;
  auto handle = parent.receive_value<CUipcMemHandle>();
  CUdeviceptr address = 0;
  if (argument == "flags") {
    parent.send_value(cu.cuIpcOpenMemHandle_v2(&address, handle, 0));
  } else if (argument == "null") {
    parent.send_value(cu.cuIpcOpenMemHandle_v2(nullptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  } else if (argument == "free") {
    parent.send_value(cu.cuMemFree_v2(open_handle(handle)));
  } else if (argument == "export") {
    CUipcMemHandle again{};
    parent.send_value(cu.cuIpcGetMemHandle(&again, open_handle(handle)));
  } else if (argument == "use after close") {
    address = open_handle(handle);
    CHECK_OK(cu.cuIpcCloseMemHandle(address));
    unsigned word = 0;
    parent.send_value(cu.cuMemcpyDtoH_v2(&word, address, sizeof word));
  } else if (argument == "close twice") {
    address = open_handle(handle);
    CHECK_OK(cu.cuIpcCloseMemHandle(address));
    parent.send_value(cu.cuIpcCloseMemHandle(address));
  }
  parent.receive();
}

namespace {

// What a second process is answered that does so with memory of this one.
CUresult answer_elsewhere(const std::string& what) {
  Buffer memory(kBytes);
  Child child("ipc_opens_wrongly", what);
  child.send_value(handle_of(memory));
  auto answer = child.receive_value<CUresult>();
  child.send("end");
  child.finish();
  return answer;
}

}  // namespace

RULE(ipc, opening_needs_its_flag, "lenient:cuIpcOpenMemHandle_v2",
     "cuIpcOpenMemHandle without CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_EQ(answer_elsewhere("flags"), CUDA_ERROR_INVALID_VALUE);
}

RULE(ipc, opening_needs_a_place_for_the_pointer, "lenient:cuIpcOpenMemHandle_v2",
     "cuIpcOpenMemHandle without a place for the pointer answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_EQ(answer_elsewhere("null"), CUDA_ERROR_INVALID_VALUE);
}

RULE(ipc, opened_memory_is_not_freed, "lenient:cuMemFree_v2",
     "cuMemFree of memory that was opened by handle answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_EQ(answer_elsewhere("free"), CUDA_ERROR_INVALID_VALUE);
}

RULE(ipc, opened_memory_is_not_exported_again, "lenient:cuIpcGetMemHandle",
     "cuIpcGetMemHandle of memory that was opened by handle is refused") {
  Session session;
  CHECK_NE(answer_elsewhere("export"), CUDA_SUCCESS);
}

RULE(ipc, closed_memory_is_gone, "idle:cuIpcCloseMemHandle",
     "A copy from memory that was opened and closed answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_EQ(answer_elsewhere("use after close"), CUDA_ERROR_INVALID_VALUE);
}

RULE(ipc, opened_memory_is_closed_once, "lenient:cuIpcCloseMemHandle",
     "cuIpcCloseMemHandle of memory that was closed already answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_EQ(answer_elsewhere("close twice"), CUDA_ERROR_INVALID_VALUE);
}

CHILD(ipc_opens_twice) {
  Session session;
  auto handle = parent.receive_value<CUipcMemHandle>();
  CUdeviceptr one = open_handle(handle);
  CUdeviceptr other = open_handle(handle);
  CHECK_EQ(one, other);
  CHECK_OK(cu.cuIpcCloseMemHandle(one));
  unsigned word = 0;
  parent.send_value(cu.cuMemcpyDtoH_v2(&word, one, sizeof word));
  CHECK_OK(cu.cuIpcCloseMemHandle(one));
  parent.receive();
}

RULE(ipc, opening_twice_counts, "opened_memory_is_not_counted",
     "Opening a handle twice gives the same address, which stays until it was closed twice") {
  Session session;
  Buffer memory(kBytes);
  Child child("ipc_opens_twice");
  child.send_value(handle_of(memory));
  CHECK_EQ(child.receive_value<CUresult>(), CUDA_SUCCESS);
  child.send("end");
  child.finish();
}

RULE(ipc, only_opened_memory_is_closed, "lenient:cuIpcCloseMemHandle",
     "cuIpcCloseMemHandle of the process's own memory answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Buffer memory(kBytes);
  CHECK_EQ(cu.cuIpcCloseMemHandle(memory), CUDA_ERROR_INVALID_VALUE);
}

RULE(ipc, managed_memory_has_no_handle, "lenient:cuIpcGetMemHandle",
     "cuIpcGetMemHandle of managed memory answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUdeviceptr managed = 0;
  CHECK_OK(cu.cuMemAllocManaged(&managed, kMiB, CU_MEM_ATTACH_GLOBAL));
  CUipcMemHandle handle{};
  CHECK_EQ(cu.cuIpcGetMemHandle(&handle, managed), CUDA_ERROR_INVALID_VALUE);
  CHECK_OK(cu.cuMemFree_v2(managed));
}

RULE(ipc, host_memory_has_no_handle, "lenient:cuIpcGetMemHandle",
     "cuIpcGetMemHandle of pinned host memory answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Pinned pinned(4096);
  CUipcMemHandle handle{};
  CHECK_EQ(cu.cuIpcGetMemHandle(&handle, pinned.address()), CUDA_ERROR_INVALID_VALUE);
}

RULE(ipc, pool_memory_has_no_handle, "lenient:cuIpcGetMemHandle",
     "cuIpcGetMemHandle of memory from cuMemAllocAsync answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAllocAsync(&address, kMiB, nullptr));
  CUipcMemHandle handle{};
  CHECK_EQ(cu.cuIpcGetMemHandle(&handle, address), CUDA_ERROR_INVALID_VALUE);
  CHECK_OK(cu.cuMemFree_v2(address));
}

RULE(ipc, mapped_memory_has_no_handle, "lenient:cuIpcGetMemHandle",
     "cuIpcGetMemHandle of memory that cuMemMap mapped answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle physical = create_physical(session.device(), bytes);
  CUdeviceptr address = map_somewhere(physical, bytes, session.device());
  CUipcMemHandle handle{};
  CHECK_EQ(cu.cuIpcGetMemHandle(&handle, address), CUDA_ERROR_INVALID_VALUE);
}

RULE(ipc, unknown_memory_has_no_handle, "lenient:cuIpcGetMemHandle",
     "cuIpcGetMemHandle of an address that was never allocated answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUipcMemHandle handle{};
  CHECK_EQ(cu.cuIpcGetMemHandle(&handle, 4096), CUDA_ERROR_INVALID_VALUE);
}

CHILD(ipc_looks) {
  Session session;
  auto handle = parent.receive_value<CUipcMemHandle>();
  CUdeviceptr address = 0;
  bool taken = true;
  // Other processes use the device too: one look may be wrong.
  for (int look = 0; look < 10 && taken; ++look) {
    if (look != 0) CHECK_OK(cu.cuIpcCloseMemHandle(address));
    size_t before = free_memory();
    address = open_handle(handle);
    taken = before > free_memory() + kBytes * 4;
  }
  parent.send_value(taken);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CHECK_OK(cu.cuMemGetAddressRange_v2(&base, &bytes, address + 4096));
  parent.send_value(base == address);
  parent.send_value(bytes);
  CHECK_OK(launch(session.function("fill"), 2, 64, nullptr, address, kBytes / 4, 6U));
  CHECK_OK(cu.cuCtxSynchronize());
  parent.send("filled");
  parent.receive();
}

RULE(ipc, opening_takes_no_memory, "every_holder_is_charged",
     "Opening another process's memory takes no device memory beyond it") {
  Session session;
  Buffer memory(kBytes * 8);
  Child child("ipc_looks");
  child.send_value(handle_of(memory));
  CHECK(!child.receive_value<bool>());
}

RULE(ipc, opened_memory_has_its_range, "idle:cuMemGetAddressRange_v2",
     "cuMemGetAddressRange inside of opened memory answers where it starts and how long it is") {
  Session session;
  Buffer memory(kBytes);
  Child child("ipc_looks");
  child.send_value(handle_of(memory));
  child.receive_value<bool>();
  CHECK(child.receive_value<bool>());
  CHECK(child.receive_value<size_t>() >= kBytes);
}

RULE(ipc, kernels_use_opened_memory, "opened_memory_is_other_memory",
     "A kernel of another process writes to opened memory") {
  Session session;
  Buffer memory(kBytes);
  Child child("ipc_looks");
  child.send_value(handle_of(memory));
  child.receive_value<bool>();
  child.receive_value<bool>();
  child.receive_value<size_t>();
  CHECK_EQ(child.receive(), "filled");
  CHECK_EQ(first_word(memory + kBytes - 4), 6U);
}

CHILD(ipc_opener_on_gpu_0) {
  Session session(0);
  CUdeviceptr address = open_handle(parent.receive_value<CUipcMemHandle>());
  int ordinal = -1;
  CHECK_OK(cu.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
  parent.send_value(ordinal);
}

RULE(ipc, opened_memory_says_the_openers_gpu, "opened_memory_says_where_it_lies",
     "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL of opened memory is the GPU of the context that opened it") {
  SKIP_UNLESS(Session(0).devices() >= 2, "needs two GPUs");
  Session session(1);
  Buffer memory(kBytes);
  Child child("ipc_opener_on_gpu_0");
  child.send_value(handle_of(memory));
  CHECK_EQ(child.receive_value<int>(), 0);
  child.finish();
}

RULE(ipc, memory_survives_a_killed_importer, "opened_memory_is_other_memory",
     "The exporter's memory stays as it is when a process that opened it is killed") {
  Session session;
  Buffer memory(kBytes);
  {
    Child child("ipc_looks");
    child.send_value(handle_of(memory));
    child.receive_value<bool>();
    child.receive_value<bool>();
    child.receive_value<size_t>();
    CHECK_EQ(child.receive(), "filled");
    child.kill();
  }
  CHECK_EQ(first_word(memory), 6U);
  set_first_word(memory, 7);
  CHECK_EQ(first_word(memory), 7U);
}
