// See writer.h.
#include "runtime/trace/writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "runtime/core/files.h"
#include "runtime/trace/clock.h"

namespace rota::trace {
namespace {

// The first reservation is small, because many processes make few calls; later ones are large, because each costs a
// call to the file system while a thread waits.
constexpr std::uint64_t kFirstSegment = std::uint64_t{1} << 20;
constexpr std::uint64_t kLargestSegment = std::uint64_t{16} << 20;
// A remainder smaller than this is not worth a kThread record.
constexpr std::ptrdiff_t kSmallestLeftOver = 2048;
// Long enough that a clock read's jitter of some 50 ns is a rate error below 0.03%; later pairs improve on it.
constexpr std::uint64_t kCalibrationNanoseconds = 200'000;

}  // namespace

std::string program_name() {
  std::string path(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  path.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  std::string name = path.substr(path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1);
  if (name.empty()) name = "program";
  name.resize(std::min<std::size_t>(name.size(), 64));
  for (char& letter : name) {
    const bool plain = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                       (letter >= '0' && letter <= '9') || letter == '.' || letter == '-' || letter == '_';
    if (!plain) letter = '_';
  }
  return name;
}

Writer::Writer(WriterOptions options) : options_(std::move(options)), clock_(usable_clock()) {
  options_.max_bytes = std::max(options_.max_bytes, kMinimumBytes);
  if (options_.reserve == nullptr) options_.reserve = files::reserve;
}

Writer::~Writer() {
  for (const Segment& segment : segments_) munmap(segment.address, segment.bytes);
}

void Writer::log(const std::string& line) const {
  if (options_.log != nullptr) options_.log(line.c_str());
}

bool Writer::open() {
  const std::lock_guard guard(mutex_);
  if (mkdir(options_.directory.c_str(), 0777) != 0 && errno != EEXIST) {
    log("trace: cannot create the folder " + options_.directory + ": " + std::strerror(errno) +
        "; tracing is off: set ROTA_TRACE to another folder");
    stopped_ = true;
    return false;
  }
  const ClockPair start = read_clock_pair(clock_);
  // The program may change its working directory before the file grows.
  if (char* const absolute = realpath(options_.directory.c_str(), nullptr)) {
    options_.directory = absolute;
    std::free(absolute);
  }
  path_ = options_.directory + "/" + program_name() + "-" + std::to_string(getpid()) + "-" +
          std::to_string(start.realtime_ns) + kFileSuffix;
  const int file = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) {
    log("trace: cannot create " + path_ + ": " + std::strerror(errno) +
        "; tracing is off: set ROTA_TRACE to another folder");
    stopped_ = true;
    return false;
  }
  struct stat status{};
  fstat(file, &status);
  device_ = status.st_dev;
  inode_ = status.st_ino;
  const bool grown = grow(file);
  ::close(file);
  if (!grown) {
    ::unlink(path_.c_str());  // an empty file would only confuse
    return false;
  }
  header_ = reinterpret_cast<FileHeader*>(segments_.front().address);
  used_ = kHeaderBytes;
  FileHeader& header = *header_;
  header.version = kVersion;
  header.byte_order = kByteOrder;
  header.header_bytes = kHeaderBytes;
  header.chunk_bytes = kChunkBytes;
  header.driver_schema = options_.driver_schema;
  header.runtime_schema = options_.runtime_schema;
  header.pid = static_cast<std::uint32_t>(getpid());
  header.parent_pid = static_cast<std::uint32_t>(getppid());
  header.clock = clock_;
  header.state = State::kRunning;
  const std::string command = files::read_small("/proc/self/cmdline", sizeof header.command);
  header.command_bytes = static_cast<std::uint32_t>(command.size());
  std::memcpy(header.command, command.data(), command.size());
  header.start = start;
  // Does not sleep: the thread would be away 50 us longer than requested.
  while (clock_nanoseconds(CLOCK_MONOTONIC) - start.monotonic_ns < kCalibrationNanoseconds) {
  }
  header.calibrated = read_clock_pair(clock_);
  std::uint64_t magic = 0;
  std::memcpy(&magic, kMagic, sizeof magic);
  __atomic_store_n(reinterpret_cast<std::uint64_t*>(header.magic), magic, __ATOMIC_RELEASE);
  return true;
}

int Writer::open_again() const {
  const int file = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return -1;
  struct stat status{};
  if (fstat(file, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_) return file;
  ::close(file);
  errno = ENOENT;
  return -1;
}

bool Writer::grow(int file) {
  const std::uint64_t wanted = std::clamp(reserved_, kFirstSegment, kLargestSegment);
  const std::uint64_t room = options_.max_bytes > reserved_ ? options_.max_bytes - reserved_ : 0;
  const std::uint64_t bytes = std::min(wanted, room) / kChunkBytes * kChunkBytes;
  if (bytes == 0) {
    stop(State::kCapped, 0);
    return false;
  }
  if (const int error = options_.reserve(file, static_cast<off_t>(reserved_), static_cast<off_t>(bytes)); error != 0) {
    stop(State::kOutOfSpace, error);
    return false;
  }
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(reserved_));
  if (address == MAP_FAILED) {
    stop(State::kOutOfSpace, errno);
    return false;
  }
  // Lets the file system answer a fault with 2 MiB of page cache where it can (ext4 and xfs on recent kernels): 0.5 us
  // per 4 KiB, otherwise 2 us. Not for the first reservation, which a process with few calls barely uses.
  if (reserved_ != 0) madvise(address, bytes, MADV_HUGEPAGE);
  segments_.push_back({static_cast<std::byte*>(address), bytes});
  reserved_ += bytes;
  return true;
}

void Writer::stop(State state, int error) {
  stopped_ = true;
  if (header_ != nullptr) {
    header_->stop_errno = static_cast<std::uint32_t>(error);
    header_->state = state;
  }
  if (state == State::kCapped) {
    log("trace: " + path_ + " has reached " + std::to_string(options_.max_bytes) +
        " bytes; tracing of this process ends here and the program continues (ROTA_TRACE_MAX_BYTES sets the limit)");
  } else {
    log("trace: cannot extend " + path_ + ": " + std::strerror(error) +
        "; tracing of this process ends here and the program continues");
  }
}

Writer::Stretch Writer::take() {
  Stretch stretch;
  std::uint64_t sequence = 0;
  // Each call of a program whose trace has stopped comes through here: so without the lock.
  if (stopped_.load(std::memory_order_relaxed)) return {};
  {
    const std::lock_guard guard(mutex_);
    if (stopped_) return {};
    if (!left_over_.empty()) {
      stretch = left_over_.back();
      left_over_.pop_back();
      return stretch;
    }
    if (used_ + kChunkBytes > reserved_) {
      const int file = open_again();
      if (file < 0) {
        stop(State::kOutOfSpace, errno);
        return {};
      }
      const bool grown = grow(file);
      ::close(file);
      if (!grown) return {};
    }
    const Segment& segment = segments_.back();
    stretch.begin = segment.address + (used_ - (reserved_ - segment.bytes));
    stretch.end = stretch.begin + kChunkBytes;
    used_ += kChunkBytes;
    sequence = chunks_++;
  }
  // One call instead of a page fault per 4 KiB of records.
  if (!files::populate(stretch.begin, kChunkBytes)) {
    const std::lock_guard guard(mutex_);
    if (!stopped_) stop(State::kOutOfSpace, ENOSPC);
    return {};
  }
  auto* const chunk = reinterpret_cast<ChunkHeader*>(stretch.begin);
  chunk->thread = static_cast<std::uint32_t>(syscall(SYS_gettid));
  chunk->sequence = sequence;
  prctl(PR_GET_NAME, chunk->thread_name);
  __atomic_store_n(&chunk->magic, kChunkMagic, __ATOMIC_RELEASE);
  stretch.begin += sizeof(ChunkHeader);
  return stretch;
}

void Writer::give_back(std::byte* cursor, std::byte* end) {
  if (end - cursor < kSmallestLeftOver) return;
  const std::lock_guard guard(mutex_);
  left_over_.push_back({cursor, end, true});
}

void Writer::refresh_calibration() {
  const ClockPair pair = read_clock_pair(clock_);
  const std::lock_guard guard(mutex_);
  if (header_ == nullptr) return;
  header_->refreshed[header_->refreshes & 1] = pair;
  __atomic_store_n(&header_->refreshes, header_->refreshes + 1, __ATOMIC_RELEASE);
}

void Writer::finish() {
  refresh_calibration();
  const std::lock_guard guard(mutex_);
  if (header_ == nullptr) return;
  if (header_->state == State::kRunning) header_->state = State::kEnded;
  stopped_ = true;
  // Only space that was never handed out is cut off, so no thread can touch it. A failure only costs disk space.
  const int file = open_again();
  if (file < 0) return;
  [[maybe_unused]] const int cut = ftruncate(file, static_cast<off_t>(used_));
  ::close(file);
}

State Writer::state() const {
  const std::lock_guard guard(mutex_);
  return header_ == nullptr ? State::kOutOfSpace : header_->state;
}

}  // namespace rota::trace
