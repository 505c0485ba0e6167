// See file.h.
#include "tools/rota/trace/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "runtime/trace/names.h"

namespace rota::tool {
namespace {

using trace::RecordKind;
using trace::RecordWord;

std::uint64_t load64(const std::byte* from) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, sizeof value);
  return value;
}

const names::Api& api_names(std::uint32_t api) {
  return api == trace::kDriverApi ? names::driver() : names::runtime();
}

}  // namespace

std::unique_ptr<TraceFile> TraceFile::open(const std::string& path, std::string& problem) {
  std::unique_ptr<TraceFile> file(new TraceFile(path));
  file->file_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status{};
  if (!file->file_ || fstat(file->file_.get(), &status) != 0) {
    problem = fmt::format("{}: {}", path, std::strerror(errno));
    return nullptr;
  }
  if (!S_ISREG(status.st_mode)) {
    problem = fmt::format("{}: not a regular file", path);
    return nullptr;
  }
  file->size_ = static_cast<std::uint64_t>(status.st_size);
  if (!file->read_header(problem)) return nullptr;
  file->index_chunks();
  return file;
}

std::vector<std::byte> TraceFile::read(std::uint64_t offset, std::size_t bytes) const {
  std::vector<std::byte> data(bytes);
  std::size_t have = 0;
  while (have < bytes) {
    const ssize_t got = pread(file_.get(), data.data() + have, bytes - have, static_cast<off_t>(offset + have));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  data.resize(have);
  return data;
}

void TraceFile::report(std::uint64_t offset, const std::string& what) {
  // A damaged file may have a million errors; the first ones are enough.
  constexpr std::size_t kMostProblems = 20;
  if (problems_.size() < kMostProblems) problems_.push_back(fmt::format("{}: at offset {}: {}", path_, offset, what));
}

bool TraceFile::read_header(std::string& problem) {
  const auto fail = [&](std::uint64_t offset, const std::string& what) {
    problem = fmt::format("{}: at offset {}: {}", path_, offset, what);
    return false;
  };
  const std::vector<std::byte> bytes = read(0, sizeof header_);
  const std::size_t begun = std::min(bytes.size(), sizeof trace::kMagic);
  if (begun != 0 && std::memcmp(bytes.data(), trace::kMagic, begun) != 0) {
    return fail(0, "not a rota trace (or the process was killed before it had written the header)");
  }
  if (bytes.size() < sizeof header_) {
    return fail(bytes.size(), fmt::format("the file is cut off within its header of {} bytes", sizeof header_));
  }
  std::memcpy(&header_, bytes.data(), sizeof header_);
  if (header_.byte_order != trace::kByteOrder) {
    return fail(offsetof(trace::FileHeader, byte_order),
                "written on a machine with the other byte order; read it there");
  }
  if (header_.version != trace::kVersion) {
    return fail(offsetof(trace::FileHeader, version),
                fmt::format("format version {}, this rota reads {}; use the rota that wrote it", header_.version,
                            trace::kVersion));
  }
  if (header_.header_bytes != trace::kHeaderBytes || header_.chunk_bytes != trace::kChunkBytes) {
    return fail(offsetof(trace::FileHeader, header_bytes),
                "header or chunk size of another format; the header is damaged");
  }
  if (header_.driver_schema != names::driver().schema || header_.runtime_schema != names::runtime().schema) {
    return fail(offsetof(trace::FileHeader, driver_schema),
                "written by a rota with other function tables; use the rota that wrote it");
  }
  header_.command_bytes = std::min<std::uint32_t>(header_.command_bytes, sizeof header_.command);
  if (header_.calibrated.ticks <= header_.start.ticks ||
      header_.calibrated.monotonic_ns <= header_.start.monotonic_ns) {
    return fail(offsetof(trace::FileHeader, start), "the clock's calibration is missing or damaged");
  }
  return true;
}

void TraceFile::index_chunks() {
  for (std::uint64_t offset = header_.header_bytes; offset < size_; offset += header_.chunk_bytes) {
    const std::vector<std::byte> chunk = read(offset, header_.chunk_bytes);
    if (chunk.size() < header_.chunk_bytes) report(offset + chunk.size(), "the file is cut off within a chunk");
    if (chunk.size() < sizeof(trace::ChunkHeader)) break;
    index_chunk(offset, chunk);
  }
  for (auto& [thread, stretches] : stretches_) {
    std::stable_sort(stretches.begin(), stretches.end(),
                     [](const Stretch& left, const Stretch& right) { return left.first_ticks < right.first_ticks; });
  }
  // At its end a process records the names of all its threads, including those that made no calls.
  std::erase_if(threads_, [&](const auto& thread) { return !stretches_.contains(thread.first); });
}

void TraceFile::index_chunk(std::uint64_t offset, const std::vector<std::byte>& chunk) {
  trace::ChunkHeader header{};
  std::memcpy(&header, chunk.data(), sizeof header);
  if (header.magic == 0) return;  // reserved, never used
  if (header.magic != trace::kChunkMagic) {
    report(offset, "this is not the start of a chunk; the chunk is left out");
    return;
  }
  std::uint32_t thread = header.thread;
  std::size_t stretch_begin = sizeof header;
  std::uint64_t first_ticks = 0;
  std::uint64_t epoch = 0;
  bool has_epoch = false;
  const auto name = [&](const void* text) {
    const auto* const letters = static_cast<const char*>(text);
    threads_[thread] = std::string(letters, strnlen(letters, sizeof header.thread_name));
  };
  name(header.thread_name);
  std::size_t position = sizeof header;
  const auto close_stretch = [&] {
    if (first_ticks != 0) stretches_[thread].push_back({offset + stretch_begin, offset + position, first_ticks});
    first_ticks = 0;
  };
  while (position + RecordWord::kOverhead <= chunk.size()) {
    const std::uint64_t word = load64(chunk.data() + position);
    if (word == 0) break;
    const std::size_t bytes = RecordWord::bytes(word);
    const RecordKind kind = RecordWord::kind(word);
    if (bytes < RecordWord::kOverhead || position + bytes > chunk.size()) {
      report(offset + position, fmt::format("a record of {} bytes; the rest of the chunk is left out", bytes));
      break;
    }
    if (kind == RecordKind::kEnd || kind > RecordKind::kWait) {
      report(offset + position,
             fmt::format("a record of unknown kind {}; the rest of the chunk is left out", static_cast<int>(kind)));
      break;
    }
    if (kind == RecordKind::kTime) {
      epoch = std::uint64_t{RecordWord::value(word)} << 32;
      has_epoch = true;
    } else if (kind == RecordKind::kThread) {
      close_stretch();
      has_epoch = false;
      thread = RecordWord::value(word);
      if (bytes >= RecordWord::kOverhead + sizeof header.thread_name) {
        name(chunk.data() + position + RecordWord::kOverhead);
      }
      stretch_begin = position + bytes;
    } else if (!has_epoch) {
      report(offset + position, "a call before the record that says its time; the rest of the chunk is left out");
      break;
    } else {
      const std::uint64_t ticks = epoch | RecordWord::value(word);
      if (first_ticks == 0) first_ticks = ticks;
      last_ticks_ = std::max(last_ticks_, ticks);
    }
    position += bytes;
  }
  close_stretch();
}

std::uint64_t TraceFile::monotonic_ns(std::uint64_t ticks) const {
  // The latest pair gives the longest base, hence the best rate.
  const trace::ClockPair& first = header_.start;
  trace::ClockPair last = header_.calibrated;
  if (header_.refreshes > 0) {
    const trace::ClockPair& refreshed = header_.refreshed[(header_.refreshes - 1) & 1];
    if (refreshed.ticks > last.ticks && refreshed.monotonic_ns > last.monotonic_ns) last = refreshed;
  }
  const long double rate = static_cast<long double>(last.monotonic_ns - first.monotonic_ns) /
                           static_cast<long double>(last.ticks - first.ticks);
  const long double since = static_cast<long double>(ticks) - static_cast<long double>(first.ticks);
  const long double time = static_cast<long double>(first.monotonic_ns) + since * rate;
  // A damaged record may hold any number.
  constexpr long double kMost = 9.2e18L;
  return time < 0 ? 0 : static_cast<std::uint64_t>(std::min(time, kMost));
}

std::uint64_t TraceFile::realtime_ns(std::uint64_t monotonic_ns) const {
  return monotonic_ns + (header_.start.realtime_ns - header_.start.monotonic_ns);
}

std::string TraceFile::command() const {
  std::string text(header_.command, header_.command_bytes);
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

std::string TraceFile::program() const {
  // <program>-<pid>-<start>.rotatrace
  std::string name = std::filesystem::path(path_).stem().string();
  for (int part = 0; part < 2; ++part) {
    const std::size_t dash = name.rfind('-');
    if (dash == std::string::npos || dash == 0) break;
    name.resize(dash);
  }
  return name;
}

std::string TraceFile::ending() const {
  switch (header_.state) {
    case trace::State::kEnded:
      return {};
    case trace::State::kCapped:
      return fmt::format("{}: the trace stops at its size limit (ROTA_TRACE_MAX_BYTES); the program continued", path_);
    case trace::State::kOutOfSpace:
      return fmt::format("{}: the trace stops where no more space was available ({}); the program continued", path_,
                         std::strerror(static_cast<int>(header_.stop_errno)));
    case trace::State::kRunning:
      break;
  }
  return fmt::format("{}: process {} did not end by exit(): it was killed, called _exit(), or is still running", path_,
                     pid());
}

TraceThread::TraceThread(TraceFile& file, std::uint32_t thread) : file_(file), thread_(thread) {
  static const std::vector<TraceFile::Stretch> kNone;
  const auto found = file.stretches_.find(thread);
  stretches_ = found == file.stretches_.end() ? &kNone : &found->second;
}

bool TraceThread::next(TraceCall& call) {
  bool more = true;
  while (pending_.empty() || !pending_.front().complete) {
    more = read_record();
    if (!more) break;
  }
  if (pending_.empty()) return false;
  call = std::move(pending_.front().call);
  if (!call.returned) {
    call.end_ns = std::max(call.begin_ns, file_.monotonic_ns(file_.last_ticks_));
    call.waited_ns = std::min(call.waited_ns, call.end_ns - call.begin_ns);
  }
  pending_.pop_front();
  ++first_pending_;
  return true;
}

bool TraceThread::read_record() {
  while (position_ + RecordWord::kOverhead > buffer_.size()) {
    if (next_stretch_ == stretches_->size()) return false;
    const TraceFile::Stretch& stretch = (*stretches_)[next_stretch_++];
    offset_ = stretch.begin;
    buffer_ = file_.read(stretch.begin, stretch.end - stretch.begin);
    position_ = 0;
    epoch_ = 0;
  }
  // The file may change during reading (it is still being written, or overwritten), so what the index checked is
  // checked again.
  const std::uint64_t word = load64(buffer_.data() + position_);
  const std::size_t bytes = RecordWord::bytes(word);
  const std::uint64_t offset = offset_ + position_;
  if (bytes < RecordWord::kOverhead || position_ + bytes > buffer_.size()) {
    file_.report(offset, "the record changed while it was being read");
    position_ = buffer_.size();
    return true;
  }
  const std::byte* const payload = buffer_.data() + position_ + RecordWord::kOverhead;
  const std::size_t payload_bytes = bytes - RecordWord::kOverhead;
  const RecordKind kind = RecordWord::kind(word);
  position_ += bytes;
  if (kind == RecordKind::kTime) {
    epoch_ = std::uint64_t{RecordWord::value(word)} << 32;
    return true;
  }
  const std::uint64_t ticks = epoch_ | RecordWord::value(word);
  if (RecordWord::function(word) >= api_names(RecordWord::api(word)).functions.size()) {
    file_.report(offset, fmt::format("function number {}, which does not exist", RecordWord::function(word)));
    return true;
  }
  if (kind == RecordKind::kReturn) {
    take_return(offset, word, ticks, 0, {payload, payload_bytes});
    return true;
  }
  if (kind == RecordKind::kResult) {
    std::uint32_t value = 0;
    if (payload_bytes < sizeof value) {
      file_.report(offset, "a return record without its result");
      return true;
    }
    std::memcpy(&value, payload, sizeof value);
    take_return(offset, word, ticks, value, {payload + sizeof value, payload_bytes - sizeof value});
    return true;
  }
  if (kind == RecordKind::kWait) {
    if (payload_bytes < sizeof(std::uint64_t)) {
      file_.report(offset, "a record of a wait without its time");
      return true;
    }
    for (const std::uint64_t call : open_) pending_[call - first_pending_].call.waited_ns += load64(payload);
    return true;
  }
  Pending& entry = pending_.emplace_back();
  entry.call.thread = thread_;
  entry.call.api = RecordWord::api(word);
  entry.call.function = RecordWord::function(word);
  entry.call.depth = static_cast<std::uint32_t>(open_.size());
  entry.call.begin_ns = file_.monotonic_ns(ticks);
  entry.call.arguments.assign(payload, payload + payload_bytes);
  open_.push_back(first_pending_ + pending_.size() - 1);
  return true;
}

void TraceThread::take_return(std::uint64_t offset, std::uint64_t word, std::uint64_t ticks, std::uint32_t value,
                              std::span<const std::byte> payload) {
  // Calls above the match were left by an exception or longjmp through a callback: they never returned.
  for (std::size_t i = open_.size(); i-- > 0;) {
    Pending& candidate = pending_[open_[i] - first_pending_];
    if (candidate.call.api != RecordWord::api(word) || candidate.call.function != RecordWord::function(word)) continue;
    for (std::size_t above = i; above < open_.size(); ++above) pending_[open_[above] - first_pending_].complete = true;
    open_.resize(i);
    candidate.call.returned = true;
    candidate.call.value = value;
    candidate.call.end_ns = std::max(candidate.call.begin_ns, file_.monotonic_ns(ticks));
    candidate.call.waited_ns = std::min(candidate.call.waited_ns, candidate.call.end_ns - candidate.call.begin_ns);
    candidate.call.results.assign(payload.begin(), payload.end());
    return;
  }
  file_.report(offset, "a return without its call; the call's record is in a damaged part");
}

TraceMerge::TraceMerge(const std::vector<std::unique_ptr<TraceFile>>& files) {
  for (const auto& file : files) {
    for (const auto& [thread, name] : file->threads()) {
      auto source = std::make_unique<Source>(Source{file.get(), TraceThread(*file, thread), {}});
      if (!source->thread.next(source->call)) continue;
      heap_.push_back(source.get());
      sources_.push_back(std::move(source));
    }
  }
  std::make_heap(heap_.begin(), heap_.end(),
                 [](const Source* left, const Source* right) { return left->call.begin_ns > right->call.begin_ns; });
}

bool TraceMerge::next(TraceCall& call, TraceFile*& file) {
  if (heap_.empty()) return false;
  const auto later = [](const Source* left, const Source* right) { return left->call.begin_ns > right->call.begin_ns; };
  std::pop_heap(heap_.begin(), heap_.end(), later);
  Source& source = *heap_.back();
  call = std::move(source.call);
  file = source.file;
  source.call = {};
  if (source.thread.next(source.call)) {
    std::push_heap(heap_.begin(), heap_.end(), later);
  } else {
    heap_.pop_back();
  }
  return true;
}

std::vector<std::unique_ptr<TraceFile>> open_traces(const std::string& path, std::vector<std::string>& problems) {
  namespace fs = std::filesystem;
  // One descriptor per process that was traced: more than the usual soft limit in a large run.
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  std::vector<std::string> paths;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      if (entry->path().extension() == trace::kFileSuffix) paths.push_back(entry->path().string());
    }
    if (error) problems.push_back(fmt::format("{}: {}", path, error.message()));
  } else {
    paths.push_back(path);
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::unique_ptr<TraceFile>> files;
  for (const std::string& name : paths) {
    std::string problem;
    if (auto file = TraceFile::open(name, problem)) {
      files.push_back(std::move(file));
    } else {
      problems.push_back(problem);
    }
  }
  std::stable_sort(files.begin(), files.end(),
                   [](const auto& left, const auto& right) { return left->begin_ns() < right->begin_ns(); });
  return files;
}

}  // namespace rota::tool
