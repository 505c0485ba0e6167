// Copies, sets, and values in the order of a stream: all of them submit.
#include <initializer_list>
#include <utility>

#include "tests/unit/runtime/memory/on_simgpu/out_of_place/program.h"

namespace rota::test {
namespace {

constexpr std::size_t kBytes = 64;

// Numbers that are parameters themselves.
void give(Setting& setting, std::initializer_list<std::pair<std::size_t, std::uint64_t>> values) {
  for (const auto& [parameter, number] : values) setting.arguments.value<std::uint64_t>(parameter) = number;
}

void give_stream(Setting& setting, std::size_t parameter) {
  setting.arguments.value<CUstream>(parameter) = setting.stream;
}

// Of structures with the fields of CUDA_MEMCPY2D: between linear memory, kBytes in one row.
template <typename Copy>
Copy& shape(Setting& setting, std::size_t parameter) {
  Copy& copy = setting.arguments.behind<Copy>(parameter);
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = copy.dstDevice = setting.resident;
  copy.srcPitch = copy.dstPitch = copy.WidthInBytes = kBytes;
  copy.Height = 1;
  return copy;
}

template <typename Copy>
void shape_3d(Setting& setting) {
  Copy& copy = shape<Copy>(setting, 0);
  copy.srcHeight = copy.dstHeight = copy.Depth = 1;
}

void shape_operands(Setting& setting, std::size_t parameter) {
  auto& copy = setting.arguments.behind<CUDA_MEMCPY3D_BATCH_OP>(parameter);
  for (CUmemcpy3DOperand* operand : {&copy.src, &copy.dst}) {
    operand->type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    operand->op.ptr.ptr = setting.resident;
  }
  copy.extent = {.width = kBytes, .height = 1, .depth = 1};
  copy.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
}

void batch(Setting& setting) {
  for (const std::size_t parameter : {0, 1}) setting.arguments.behind<CUdeviceptr>(parameter) = setting.resident;
  setting.arguments.behind<std::size_t>(2) = kBytes;
  setting.arguments.behind<CUmemcpyAttributes>(4).srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  give(setting, {{3, 1}, {6, 1}});
}

// Ranges that are prefetched or given up, to one location.
void ranges(Setting& setting) {
  setting.arguments.behind<CUdeviceptr>(0) = setting.resident;
  setting.arguments.behind<std::size_t>(1) = kBytes;
  give(setting, {{2, 1}});
}

void pitched_set(Setting& setting) {
  give(setting, {{1, 256}, {2, 0x77}, {3, 4}, {4, 2}});
}

// Waits for the value that is there already, and writes another one.
void value_operation(Setting& setting, std::size_t parameter) {
  auto& operation = setting.arguments.behind<CUstreamBatchMemOpParams>(parameter);
  operation.operation = setting.names("waitValue")    ? CU_STREAM_MEM_OP_WAIT_VALUE_32
                        : setting.names("writeValue") ? CU_STREAM_MEM_OP_WRITE_VALUE_32
                                                      : CU_STREAM_MEM_OP_ATOMIC_REDUCTION;
  // The other address of the same operation.
  for (const Place& other : places()) {
    const std::string_view text = setting.text();
    const bool same = other.symbol == setting.place.symbol &&
                      text.substr(0, text.rfind('.')) == std::string_view(other.text).substr(0, text.rfind('.'));
    if (same) setting.arguments.put(other, setting.resident);
  }
}

}  // namespace

const std::vector<Row>& copy_rows() {
  static const std::vector<Row> kRows = {
      {{"cuMemcpy", "cuMemcpyAsync", "cuMemcpyDtoD_v2", "cuMemcpyDtoDAsync_v2"},
       Then::kWaits,
       Effect::kCopied,
       [](Setting& s) { give(s, {{2, kBytes}}); }},
      {{"cuMemcpyWithAttributesAsync"},
       Then::kWaits,
       Effect::kCopied,
       [](Setting& s) {
         give(s, {{2, kBytes}});
         s.arguments.behind<CUmemcpyAttributes>(3).srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
         give_stream(s, 4);
       }},
      {{"cuMemcpyDtoH_v2", "cuMemcpyDtoHAsync_v2"},
       Then::kWaits,
       Effect::kSucceeds,
       [](Setting& s) { give(s, {{2, kBytes}}); }},
      {{"cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2"},
       Then::kWaits,
       Effect::kSet,
       [](Setting& s) { give(s, {{2, kBytes}}); }},
      {{"cuMemcpyPeer", "cuMemcpyPeerAsync"},
       Then::kWaits,
       Effect::kCopied,
       [](Setting& s) {
         for (const std::size_t parameter : {1, 3}) s.arguments.value<CUcontext>(parameter) = s.fixtures.context;
         give(s, {{4, kBytes}});
       }},
      {{"cuMemcpyAtoD_v2"},
       Then::kWaits,
       Effect::kSucceeds,
       [](Setting& s) {
         s.arguments.value<CUarray>(1) = s.fixtures.array;
         give(s, {{3, kBytes}});
       }},
      {{"cuMemcpyDtoA_v2"},
       Then::kWaits,
       Effect::kSucceeds,
       [](Setting& s) {
         s.arguments.value<CUarray>(0) = s.fixtures.array;
         give(s, {{3, kBytes}});
       }},
      {{"cuMemcpy2D_v2", "cuMemcpy2DAsync_v2", "cuMemcpy2DUnaligned_v2"},
       Then::kWaits,
       Effect::kCopied,
       [](Setting& s) { shape<CUDA_MEMCPY2D>(s, 0); }},
      {{"cuMemcpy3D_v2", "cuMemcpy3DAsync_v2"}, Then::kWaits, Effect::kCopied, shape_3d<CUDA_MEMCPY3D>},
      {{"cuMemcpy3DPeer", "cuMemcpy3DPeerAsync"},
       Then::kWaits,
       Effect::kCopied,
       [](Setting& s) {
         shape_3d<CUDA_MEMCPY3D_PEER>(s);
         auto& copy = s.arguments.behind<CUDA_MEMCPY3D_PEER>(0);
         copy.srcContext = copy.dstContext = s.fixtures.context;
       }},
      {{"cuMemcpyBatchAsync"},
       Then::kWaits,
       Effect::kCopied,
       [](Setting& s) {
         batch(s);
         give_stream(s, 8);
       }},
      {{"cuMemcpyBatchAsync_v2"},
       Then::kWaits,
       Effect::kCopied,
       [](Setting& s) {
         batch(s);
         give_stream(s, 7);
       }},
      {{"cuMemcpy3DBatchAsync"},
       Then::kWaits,
       Effect::kCopied,
       [](Setting& s) {
         give(s, {{0, 1}});
         shape_operands(s, 1);
         give_stream(s, 4);
       }},
      {{"cuMemcpy3DBatchAsync_v2"},
       Then::kWaits,
       Effect::kCopied,
       [](Setting& s) {
         give(s, {{0, 1}});
         shape_operands(s, 1);
         give_stream(s, 3);
       }},
      {{"cuMemcpy3DWithAttributesAsync"},
       Then::kWaits,
       Effect::kCopied,
       [](Setting& s) {
         shape_operands(s, 0);
         give_stream(s, 2);
       }},
      {{"cuFabricCpyBatchAsync"}, Then::kWaits, Effect::kAny, [](Setting& s) { give(s, {{0, 1}}); }},
      {{"cuMemBatchDecompressAsync"}, Then::kWaits, Effect::kAny, [](Setting& s) { give(s, {{1, 1}}); }},
      {{"cuMemsetD8_v2", "cuMemsetD8Async", "cuMemsetD16_v2", "cuMemsetD16Async", "cuMemsetD32_v2", "cuMemsetD32Async"},
       Then::kWaits,
       Effect::kSet,
       [](Setting& s) { give(s, {{1, 0x77}, {2, 16}}); }},
      {{"cuMemsetD2D8_v2", "cuMemsetD2D8Async", "cuMemsetD2D16_v2", "cuMemsetD2D16Async", "cuMemsetD2D32_v2",
        "cuMemsetD2D32Async"},
       Then::kWaits,
       Effect::kSet,
       pitched_set},
      // The driver refuses all of these for plain memory.
      {{"cuMemPrefetchAsync", "cuMemPrefetchAsync_v2", "cuStreamAttachMemAsync"},
       Then::kWaits,
       Effect::kAny,
       [](Setting& s) { give(s, {{s.place.parameter + 1, kBytes}}); }},
      {{"cuMemPrefetchBatchAsync", "cuMemDiscardBatchAsync", "cuMemDiscardAndPrefetchBatchAsync"},
       Then::kWaits,
       Effect::kAny,
       ranges},
      {{"cuStreamWaitValue32", "cuStreamWaitValue32_v2", "cuStreamWaitValue64", "cuStreamWaitValue64_v2"},
       Then::kWaits,
       Effect::kSucceeds,
       [](Setting& s) { give_stream(s, 0); }},
      {{"cuStreamWriteValue32", "cuStreamWriteValue32_v2", "cuStreamWriteValue64", "cuStreamWriteValue64_v2"},
       Then::kWaits,
       Effect::kSet,
       [](Setting& s) {
         give_stream(s, 0);
         give(s, {{2, 0x77}});
       }},
      {{"cuStreamBatchMemOp", "cuStreamBatchMemOp_v2"},
       Then::kWaits,
       Effect::kAny,
       [](Setting& s) {
         give_stream(s, 0);
         give(s, {{1, 1}});
         value_operation(s, 2);
       }},
  };
  return kRows;
}

}  // namespace rota::test
