// Virtual memory management does not wait for the GPU, nor does it harm a capture.
#include "tests/simgpu/conformance/vmm.h"
#include "tests/simgpu/conformance/work.h"

namespace {

// One extent in a reservation of its own, and what each step needs of the one before.
struct Extent {
  explicit Extent(const Session& session) : device(session.device()), bytes(granularity(device)) {}
  void create() { handle = create_physical(device, bytes); }
  void map() {
    if (address == 0) address = reserve(bytes);
    CHECK_OK(cu.cuMemMap(address, bytes, 0, handle, 0));
  }
  void allow() const { CHECK_OK(set_access(address, bytes, device)); }
  void unmap() const { CHECK_OK(cu.cuMemUnmap(address, bytes)); }
  void release() const { CHECK_OK(cu.cuMemRelease(handle)); }

  CUdevice device;
  size_t bytes;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
};

// All of it in a row, while a stream captures: nothing is refused, and the capture lives.
void lives_in_a_capture(const Session& session, CUstreamCaptureMode mode) {
  Stream stream;
  Extent extent(session);
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, mode));
  extent.create();
  extent.map();
  extent.allow();
  extent.unmap();
  extent.release();
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUgraph graph = nullptr;
  CHECK_OK(cu.cuStreamEndCapture(stream, &graph));
}

}  // namespace

RULE(vmm, creating_does_not_wait, "waits:cuMemCreate", "cuMemCreate returns while a kernel runs") {
  Session session;
  Stream stream;
  Extent extent(session);
  Blocker blocker(stream);
  extent.create();
  blocker.release();
  extent.release();
}

RULE(vmm, mapping_does_not_wait, "waits:cuMemMap", "cuMemMap returns while a kernel runs") {
  Session session;
  Stream stream;
  Extent extent(session);
  extent.create();
  Blocker blocker(stream);
  extent.map();
}

RULE(vmm, giving_access_does_not_wait, "waits:cuMemSetAccess", "cuMemSetAccess returns while a kernel runs") {
  Session session;
  Stream stream;
  Extent extent(session);
  extent.create();
  extent.map();
  Blocker blocker(stream);
  extent.allow();
}

RULE(vmm, releasing_does_not_wait, "waits:cuMemRelease",
     "cuMemRelease of the last that held the memory returns while a kernel runs") {
  Session session;
  Stream stream;
  Extent extent(session);
  extent.create();
  extent.map();
  extent.allow();
  extent.unmap();
  Blocker blocker(stream);
  extent.release();
}

RULE(vmm, global_captures_allow_it, "virtual_memory_is_unsafe_while_capturing",
     "cuMemCreate, cuMemMap, cuMemSetAccess, cuMemUnmap and cuMemRelease succeed by a thread that captures in global "
     "mode, "
     "and the capture lives") {
  Session session;
  lives_in_a_capture(session, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

RULE(vmm, local_captures_allow_it, "virtual_memory_is_unsafe_while_capturing",
     "cuMemCreate, cuMemMap, cuMemSetAccess, cuMemUnmap and cuMemRelease succeed by a thread that captures in "
     "thread-local "
     "mode, and the capture lives") {
  Session session;
  lives_in_a_capture(session, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

RULE(vmm, relaxed_captures_allow_it, "refuse:cuMemCreate",
     "cuMemCreate, cuMemMap, cuMemSetAccess, cuMemUnmap and cuMemRelease succeed by a thread that captures in relaxed "
     "mode, and the capture lives") {
  Session session;
  lives_in_a_capture(session, CU_STREAM_CAPTURE_MODE_RELAXED);
}
