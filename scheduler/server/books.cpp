#include "scheduler/server/books.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "scheduler/base/descriptor.h"
#include "scheduler/core/quoted.h"
#include "scheduler/log/log_words.h"

namespace rota::server {

using scheduler::Time;
using scheduler::Words;

namespace {

// Some 300 bytes for each of the most clients that a rotad has. A judgment.
constexpr off_t kMostBytes = 32 << 20;
constexpr int kLastApart = static_cast<int>(protocol::GangApart::kNoRoom);
constexpr const char* kDid[] = {"rests", "waits", "held"};

class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  Result<Books> read() {
    Books books;
    if (const auto first = line(); !first || *first != fmt::format("rota-books {}", Books::kVersion)) {
      const bool other = first && first->starts_with("rota-books ");
      return Error{other ? fmt::format("it has version {}, and this rotad reads version {}",
                                       scheduler::quoted(first->substr(11)), Books::kVersion)
                         : std::string("it is not what a rotad writes")};
    }
    while (const auto next = line()) {
      Words words(*next);
      const std::string_view name = words.next("name");
      if (name == "end") {
        const auto lines = words.number<std::uint64_t>("number of lines");
        if (!words.problem().empty() || lines != number_ - 1 || !rest_.empty()) return wrong("it does not end there");
        return books;
      }
      const std::string problem = take(name, words, books);
      if (!problem.empty()) return wrong(problem);
    }
    return Error{"it breaks off"};
  }

 private:
  std::optional<std::string_view> line() {
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view next = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    ++number_;
    return next;
  }
  Error wrong(const std::string& problem) const { return Error{fmt::format("line {}: {}", number_, problem)}; }

  // What is wrong with the line; empty: nothing.
  static std::string take(std::string_view name, Words& words, Books& books) {
    const auto time = [&] {
      return Time(words.number<std::int64_t>("time in nanoseconds", scheduler::kLatest.count()));
    };
    if (name == "boot") {
      books.boot = words.next("boot id");
    } else if (name == "written") {
      books.written = time();
    } else if (name == "had") {
      Books::Had had{.gpu = std::string(words.next("GPU")), .payer = {}};
      had.ahead = time();
      had.owed = time();
      had.payer = words.next("user");
      books.had.push_back(std::move(had));
    } else if (name == "task") {
      Books::Task task{.pid = words.number<pid_t>("pid")};
      task.started = words.number<std::uint64_t>("start time");
      task.grant = words.number<std::uint32_t>("grant number");
      const std::string_view did = words.next("word");
      const auto* const known = std::find(std::begin(kDid), std::end(kDid), did);
      if (known == std::end(kDid)) return fmt::format("{} is not held, waits or rests", scheduler::quoted(did));
      task.did = static_cast<Books::Did>(known - std::begin(kDid));
      task.place = words.number<std::uint64_t>("place");
      if (!words.at_end()) task.gang = words.number<unsigned>("flag", 1) != 0;
      books.tasks.push_back(std::move(task));
    } else if (name == "on") {
      if (books.tasks.empty()) return "it belongs to no task";
      Books::OnGpu on{.gpu = std::string(words.next("GPU"))};
      for (Time* each : {&on.returned.party, &on.returned.party_owed, &on.returned.member, &on.returned.member_owed,
                         &on.returned.held, &on.returned.waited}) {
        *each = time();
      }
      books.tasks.back().gpus.push_back(std::move(on));
    } else if (name == "gang") {
      Books::Gang gang;
      gang.verdict.apart = static_cast<protocol::GangApart>(words.number<int>("reason", kLastApart));
      gang.verdict.left = time();
      gang.verdict.revoked = words.number<unsigned>("number of turns");
      gang.verdict.members = words.number<unsigned>("number of programs", protocol::kMostInGang);
      gang.key = words.next("domain");
      gang.key += '\n';
      gang.key += words.next("name");
      while (!words.at_end()) (gang.key += ' ') += words.next("name");
      books.gangs.push_back(std::move(gang));
    } else if (name == "measured") {
      Books::Measured each{.gpu = std::string(words.next("GPU")), .pid = words.number<pid_t>("pid")};
      each.started = words.number<std::uint64_t>("start time");
      each.measured.set = words.number<std::uint32_t>("number of the set");
      read_measured(words, each.measured);
      books.measured.push_back(std::move(each));
    } else if (name == "chosen") {
      Books::Chosen chosen;
      chosen.gpu = words.next("GPU");
      chosen.pid = words.number<pid_t>("pid");
      chosen.started = words.number<std::uint64_t>("start time");
      chosen.left = time();
      chosen.uid = words.number<uid_t>("user");
      chosen.payer = words.next("payer");
      chosen.session = words.next("domain");
      while (!words.at_end()) (chosen.session += ' ') += words.next("session");
      books.chosen.push_back(std::move(chosen));
    }
    words.ignore_rest();
    return words.problem();
  }

  std::string_view rest_;
  std::uint64_t number_ = 0;
};

Result<std::string> read_own(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) return Error{errno == ENOENT ? std::string() : fmt::format("cannot open it: {}", strerror(errno))};
  struct stat is{};
  if (fstat(file.get(), &is) != 0 || !S_ISREG(is.st_mode)) return Error{"it is not a file"};
  if (is.st_uid != geteuid()) return Error{fmt::format("it belongs to user {}", is.st_uid)};
  if ((is.st_mode & 0077) != 0 || is.st_nlink != 1) return Error{"others can read or write it"};
  if (is.st_size > kMostBytes) return Error{fmt::format("it has more than {} bytes", kMostBytes)};
  std::string text(static_cast<std::size_t>(is.st_size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t some = ::read(file.get(), text.data() + done, text.size() - done);
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0) return Error{"it cannot be read"};
    done += static_cast<std::size_t>(some);
  }
  return text;
}

Result<bool> write_whole(int file, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t some = ::write(file, text.data() + done, text.size() - done);
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) return Error{strerror(errno)};
    done += static_cast<std::size_t>(some);
  }
  return true;
}

}  // namespace

std::string text_of(const Books& books) {
  std::string text =
      fmt::format("rota-books {}\nboot {}\nwritten {}\n", Books::kVersion, books.boot, books.written.count());
  for (const Books::Had& had : books.had) {
    text += fmt::format("had {} {} {} {}\n", had.gpu, had.ahead.count(), had.owed.count(), had.payer);
  }
  for (const Books::Task& task : books.tasks) {
    text += fmt::format("task {} {} {} {} {} {}\n", task.pid, task.started, task.grant,
                        kDid[static_cast<std::size_t>(task.did)], task.place, task.gang ? 1 : 0);
    for (const Books::OnGpu& on : task.gpus) {
      const auto& returned = on.returned;
      text += fmt::format("on {} {} {} {} {} {} {}\n", on.gpu, returned.party.count(), returned.party_owed.count(),
                          returned.member.count(), returned.member_owed.count(), returned.held.count(),
                          returned.waited.count());
    }
  }
  for (const Books::Gang& gang : books.gangs) {
    std::string key = gang.key;
    if (const std::size_t between = key.find('\n'); between != std::string::npos) key[between] = ' ';
    if (key.find('\n') != std::string::npos) continue;
    text += fmt::format("gang {} {} {} {} {}\n", static_cast<int>(gang.verdict.apart), gang.verdict.left.count(),
                        gang.verdict.revoked, gang.verdict.members, key);
  }
  for (const Books::Measured& each : books.measured) {
    text += fmt::format("measured {} {} {} {}\n", each.gpu, each.pid, each.started,
                        scheduler::measured_words(each.measured));
  }
  for (const Books::Chosen& each : books.chosen) {
    text += fmt::format("chosen {} {} {} {} {} {} {}\n", each.gpu, each.pid, each.started, each.left.count(), each.uid,
                        each.payer, each.session);
  }
  return text + fmt::format("end {}\n", std::count(text.begin(), text.end(), '\n'));
}

Result<Books> parse_books(std::string_view text) {
  return Reader(text).read();
}

Result<bool> leave_books(const std::string& path, const Books& books) {
  const std::string name = path + ".new";
  const auto create = [&] {
    return Descriptor(open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  };
  Descriptor file = create();
  // Such a file is of a rotad that was killed: this one has its lock.
  if (!file && errno == EEXIST && unlink(name.c_str()) == 0) file = create();
  if (!file) return Error{fmt::format("cannot create {}: {}", name, strerror(errno))};
  auto written = write_whole(file.get(), text_of(books));
  if (written && rename(name.c_str(), path.c_str()) != 0) written = Error{strerror(errno)};
  if (written) return true;
  unlink(name.c_str());
  return Error{fmt::format("cannot write {}: {}", path, written.error().text)};
}

Result<Books> take_books(const std::string& path) {
  const auto text = read_own(path);
  if (!text && text.error().text.empty()) return Books();
  unlink(path.c_str());
  if (!text) return text.error();
  auto books = parse_books(*text);
  if (!books) return books.error();
  const Time now = std::chrono::steady_clock::now().time_since_epoch();
  if (books->boot != boot_id()) return Error{"it was written before the machine was started"};
  if (books->written > now || now - books->written > Books::kLast) {
    return Error{fmt::format("it was written more than {} s ago", Books::kLast.count())};
  }
  return books;
}

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

std::uint64_t start_time(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return 0;
  // The name, in brackets, may contain anything.
  const std::size_t name = line.rfind(')');
  if (name == std::string::npos) return 0;
  std::istringstream rest(line.substr(name + 1));
  std::string word;
  if (!(rest >> word) || word == "Z" || word == "X") return 0;
  constexpr int kBetween = 18;  // fields
  for (int i = 0; i < kBetween; ++i) rest >> word;
  std::uint64_t started = 0;
  return rest >> started ? started : 0;
}

std::uint64_t ticks_since_boot() {
  timespec time{};
  clock_gettime(CLOCK_BOOTTIME, &time);
  const auto second = static_cast<std::uint64_t>(sysconf(_SC_CLK_TCK));
  const auto seconds = static_cast<std::uint64_t>(time.tv_sec);
  return seconds * second + static_cast<std::uint64_t>(time.tv_nsec) * second / 1'000'000'000;
}

}  // namespace rota::server
