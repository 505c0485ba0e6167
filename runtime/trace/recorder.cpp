// See recorder.h. The fast path (record.h) touches only the thread's own Thread; everything here is the slow side.
#include "runtime/trace/recorder.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "runtime/trace/clock.h"
#include "runtime/trace/record.h"
#include "runtime/trace/thread.h"

namespace rota::trace {
namespace {

class Recorder {
 public:
  explicit Recorder(const WriterOptions& options) : options_(options) {
    pthread_key_create(&at_thread_exit_, [](void* thread) { thread_ends(*static_cast<Thread*>(thread)); });
  }

  bool begin() {
    auto* const writer = new Writer(options_);
    writer_ = writer;
    return writer->open();
  }

  std::byte* reserve(Thread& thread, std::uint32_t bytes) {
    Writer* const writer = writer_of_this_process();
    if (thread.end != nullptr) writer->give_back(thread.cursor, thread.end);
    thread.cursor = thread.end = nullptr;
    // The records for the new thread's name and the time need space, too; a left-over stretch may be too short for all.
    const std::uint32_t needed = bytes + kThreadRecordBytes + RecordWord::kOverhead;
    for (;;) {
      const Writer::Stretch stretch = writer->take();
      if (stretch.begin == nullptr) return nullptr;
      if (stretch.end - stretch.begin < static_cast<std::ptrdiff_t>(needed))
        continue;  // a left-over stretch that is too short
      thread.clock = writer->clock();
      thread.cursor = stretch.begin;
      thread.end = stretch.end;
      pthread_setspecific(at_thread_exit_, &thread);
      if (thread.refresh_at == 0) thread.refresh_at = read_ticks(thread.clock) + nominal_ticks_per_second(thread.clock);
      if (stretch.continued) name_thread(thread);
      begin_epoch(thread);
      std::byte* const place = thread.cursor;
      thread.cursor += bytes;
      return place;
    }
  }

  // About once a second.
  void refresh(Thread& thread, std::uint64_t ticks) {
    thread.refresh_at = ticks + nominal_ticks_per_second(thread.clock);
    if (Writer* const writer = writer_.load(std::memory_order_acquire)) writer->refresh_calibration();
  }

  void thread_ends(Thread& thread, Writer* writer) {
    // Programs name their threads late: the current name is the one to show.
    if (writer != nullptr && has_space(thread, kThreadRecordBytes)) name_thread(thread);
    if (writer != nullptr && thread.end != nullptr) writer->give_back(thread.cursor, thread.end);
    thread.cursor = thread.end = nullptr;
  }
  static void thread_ends(Thread& thread);

  void before_fork() {
    starting_.lock();
    if (Writer* const writer = writer_) writer->lock();
  }
  void after_fork_in_parent() {
    if (Writer* const writer = writer_) writer->unlock();
    starting_.unlock();
  }
  // The child has its parent's mapping and must not write into it. Its own file is created at its first record, so that
  // a child that only execs leaves none.
  void after_fork_in_child(Thread& thread) {
    thread = Thread{};
    if (Writer* const writer = writer_.exchange(nullptr)) {
      writer->unlock();
      delete writer;
    }
    starting_.unlock();
  }

  // This is the last chance to record the current names of threads that are still running.
  void process_ends(Thread& thread) {
    Writer* const writer = writer_;
    if (writer == nullptr) return;
    if (DIR* const tasks = opendir("/proc/self/task")) {
      while (const dirent* const task = readdir(tasks)) {
        const auto id = static_cast<std::uint32_t>(std::strtoul(task->d_name, nullptr, 10));
        if (id != 0 && has_space(thread, 2 * kThreadRecordBytes + RecordWord::kOverhead)) name_other(thread, id);
      }
      closedir(tasks);
      if (has_space(thread, kThreadRecordBytes + RecordWord::kOverhead)) {
        name_thread(thread);
        begin_epoch(thread);
      }
    }
    writer->finish();
  }

  std::string path() const {
    const Writer* const writer = writer_;
    return writer == nullptr ? std::string() : writer->path();
  }

 private:
  static constexpr std::uint32_t kThreadRecordBytes = RecordWord::kOverhead + 16;

  Writer* writer_of_this_process() {
    if (Writer* const writer = writer_.load(std::memory_order_acquire)) return writer;
    const std::lock_guard guard(starting_);
    if (Writer* const writer = writer_) return writer;
    auto* const writer = new Writer(options_);
    writer->open();  // if it fails, take() gives nothing
    writer_.store(writer, std::memory_order_release);
    return writer;
  }

  static bool has_space(const Thread& thread, std::uint32_t bytes) {
    return thread.end != nullptr && thread.end - thread.cursor >= static_cast<std::ptrdiff_t>(bytes);
  }

  static void name_thread(Thread& thread) {
    char name[16] = {};
    prctl(PR_GET_NAME, name);
    put_name(thread, static_cast<std::uint32_t>(syscall(SYS_gettid)), name);
  }

  static void name_other(Thread& thread, std::uint32_t id) {
    const std::string path = "/proc/self/task/" + std::to_string(id) + "/comm";
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    char name[16] = {};
    const ssize_t length = ::read(file, name, sizeof name);
    ::close(file);
    if (length <= 0) return;
    name[length - 1] = '\0';  // a newline
    put_name(thread, id, name);
  }

  static void put_name(Thread& thread, std::uint32_t id, const char (&name)[16]) {
    std::byte* const place = thread.cursor;
    thread.cursor += kThreadRecordBytes;
    std::memcpy(place + RecordWord::kOverhead, name, sizeof name);
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(place),
                     RecordWord::make(kThreadRecordBytes, RecordKind::kThread, 0, 0, id), __ATOMIC_RELEASE);
  }

  static void begin_epoch(Thread& thread) {
    std::byte* const place = thread.cursor;
    thread.cursor += RecordWord::kOverhead;
    detail::begin_epoch(thread, place, RecordWord::kOverhead, read_ticks(thread.clock));
  }

  WriterOptions options_;
  pthread_key_t at_thread_exit_{};
  std::mutex starting_;
  std::atomic<Writer*> writer_{nullptr};
};

std::atomic<Recorder*> g_recorder{nullptr};
// Initial-exec: one instruction instead of a call to __tls_get_addr. The core is loaded late, but glibc keeps static
// TLS space for such small needs.
[[gnu::tls_model("initial-exec")]] thread_local Thread t_thread{};

void Recorder::thread_ends(Thread& thread) {
  if (Recorder* const recorder = g_recorder) recorder->thread_ends(thread, recorder->writer_);
}

}  // namespace

Thread& this_thread() {
  return t_thread;
}

std::byte* reserve_slowly(Thread& thread, std::uint32_t bytes) {
  Recorder* const recorder = g_recorder.load(std::memory_order_acquire);
  return recorder == nullptr ? nullptr : recorder->reserve(thread, bytes);
}

void refresh(Thread& thread, std::uint64_t ticks) {
  if (Recorder* const recorder = g_recorder.load(std::memory_order_acquire)) recorder->refresh(thread, ticks);
}

bool start_recording(const WriterOptions& options) {
  if (g_recorder != nullptr) return true;
  auto* const recorder = new Recorder(options);
  if (!recorder->begin()) {
    delete recorder;
    return false;
  }
  g_recorder.store(recorder, std::memory_order_release);
  pthread_atfork([] { g_recorder.load()->before_fork(); }, [] { g_recorder.load()->after_fork_in_parent(); },
                 [] { g_recorder.load()->after_fork_in_child(t_thread); });
  std::atexit([] { g_recorder.load()->process_ends(t_thread); });
  return true;
}

bool recording() {
  return g_recorder.load(std::memory_order_acquire) != nullptr;
}

void note_wait(std::chrono::nanoseconds waited) {
  if (!recording()) return;
  Thread& thread = this_thread();
  detail::append<RecordKind::kWait>(
      thread, [&thread] { return read_ticks(thread.clock); }, kDriverApi, 0,
      static_cast<std::uint64_t>(waited.count()));
}

std::string recording_path() {
  const Recorder* const recorder = g_recorder.load(std::memory_order_acquire);
  return recorder == nullptr ? std::string() : recorder->path();
}

}  // namespace rota::trace
