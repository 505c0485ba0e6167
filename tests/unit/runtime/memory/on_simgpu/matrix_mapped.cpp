// Virtual memory management, what other processes share, code, and what simgpu does not simulate.
#include <unistd.h>

#include <cstring>

#include "tests/unit/runtime/memory/on_simgpu/matrix.h"

namespace rota::test {
namespace {

constexpr std::size_t kPiece = 2 * kMiB;
constexpr const char* kCode = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry _Z4fillPjmj() { ret; }\n";

CUmemGenericAllocationHandle piece_of(int device, bool shared = false) {
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  what.requestedHandleTypes = shared ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_OK(cu.cuMemCreate(&handle, kPiece, &what, 0));
  return handle;
}

CUdeviceptr reserve() {
  CUdeviceptr address = 0;
  EXPECT_OK(cu.cuMemAddressReserve(&address, kPiece, 0, 0, 0));
  return address;
}

void unmap(CUdeviceptr address) {
  EXPECT_OK(cu.cuMemUnmap(address, kPiece));
  EXPECT_OK(cu.cuMemAddressFree(address, kPiece));
}

// Memory of GPU 0. Its handle is released at once: only the mapping keeps the memory.
Taken mapped() {
  const CUmemGenericAllocationHandle handle = piece_of(0);
  const CUdeviceptr address = reserve();
  EXPECT_OK(cu.cuMemMap(address, kPiece, 0, handle, 0));
  EXPECT_OK(cu.cuMemRelease(handle));
  return {address, [address] { unmap(address); }};
}

// The address of memory whose mapping was removed; only its handle remains.
Taken retained() {
  const Taken mapping = mapped();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_OK(cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(mapping.address)));
  mapping.give_back();
  return {0, [handle] { EXPECT_OK(cu.cuMemRelease(handle)); }};
}

// Importing this process's own memory gives one more handle, which keeps it.
Taken imported() {
  const CUmemGenericAllocationHandle own = piece_of(0, true);
  int file = -1;
  EXPECT_OK(cu.cuMemExportToShareableHandle(&file, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_OK(cu.cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(file);
  return {0, [own, handle] {
            EXPECT_OK(cu.cuMemRelease(own));
            EXPECT_OK(cu.cuMemRelease(handle));
          }};
}

template <typename Function>
Taken opened(Function* function) {
  CUipcMemHandle handle{};
  EXPECT(from_neighbour.size() == sizeof handle);
  std::memcpy(&handle, from_neighbour.data(), std::min(sizeof handle, from_neighbour.size()));
  CUdeviceptr address = 0;
  EXPECT_OK(function(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  return {0, [address] { EXPECT_OK(cu.cuIpcCloseMemHandle(address)); }};
}

// A pool of this process, opened by its descriptor as another one would.
struct SharedPool {
  SharedPool() {
    CUmemPoolProps what{};
    what.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
    EXPECT_OK(cu.cuMemPoolCreate(&own, &what));
    EXPECT_OK(cu.cuMemPoolExportToShareableHandle(&file, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  }
  void open() {
    EXPECT_OK(cu.cuMemPoolImportFromShareableHandle(&imported,
                                                    reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    close(file);
  }
  void destroy() const {
    EXPECT_OK(cu.cuMemPoolDestroy(imported));
    EXPECT_OK(cu.cuMemPoolDestroy(own));
  }
  CUmemoryPool own = nullptr;
  CUmemoryPool imported = nullptr;
  int file = -1;
};

Taken pool_by_descriptor() {
  SharedPool pool;
  pool.open();
  return {0, [pool] { pool.destroy(); }};
}

// The exporter's bytes are counted already: importing the pointer adds none.
Taken pointer_of_pool() {
  SharedPool pool;
  pool.open();
  CUdeviceptr address = 0;
  EXPECT_OK(cu.cuMemAllocFromPoolAsync(&address, kPiece, pool.own, nullptr));
  EXPECT_OK(cu.cuStreamSynchronize(nullptr));
  CUmemPoolPtrExportData data{};
  EXPECT_OK(cu.cuMemPoolExportPointer(&data, address));
  EXPECT(charged_exactly(0, kPiece));
  CUdeviceptr same = 0;
  EXPECT_OK(cu.cuMemPoolImportPointer(&same, pool.imported, &data));
  EXPECT(charged_exactly(0, kPiece));
  EXPECT_OK(cu.cuMemFree_v2(same));
  EXPECT(charged_exactly(0, kPiece));
  EXPECT_OK(cu.cuMemFree_v2(address));
  return {0, [pool] { pool.destroy(); }};
}

void give_back(const Taken& taken) {
  taken.give_back();
}

}  // namespace

std::string export_memory() {
  CUdeviceptr address = 0;
  CUipcMemHandle handle{};
  enter(1);
  if (cu.cuMemAlloc_v2(&address, kMiB) != CUDA_SUCCESS || cu.cuIpcGetMemHandle(&handle, address) != CUDA_SUCCESS)
    return "";
  return {reinterpret_cast<const char*>(&handle), sizeof handle};
}

std::map<Symbol, Takes> mapped_takes() {
  std::map<Symbol, Takes> rows;
  rows[Symbol::k_cuMemAddressReserve] = {[] {
    const CUdeviceptr address = reserve();
    return Taken{0, [address] { EXPECT_OK(cu.cuMemAddressFree(address, kPiece)); }};
  }};
  rows[Symbol::k_cuMemCreate] = {[] {
                                   const CUmemGenericAllocationHandle handle = piece_of(0);
                                   return Taken{0, [handle] { EXPECT_OK(cu.cuMemRelease(handle)); }};
                                 },
                                 0, kPiece};
  rows[Symbol::k_cuMemMap] = {mapped, 0, kPiece};
  rows[Symbol::k_cuMemRetainAllocationHandle] = {retained, 0, kPiece};
  rows[Symbol::k_cuMemImportFromShareableHandle] = {imported, 0, kPiece};
  rows[Symbol::k_cuIpcOpenMemHandle] = {[] { return opened(cu.cuIpcOpenMemHandle); }};
  rows[Symbol::k_cuIpcOpenMemHandle_v2] = {[] { return opened(cu.cuIpcOpenMemHandle_v2); }};
  rows[Symbol::k_cuMemPoolImportFromShareableHandle] = {pool_by_descriptor};
  rows[Symbol::k_cuMemPoolImportPointer] = {pointer_of_pool};
  return rows;
}

std::map<Symbol, GivesBack> mapped_gives() {
  std::map<Symbol, GivesBack> rows;
  rows[Symbol::k_cuMemAddressFree] = {[] {
                                        const CUdeviceptr address = reserve();
                                        return Taken{0, [address] { EXPECT_OK(cu.cuMemAddressFree(address, kPiece)); }};
                                      },
                                      give_back};
  rows[Symbol::k_cuMemRelease] = {[] {
                                    const CUmemGenericAllocationHandle handle = piece_of(1);
                                    return Taken{0, [handle] { EXPECT_OK(cu.cuMemRelease(handle)); }};
                                  },
                                  give_back, 1, kPiece};
  rows[Symbol::k_cuMemUnmap] = {mapped, give_back, 0, kPiece};
  rows[Symbol::k_cuIpcCloseMemHandle] = {[] { return opened(cu.cuIpcOpenMemHandle_v2); }, give_back};
  rows[Symbol::k_cuModuleUnload] = {[] {
                                      CUmodule code = nullptr;
                                      EXPECT_OK(cu.cuModuleLoadData(&code, kCode));
                                      return Taken{0, [code] { EXPECT_OK(cu.cuModuleUnload(code)); }};
                                    },
                                    give_back};
  rows[Symbol::k_cuLibraryUnload] = {
      [] {
        CUlibrary code = nullptr;
        EXPECT_OK(cu.cuLibraryLoadData(&code, kCode, nullptr, nullptr, 0, nullptr, nullptr, 0));
        return Taken{0, [code] { EXPECT_OK(cu.cuLibraryUnload(code)); }};
      },
      give_back};
  return rows;
}

const std::set<Symbol>& not_simulated() {
  static const std::set<Symbol> symbols = {
      // 32-bit addresses of CUDA 3.1 and before.
      Symbol::k_cuMemAlloc,
      Symbol::k_cuMemAllocPitch,
      Symbol::k_cuMemFree,
      Symbol::k_cuMemAllocHost,
      Symbol::k_cuMemHostRegister,
      Symbol::k_cuArrayCreate,
      Symbol::k_cuArray3DCreate,
      // Memory of other interfaces, multicast, endpoints, checkpoints.
      Symbol::k_cuMulticastCreate,
      Symbol::k_cuLogicalEndpointCreate,
      Symbol::k_cuLogicalEndpointDestroy,
      Symbol::k_cuLogicalEndpointImport,
      Symbol::k_cuImportExternalMemory,
      Symbol::k_cuExternalMemoryGetMappedBuffer,
      Symbol::k_cuExternalMemoryGetMappedMipmappedArray,
      Symbol::k_cuDestroyExternalMemory,
      Symbol::k_cuGraphicsUnregisterResource,
      Symbol::k_cuGraphicsGLRegisterBuffer,
      Symbol::k_cuGraphicsGLRegisterImage,
      Symbol::k_cuGLUnregisterBufferObject,
      Symbol::k_cuGraphicsEGLRegisterImage,
      Symbol::k_cuGraphicsVDPAURegisterVideoSurface,
      Symbol::k_cuGraphicsVDPAURegisterOutputSurface,
      Symbol::k_cuCheckpointProcessCheckpoint,
      Symbol::k_cuCheckpointProcessRestore,
      Symbol::k_cuCheckpointOperationComplete,
  };
  return symbols;
}

}  // namespace rota::test
