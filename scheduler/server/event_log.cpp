#include "scheduler/server/event_log.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "scheduler/core/event_log.h"
#include "scheduler/protocol/descriptor.h"
#include "scheduler/server/log.h"

namespace rota::server {

Result<EventLog> EventLog::create(const std::string& path, const scheduler::Settings& settings,
                                  std::uint64_t max_bytes) {
  Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  EventLog log;
  if (file) log.file_.reset(fdopen(file.get(), "w"));
  if (!log.file_) return Error{fmt::format("cannot write the event log {}: {}", path, strerror(errno))};
  file.release();
  const std::string header = scheduler::log_header(settings);
  fputs(header.c_str(), log.file_.get());
  log.left_ = max_bytes - std::min<std::uint64_t>(max_bytes, header.size());
  return log;
}

void EventLog::write(const scheduler::Event& event, scheduler::Time now,
                     const std::vector<scheduler::Decision>& decisions) {
  if (!file_) return;
  std::string lines = scheduler::log_line(event, now);
  for (const scheduler::Decision& decision : decisions) lines += scheduler::log_line(decision);
  add(std::move(lines));
}

void EventLog::remark(const std::string& text, scheduler::Time now) {
  if (file_) add(fmt::format("# {} {}\n", now.count(), text));
}

void EventLog::add(std::string lines) {
  const bool fits = lines.size() <= left_;
  if (!fits) lines = "# full\n";
  left_ -= fits ? lines.size() : 0;
  if (fputs(lines.c_str(), file_.get()) == EOF || !fits) {
    log::warn("the event log ends here: {}", fits ? strerror(errno) : "it is full");
    file_.reset();
  }
}

void EventLog::flush() {
  if (file_) fflush(file_.get());
}

}  // namespace rota::server
