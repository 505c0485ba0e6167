// See activity.h.
#include "tools/simgpu/driver/stream/activity.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "scheduler/base/byte_size.h"
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/state/clock.h"

namespace rota::sim {
namespace {

class ActivityFile {
 public:
  // Never destroyed: streams' threads outlive static destructors.
  static ActivityFile& get() {
    static auto* file = new ActivityFile;
    return *file;
  }

  bool wanted() const { return !folder_.empty(); }

  // One system call per line, so that the line is written however the process ends.
  void write(const std::string& line) {
    std::lock_guard lock(mutex_);
    if (folder_.empty() || written_ + line.size() > most_) return;
    if (file_ < 0) {
      const std::string path = folder_ + "/simgpu-" + std::to_string(getpid()) + ".activity";
      file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
      if (file_ < 0) {
        std::fprintf(stderr, "simgpu: ROTA_SIM_ACTIVITY: cannot write %s: %m; name another folder\n", path.c_str());
        folder_.clear();
        return;
      }
    }
    if (::write(file_, line.data(), line.size()) > 0) written_ += line.size();
  }

 private:
  ActivityFile() {
    if (const char* folder = std::getenv("ROTA_SIM_ACTIVITY")) folder_ = folder;
    const char* most = std::getenv("ROTA_SIM_ACTIVITY_MAX_BYTES");
    const auto bytes = most == nullptr ? std::nullopt : parse_bytes(most);
    if (bytes) most_ = *bytes;
  }

  std::mutex mutex_;
  std::string folder_;
  uint64_t most_ = uint64_t{64} << 20;
  uint64_t written_ = 0;
  int file_ = -1;
};

}  // namespace

bool activity_is_recorded() {
  static const bool wanted = ActivityFile::get().wanted();
  return wanted;
}

const Origin*& running_origin() {
  thread_local const Origin* origin = nullptr;
  return origin;
}

Origin Origin::here() {
  if (!activity_is_recorded()) return {};
  if (running_origin() != nullptr) return *running_origin();
  return {static_cast<uint32_t>(syscall(SYS_gettid)), monotonic_nanoseconds(), 0};
}

KernelActivity::KernelActivity() {
  if (!activity_is_recorded()) return;
  begin_ns_ = monotonic_nanoseconds();
  begin_ = thread_timeline();
}

void KernelActivity::ended(const char* name, int64_t modelled) {
  const Origin* origin = running_origin();
  if (!activity_is_recorded() || origin == nullptr) return;
  Clock& clock = process_clock();
  if (driver().state().waits()) {
    modelled = thread_timeline() - begin_;
    // A thread wakes up late, but its next operation begins, in modelled time, where the last one ended.
    const double scale = driver().options.time_scale;
    if (!clock.is_virtual()) {
      begin_ns_ = monotonic_nanoseconds() - static_cast<int64_t>(static_cast<double>(clock.now() - begin_) * scale);
    }
  }
  ActivityFile::get().write(std::to_string(getpid()) + " " + std::to_string(origin->thread) + " " +
                            std::to_string(origin->launched_ns) + " " + std::to_string(begin_ns_) + " " +
                            std::to_string(modelled) + " " + std::to_string(origin->stream) + " " + name + "\n");
}

}  // namespace rota::sim
