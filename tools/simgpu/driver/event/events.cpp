// The tasks and records behind events.
#include "tools/simgpu/driver/event/event.h"

#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/state/shared_state.h"

namespace rota::sim {

bool Record::done() const {
  if (mutated(Mutation::events_complete_at_once)) return true;
  if (shared) return shared->done(number);
  return !task || task->done();
}

void Record::wait() const {
  if (mutated(Mutation::event_synchronize_returns_at_once)) return;
  if (shared) {
    shared->wait(number);
  } else if (task) {
    task->wait();
  }
}

Record current_record(Event& event) {
  if (StreamPointer stream = event.stream.lock()) return {stream->last(), nullptr, 0};
  std::lock_guard lock(event.mutex);
  return {event.recorded, event.shared, event.shared ? event.shared->last() : 0};
}

void set_recorded(Event& event, TaskPointer task) {
  std::lock_guard lock(event.mutex);
  if (mutated(Mutation::records_are_not_replaced) && event.recorded) return;
  event.recorded = std::move(task);
  event.capture.reset();
  event.capture_tail.clear();
}

Record begin_record(Event& event) {
  Record record{std::make_shared<Task>(), event.shared, 0};
  if (event.shared) record.number = event.shared->begin();
  set_recorded(event, record.task);
  return record;
}

void finish(const Record& record) {
  record.task->finish();
  if (record.shared) record.shared->end(record.number);
}

}  // namespace rota::sim
