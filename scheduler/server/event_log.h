// The file that `rotad --event-log` writes (its lines: scheduler/log/event_log.h). Bounded: when the file is full, or
// its disk is, the log ends for good between two events, so that what it has can be played, and rotad continues.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/base/descriptor.h"
#include "scheduler/base/result.h"
#include "scheduler/core/event.h"
#include "scheduler/limits/limit_event.h"

namespace rota::server {

class EventLog {
 public:
  static constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 20;

  // An object that logs nothing.
  EventLog() = default;
  // Replaces an existing file, but not the log of a rotad that runs; readable only by its owner, since it tells who
  // used what when.
  static Result<EventLog> create(const std::string& path, const scheduler::Settings& settings,
                                 std::uint64_t max_bytes = kMaxBytes);

  void write(const scheduler::Event& event, scheduler::Time now, const std::vector<scheduler::Decision>& decisions);
  void write(const scheduler::LimitEvent& event, scheduler::Time limits_now, scheduler::Time now,
             const scheduler::Quota& quota, const scheduler::LimitDecisions& decisions);
  // A line that the core ignores.
  void remark(const std::string& text, scheduler::Time now);
  // Afterwards all that was written is in the file.
  void flush();
  EventLog(EventLog&&) noexcept = default;
  EventLog& operator=(EventLog&&) noexcept = default;
  ~EventLog() { flush(); }

 private:
  void add(const std::string& lines);
  void end(const char* why);

  Descriptor file_;
  std::string unwritten_;      // whole events
  std::uint64_t written_ = 0;  // bytes, up to the end of an event
  std::uint64_t left_ = 0;     // bytes
};

}  // namespace rota::server
