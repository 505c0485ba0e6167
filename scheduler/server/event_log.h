// The file that `rotad --event-log` writes (its lines: scheduler/core/event_log.h). Bounded: when the file is full the
// log ends and rotad continues.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/core/event.h"
#include "scheduler/protocol/result.h"

namespace rota::server {

class EventLog {
 public:
  static constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 20;

  // Nothing is logged.
  EventLog() = default;
  // Replaces an existing file; readable only by its owner, since it tells who used what when.
  static Result<EventLog> create(const std::string& path, const scheduler::Settings& settings,
                                 std::uint64_t max_bytes = kMaxBytes);

  void write(const scheduler::Event& event, scheduler::Time now, const std::vector<scheduler::Decision>& decisions);
  // A line that the core ignores.
  void remark(const std::string& text, scheduler::Time now);
  // What was written is in the file.
  void flush();

 private:
  struct Close {
    void operator()(FILE* file) const { fclose(file); }
  };
  void add(std::string lines);

  std::unique_ptr<FILE, Close> file_;
  std::uint64_t left_ = 0;  // bytes
};

}  // namespace rota::server
