// Where a process that makes no progress waits: what its account says, what it answers, and what debuggers see.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <thread>

#include "scheduler/base/descriptor.h"
#include "tools/rota/ci/hang.h"
#include "tools/rota/ci/helper.h"
#include "tools/rota/report/format.h"
#include "tools/rota/trace/render.h"

namespace rota::ci {

using namespace std::chrono_literals;
using report::printable;

namespace {

// The process answers within a second unless its monitor hangs in the driver itself.
constexpr auto kAnswer = 2s;
constexpr auto kPythonStacks = 2s;
constexpr auto kDebugger = 30s;
constexpr std::size_t kMostOutput = 256 << 10;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string thread_name(std::uint32_t pid, std::uint32_t tid) {
  std::string name = read_file(fmt::format("/proc/{}/task/{}/comm", pid, tid));
  if (!name.empty() && name.back() == '\n') name.pop_back();
  return printable(name);
}

template <typename Condition>
bool within(std::chrono::nanoseconds patience, const Condition& condition) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(10ms);
  }
  return true;
}

std::string threads_text(const report::ProcessAccount& process) {
  std::string text;
  for (const report::ThreadRecord& thread : process.inside) {
    text += fmt::format("  thread {} ({}) is in {}{}\n", thread.tid, thread_name(process.self.pid, thread.tid),
                        thread.function,
                        report::waits_for_room(thread) ? ", where it waits for memory that other tests need"
                        : thread.at_gate               ? ", where it waits for its turn"
                                                       : "");
  }
  return text.empty() ? "  no thread is inside of a CUDA call\n" : text;
}

// The part of the account file in which questions are asked and answered.
class Streams {
 public:
  explicit Streams(const std::string& path) : file_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    struct stat status{};
    if (!file_ || fstat(file_.get(), &status) != 0 || status.st_size < static_cast<off_t>(account::kHeaderBytes))
      return;
    void* const mapped = mmap(nullptr, account::kHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    if (mapped != MAP_FAILED) header_ = static_cast<account::Header*>(mapped);
  }
  ~Streams() {
    if (header_ != nullptr) munmap(header_, account::kHeaderBytes);
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  std::string text() {
    if (header_ == nullptr) return "  its streams are unknown: its account cannot be written to\n";
    const std::uint32_t asked = header_->streams_asked.fetch_add(1) + 1;
    if (!within(kAnswer, [&] { return header_->streams_answered.load() == asked; })) {
      return "  its streams are unknown: it does not answer (it has no rotad, or is stuck in the driver)\n";
    }
    std::string text;
    for (std::uint32_t index = 0; index < std::min<std::uint32_t>(header_->stream_count, account::kStreams); ++index) {
      text += one(header_->streams[index]);
    }
    return text.empty() ? "  it has launched nothing\n" : text;
  }

 private:
  static std::string one(const account::Stream& stream) {
    const std::string name(stream.last_launch, strnlen(stream.last_launch, sizeof stream.last_launch));
    const std::string last =
        name.empty() ? "a kernel whose name the driver does not give" : printable(tool::demangled(name));
    const std::string which = stream.handle == 0   ? "the default stream"
                              : stream.handle == 1 ? "the legacy stream"
                              : stream.handle == 2 ? "a thread's own default stream"
                                                   : fmt::format("stream {:#x}", stream.handle);
    switch (static_cast<account::StreamState>(stream.state)) {
      case account::StreamState::kIdle:
        return fmt::format("  {}: all has finished, {} was the last launch\n", which, last);
      case account::StreamState::kUnfinished:
        return fmt::format("  {}: not finished; the last launch was {}\n", which, last);
      case account::StreamState::kFailed:
        return fmt::format("  {}: failed; the last launch was {}\n", which, last);
      default:
        return fmt::format("  {}: state unknown; the last launch was {}\n", which, last);
    }
  }

  Descriptor file_;
  account::Header* header_ = nullptr;
};

bool in_path(const char* program) {
  const char* const path = getenv("PATH");
  std::string_view rest = path != nullptr ? path : "";
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    if (!folder.empty() && access(fmt::format("{}/{}", folder, program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

std::string output_of(const std::vector<std::string>& command, std::chrono::steady_clock::time_point until) {
  const auto output = run_helper(command, "", until, kMostOutput);
  return output ? output->text : "";
}

std::string indented(const std::string& text) {
  std::string lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = printable(text.substr(begin, end - begin));
    if (!line.empty()) lines += "    " + line + "\n";
    begin = end + 1;
  }
  return lines;
}

std::string native_stacks(std::uint32_t pid, Time most) {
  const auto until =
      std::min(std::chrono::steady_clock::now() + kDebugger, std::chrono::steady_clock::time_point(most));
  if (until <= std::chrono::steady_clock::now()) return "  no stacks: there was no time for them\n";
  const std::string process = std::to_string(pid);
  std::string text;
  if (in_path("gdb")) {
    text = output_of({"gdb", "-p", process, "-batch", "-nx", "-ex", "set pagination off", "-ex",
                      "set print thread-events off", "-ex", "thread apply all bt 40"},
                     until);
    // What comes before the first thread is gdb's own start.
    const std::size_t first = text.find("\nThread ");
    text = first == std::string::npos ? "" : text.substr(first);
  } else if (in_path("eu-stack")) {
    text = output_of({"eu-stack", "-n", "40", "-p", process}, until);
  } else {
    return "  no stacks: install gdb or elfutils on this machine\n";
  }
  if (text.empty()) return "  no stacks: the debugger may not attach (a container needs CAP_SYS_PTRACE)\n";
  return "  stacks:\n" + indented(text);
}

std::string python_stacks(const std::string& folder, std::uint32_t pid, int number) {
  const std::string path = fmt::format("{}/stacks/{}.txt", folder, pid);
  struct stat status{};
  // If the plugin has not made the file, the signal would end the process.
  if (number == 0 || stat(path.c_str(), &status) != 0) return {};
  const off_t before = status.st_size;
  if (kill(static_cast<pid_t>(pid), number) != 0) return {};
  off_t size = before;
  // Written in parts: complete once it does not grow any more.
  within(kPythonStacks, [&] {
    const off_t seen = size;
    if (stat(path.c_str(), &status) == 0) size = status.st_size;
    return size != before && size == seen;
  });
  if (size == before) return "  no Python stacks: the process did not write them\n";
  return "  Python stacks:\n" + indented(read_file(path).substr(static_cast<std::size_t>(before)));
}

}  // namespace

std::string place(const std::string& folder, const report::ProcessAccount& process, const std::string& account,
                  int stack_signal, Time until) {
  std::string text = threads_text(process);
  text += Streams(account).text();
  text += python_stacks(folder, process.self.pid, stack_signal);
  text += native_stacks(process.self.pid, until);
  return text;
}

}  // namespace rota::ci
