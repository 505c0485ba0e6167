// Queries, mappings, textures, and what hands memory to others.
#include "tests/unit/runtime/memory/on_simgpu/out_of_place/program.h"

namespace rota::test {
namespace {

using S = Setting;

// One for each value of CUpointer_attribute except CU_POINTER_ATTRIBUTE_P2P_TOKENS, which gives others access.
constexpr int kPointerAttributes = 21;
constexpr int kLastBeforeTokens = 4;
CUpointer_attribute pointer_attribute(int variant) {
  return static_cast<CUpointer_attribute>(variant < kLastBeforeTokens ? variant + 1 : variant + 2);
}

constexpr CUmem_range_attribute kRangeAttributes[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
                                                      CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
                                                      CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION};

void place_on_gpu(CUmemLocation& location) {
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = 0;
}

}  // namespace

const std::vector<Row>& other_rows() {
  static const std::vector<Row> kRows = {
      // --- questions
      {{"cuPointerGetAttribute"},
       Then::kAnswers,
       Effect::kAny,
       [](S& s) { s.arguments.value<CUpointer_attribute>(1) = pointer_attribute(s.variant); },
       kPointerAttributes},
      {{"cuPointerGetAttributes"},
       Then::kAnswers,
       Effect::kAny,
       [](S& s) {
         s.arguments.value<unsigned>(0) = 1;
         s.arguments.behind<CUpointer_attribute>(1) = pointer_attribute(s.variant);
         s.arguments.behind<void*>(2) = s.arguments.more<std::uint64_t>();
       },
       kPointerAttributes},
      {{"cuMemGetAddressRange_v2"}, Then::kAnswers},
      {{"cuMemGetAddressRange"}, Then::kWaits},  // of 32 bits: no memory of rota's has such an address
      // With this answer others can reach the memory.
      {{"cuPointerGetAttribute ptr, for its tokens"},
       Then::kPinsRange,
       Effect::kAny,
       [](S& s) { s.arguments.value<CUpointer_attribute>(1) = CU_POINTER_ATTRIBUTE_P2P_TOKENS; }},
      {{"cuPointerGetAttributes ptr, for its tokens"},
       Then::kPinsRange,
       Effect::kAny,
       [](S& s) {
         s.arguments.value<unsigned>(0) = 1;
         s.arguments.behind<CUpointer_attribute>(1) = CU_POINTER_ATTRIBUTE_P2P_TOKENS;
         s.arguments.behind<void*>(2) = s.arguments.more<std::uint64_t>();
       }},
      {{"cuMemGetAccess"},
       Then::kAnswers,
       Effect::kAny,
       [](S& s) { place_on_gpu(s.arguments.behind<CUmemLocation>(1)); }},
      {{"cuMemRangeGetAttribute"},
       Then::kAnswers,
       Effect::kAny,
       [](S& s) {
         s.arguments.value<std::size_t>(1) = 4;
         s.arguments.value<CUmem_range_attribute>(2) = kRangeAttributes[s.variant];
         s.arguments.value<std::size_t>(4) = 64;
       },
       std::size(kRangeAttributes)},
      {{"cuMemRangeGetAttributes"},
       Then::kAnswers,
       Effect::kAny,
       [](S& s) {
         s.arguments.behind<void*>(0) = s.arguments.more<std::uint64_t>();
         s.arguments.behind<std::size_t>(1) = 4;
         s.arguments.behind<CUmem_range_attribute>(2) = kRangeAttributes[s.variant];
         s.arguments.value<std::size_t>(3) = 1;
         s.arguments.value<std::size_t>(5) = 64;
       },
       std::size(kRangeAttributes)},
      {{"cuMemGetLocationInfo"}, Then::kWaits, Effect::kAny, [](S& s) { s.arguments.value<std::size_t>(1) = 64; }},
      {{"cuOccupancyMaxActiveClusters", "cuOccupancyMaxPotentialClusterSize"}, Then::kGoesOn},

      // --- settings of memory, and memory under an address
      {{"cuPointerSetAttribute"},
       Then::kAnswers,
       Effect::kAny,
       [](S& s) { s.arguments.value<CUpointer_attribute>(1) = CU_POINTER_ATTRIBUTE_SYNC_MEMOPS; }},
      {{"cuMemAdvise"},
       Then::kWaits,
       Effect::kAny,
       [](S& s) {
         s.arguments.value<std::size_t>(1) = 64;
         s.arguments.value<CUmem_advise>(2) = CU_MEM_ADVISE_SET_READ_MOSTLY;
       }},
      {{"cuMemAdvise_v2"},
       Then::kWaits,
       Effect::kAny,
       [](S& s) {
         s.arguments.value<std::size_t>(1) = 64;
         s.arguments.value<CUmem_advise>(2) = CU_MEM_ADVISE_SET_READ_MOSTLY;
         place_on_gpu(s.arguments.value<CUmemLocation>(3));
       }},
      {{"cuMemAddressReserve"},
       Then::kGoesOn,
       Effect::kAny,
       [](S& s) { s.arguments.value<std::size_t>(1) = 2 * kMiB; }},
      {{"cuMemAddressFree", "cuMemUnmap"},
       Then::kRefuses,
       Effect::kAny,
       [](S& s) { s.arguments.value<std::size_t>(1) = s.bytes; }},
      {{"cuMemSetAccess"},
       Then::kRefuses,
       Effect::kAny,
       [](S& s) {
         auto& access = s.arguments.behind<CUmemAccessDesc>(2);
         place_on_gpu(access.location);
         access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
         s.arguments.value<std::size_t>(1) = s.bytes;
         s.arguments.value<std::size_t>(3) = 1;
       }},
      {{"cuMemRetainAllocationHandle"}, Then::kRefuses},
      {{"cuMemFree_v2"}, Then::kGoesOn, Effect::kFreed},
      {{"cuMemFreeAsync"}, Then::kSubmits, Effect::kFreed},
      {{"cuIpcCloseMemHandle"}, Then::kGoesOn},
      {{"cuMemPoolSetAccess"}, Then::kWaits},

      // --- textures and tensor maps, which simgpu lacks
      {{"cuTexObjectCreate", "cuSurfObjectCreate", "cuTexRefSetAddress_v2", "cuTexRefSetAddress2D_v2",
        "cuTexRefSetAddress2D_v3", "cuTexRefSetAddress", "cuTexRefSetAddress2D", "cuTexRefSetArray",
        "cuTexRefSetMipmappedArray", "cuSurfRefSetArray", "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col",
        "cuTensorMapEncodeIm2colWide", "cuTensorMapReplaceAddress"},
       Then::kWaits},
      {{"cuStreamSetAttribute"},
       Then::kWaits,
       Effect::kSucceeds,
       [](S& s) {
         s.arguments.value<CUstream>(0) = s.stream;
         s.arguments.value<unsigned>(1) = CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
       }},

      // --- what others reach
      {{"cuMemGetHandleForAddressRange"},
       Then::kPinsRange,
       Effect::kAny,
       [](S& s) { s.arguments.value<std::size_t>(2) = s.bytes; }},
      {{"cuIpcGetMemHandle"}, Then::kExports},  // the memory is restored when somebody opens it
      // Handles of memory that moves are in handles_test.cpp and own_turns_test.cpp.
      {{"cuLogicalEndpointBindMem", "cuMemExportToShareableHandle"}, Then::kWaits},
      {{"cuMulticastBindMem", "cuMulticastBindMem_v2"}, Then::kGoesOn},
      {{"cuLogicalEndpointBindAddr"},
       Then::kPinsRange,
       Effect::kAny,
       [](S& s) { s.arguments.value<std::size_t>(4) = s.bytes; }},
      // What is bound to an endpoint is pinned already, and pools that can be exported contain only the driver's own
      // memory.
      {{"cuLogicalEndpointExport", "cuMemPoolExportPointer", "cuMemPoolExportToShareableHandle"}, Then::kWaits},
      {{"cuGraphicsGLRegisterBuffer", "cuGraphicsGLRegisterImage", "cuGLRegisterBufferObject",
        "cuGraphicsEGLRegisterImage", "cuGraphicsVDPAURegisterVideoSurface", "cuGraphicsVDPAURegisterOutputSurface",
        "cuEGLStreamConsumerConnect", "cuEGLStreamConsumerConnectWithFlags", "cuEGLStreamProducerConnect",
        "cuEGLStreamProducerPresentFrame"},
       Then::kPins},
      {{"cuMulticastBindAddr", "cuMulticastBindAddr_v2"}, Then::kPinsRangeFirst},
      {{"cuMemMap handle"}, Then::kGoesOn},  // handles of memory that moves: handles_test.cpp
      {{"cuMemMap ptr"}, Then::kRefuses, Effect::kAny, [](S& s) { s.arguments.value<std::size_t>(1) = s.bytes; }},

      // --- captures, which keep memory where it is
      {{"cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuStreamBeginCaptureToGraph",
        "cuStreamBeginRecaptureToGraph", "cuStreamBeginCaptureToCig"},
       Then::kCaptures,
       Effect::kAny,
       [](S& s) { s.arguments.value<CUstream>(0) = s.stream; }},
  };
  return kRows;
}

}  // namespace rota::test
