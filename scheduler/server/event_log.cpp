#include "scheduler/server/event_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "scheduler/log/event_log.h"
#include "scheduler/log/limit_log.h"
#include "scheduler/server/log.h"

namespace rota::server {

namespace {

constexpr std::size_t kBuffered = 64 << 10;

bool write_all(int file, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t length = ::write(file, text.data() + done, text.size() - done);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) return false;
    done += static_cast<std::size_t>(length);
  }
  return true;
}

}  // namespace

Result<EventLog> EventLog::create(const std::string& path, const scheduler::Settings& settings,
                                  std::uint64_t max_bytes) {
  EventLog log;
  // A pipe that nobody reads must not keep rotad from starting, nor wait for its lines.
  log.file_ = Descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!log.file_) return Error{fmt::format("cannot write the event log {}: {}", path, strerror(errno))};
  struct stat info{};
  if (fstat(log.file_.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return Error{fmt::format("cannot write the event log {}: it is not a plain file", path)};
  }
  if (flock(log.file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Error{fmt::format("cannot write the event log {}: another rotad writes it; name another file", path)};
  }
  if (ftruncate(log.file_.get(), 0) != 0) {
    return Error{fmt::format("cannot write the event log {}: {}", path, strerror(errno))};
  }
  signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files ends the log and not rotad
  log.unwritten_ = scheduler::log_header(settings);
  log.left_ = max_bytes - std::min<std::uint64_t>(max_bytes, log.unwritten_.size());
  return log;
}

void EventLog::write(const scheduler::Event& event, scheduler::Time now,
                     const std::vector<scheduler::Decision>& decisions) {
  if (!file_) return;
  std::string lines = scheduler::log_line(event, now);
  for (const scheduler::Decision& decision : decisions) lines += scheduler::log_line(decision);
  add(lines);
}

void EventLog::write(const scheduler::LimitEvent& event, scheduler::Time limits_now, scheduler::Time now,
                     const scheduler::Quota& quota, const scheduler::LimitDecisions& decisions) {
  if (file_) add(scheduler::log_lines(event, limits_now, now) + scheduler::log_lines(quota, decisions));
}

void EventLog::remark(const std::string& text, scheduler::Time now) {
  if (file_) add(fmt::format("# {} {}\n", now.count(), text));
}

void EventLog::add(const std::string& lines) {
  const bool fits = lines.size() <= left_;
  unwritten_ += fits ? lines : "# full\n";
  left_ -= fits ? lines.size() : 0;
  if (!fits || unwritten_.size() >= kBuffered) flush();
  if (!fits && file_) end("it is full");
}

// If writing fails the log ends: what followed the missing part could not be replayed.
void EventLog::flush() {
  if (!file_ || unwritten_.empty()) return;
  if (write_all(file_.get(), unwritten_)) {
    written_ += std::exchange(unwritten_, {}).size();
    return;
  }
  const int error = errno;
  if (ftruncate(file_.get(), static_cast<off_t>(written_)) != 0) log::debug("the event log ends within an event");
  end(strerror(error));
}

void EventLog::end(const char* why) {
  log::warn("the event log ends here: {}", why);
  file_ = {};
  unwritten_.clear();
}

}  // namespace rota::server
