// Rules about what every other rule leans on: kernels run, blockers block, a second process works.
#include "tests/simgpu/conformance/conformance.h"

CHILD(framework_echo) {
  Session session;
  parent.send(argument + " " + parent.receive());
}

RULE(launches, kernel_writes_what_the_host_reads, "idle:cuLaunchKernel",
     "A kernel's writes are seen by a copy to the host that the same thread makes afterwards") {
  Session session;
  Buffer words(1024 * sizeof(unsigned));
  words.write(std::vector<unsigned>(1024, 1));
  CHECK_OK(launch(session.function("fill"), 1, 256, nullptr, words.address(), 1024UL, 7U));
  CHECK(words.read<unsigned>(1024) == std::vector<unsigned>(1024, 7));
}

RULE(events, not_ready_while_work_before_it_runs, "idle:cuEventQuery",
     "cuEventQuery answers CUDA_ERROR_NOT_READY while work that the event was recorded behind still runs") {
  Session session;
  Stream stream;
  Event event;
  Blocker blocker(stream);
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuEventSynchronize(event));
  CHECK_OK(cu.cuEventQuery(event));
}

RULE(contexts, second_process_has_its_own_start, "refuse:cuInit",
     "Each process initialises the driver for itself, and both can use the same GPU at once") {
  Session session;
  Child child("framework_echo", "well");
  child.send("done");
  CHECK_EQ(child.receive(), "well done");
  child.finish();
}
