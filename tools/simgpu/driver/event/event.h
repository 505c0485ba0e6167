// Events: which task an event refers to, which capture it was recorded in, and records made within other work.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tools/simgpu/driver/stream/stream.h"

namespace rota::sim {

// The shared part of an event that a process has exported. Records are numbered; 0: never recorded.
class InterprocessEvent {
 public:
  virtual ~InterprocessEvent() = default;
  virtual uint64_t begin() = 0;           // a record is queued; its number
  virtual void end(uint64_t record) = 0;  // the work before it is done
  virtual uint64_t last() const = 0;      // the newest record, of any process
  virtual bool done(uint64_t record) const = 0;
  virtual void wait(uint64_t record) const = 0;  // also ends if the recording process has died
};

struct Event {
  Event(unsigned flags, CUcontext context) : flags(flags), context(context) {}
  const unsigned flags;
  const CUcontext context;
  std::shared_ptr<InterprocessEvent> shared;  // null: of this process only; set before the event is handed out
  std::weak_ptr<Stream> stream;               // Mutation::events_stand_for_later_work
  std::mutex mutex;
  TaskPointer recorded;  // null: never recorded, counts as complete
  // If recorded in a capturing stream: where a stream that waits for it joins the capture.
  std::shared_ptr<Capture> capture;
  std::vector<GraphNode*> capture_tail;

  bool timed() const { return (flags & CU_EVENT_DISABLE_TIMING) == 0; }
};

// What an event referred to at some point: later records do not change it.
struct Record {
  TaskPointer task;
  std::shared_ptr<InterprocessEvent> shared;
  uint64_t number = 0;
  bool done() const;
  void wait() const;
};
Record current_record(Event& event);

// From now on the event refers to the task, which ends when the record is reached.
void set_recorded(Event& event, TaskPointer task);

// A record inside other work (a graph's node): from now on the event refers to a record that finish() completes.
Record begin_record(Event& event);
void finish(const Record& record);

// Implements cuEventRecord: in a capturing stream the event becomes a point where other streams join the capture, or
// (external) a node of the graph.
CUresult record_in_stream(CUevent event, const StreamPointer& stream, bool external);

// A new stream waits for the events that its context was told to wait for (cuCtxWaitEvent).
CUresult wait_as_context_does(const StreamPointer& stream);

}  // namespace rota::sim
