// See session.h.
#include "tools/rota/report/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tools/rota/report/format.h"

namespace rota::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Members of the wanted type, or a default: files of newer versions and of other programs may have anything there.
std::string text_at(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::int64_t number_at(const json& object, const char* name, std::int64_t otherwise = 0) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : otherwise;
}

std::vector<std::string> texts_at(const json& object, const char* name) {
  std::vector<std::string> texts;
  const auto found = object.find(name);
  if (found == object.end() || !found->is_array()) return texts;
  for (const json& entry : *found) {
    if (entry.is_string()) texts.push_back(entry.get<std::string>());
  }
  return texts;
}

const json& array_at(const json& object, const char* name) {
  static const json empty = json::array();
  const auto found = object.find(name);
  return found != object.end() && found->is_array() ? *found : empty;
}

std::optional<RotaTestAccount> numbers_at(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_object()) return std::nullopt;
  const auto get = [&](const char* member) { return static_cast<std::uint64_t>(number_at(*found, member)); };
  return RotaTestAccount{.used_bytes = get("used_bytes"),
                         .peak_bytes = get("peak_bytes"),
                         .allocations = get("allocations"),
                         .live = get("live"),
                         .launches = get("launches"),
                         .copies = get("copies"),
                         .copied_bytes = get("copied_bytes"),
                         .synchronizations = get("synchronizations"),
                         .calls = get("calls"),
                         .errors = get("errors"),
                         .waited_ns = get("waited_ns"),
                         .busy_ns = get("busy_ns")};
}

std::uint64_t attempt_of(const json& object) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(1, number_at(object, "attempt", 1)));
}

// Anything but a regular file (a folder, a pipe that would block) counts as one that cannot be read.
std::optional<std::string> read_text(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    errno = error ? error.value() : EINVAL;
    return std::nullopt;
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Null: whatever the files' names end with.
std::vector<fs::path> files_in(const fs::path& folder, const char* extension, std::vector<std::string>& problems) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (extension == nullptr || entry->path().extension() == extension) found.push_back(entry->path());
  }
  if (error) {
    problems.push_back(fmt::format("{}: {}", folder.string(), error.message()));
  }
  std::ranges::sort(found);
  return found;
}

void read_ends(const json& ends, Session& session) {
  for (const json& end : ends) {
    if (!end.is_object()) continue;
    session.ends[text_at(end, "process")] = {.time_ns = number_at(end, "time_ns"),
                                             .exit_code = static_cast<int>(number_at(end, "exit_code")),
                                             .signal = static_cast<int>(number_at(end, "signal"))};
  }
}

void read_job(const json& object, Session& session) {
  JobRecord& job = session.job;
  job.name = text_at(object, "name");
  job.host = text_at(object, "host");
  job.rota = text_at(object, "rota");
  job.folder = text_at(object, "folder");
  job.command = texts_at(object, "command");
  job.recorder = text_at(object, "recorder");
  job.boot = text_at(object, "boot");
  job.begin_ns = number_at(object, "begin_ns");
  job.end_ns = number_at(object, "end_ns");
  if (const auto code = object.find("exit_code"); code != object.end() && code->is_number_integer()) {
    job.exit_code = code->get<int>();
  }
  read_ends(array_at(object, "ended"), session);
  for (const json& left : array_at(object, "left_running")) {
    if (left.is_object()) session.left.push_back({text_at(left, "process"), text_at(left, "name")});
  }
}

// "12 1000 python" of a process's file, as people say it.
std::string lost_process(const std::string& file) {
  const std::size_t user = file.find(' ');
  const std::size_t name = user == std::string::npos ? user : file.find(' ', user + 1);
  if (name == std::string::npos) return printable(file);
  return fmt::format("{} ({}, user {})", printable(file.substr(0, user)), printable(file.substr(name + 1)),
                     printable(file.substr(user + 1, name - user - 1)));
}

// A begin without an end: the process died, unless it is running. It need not have called CUDA.
void judge_unfinished(std::vector<TestRecord>& tests) {
  for (TestRecord& test : tests) {
    if (!test.outcome.empty()) continue;
    test.outcome = is_running(test.within) ? "running" : "died";
  }
}

}  // namespace

std::vector<TestRecord> read_test_events(const std::string& text, const std::string& process, const std::string& file,
                                         std::vector<std::string>& problems) {
  std::vector<TestRecord> tests;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = text.find('\n', begin);
    const bool whole = end != std::string::npos;
    if (!whole) end = text.size();
    const json event = json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                   text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    const bool blank = begin == end;
    begin = end + 1;
    ++number;
    if (blank) continue;
    const std::string what = event.is_object() ? text_at(event, "event") : "";
    if (what != "begin" && what != "end" && what != "limit") {
      if (whole) problems.push_back(fmt::format("{}: line {} is no begin, limit or end of a test", file, number));
      continue;
    }
    const std::string name = text_at(event, "test");
    const std::uint64_t attempt = attempt_of(event);
    if (what == "begin") {
      tests.push_back({.name = name,
                       .runner = text_at(event, "runner"),
                       .attempt = attempt,
                       .outcome = "",
                       .message = "",
                       .begin_ns = number_at(event, "time_ns"),
                       .within = process,
                       .before = numbers_at(event, "begin"),
                       .after = std::nullopt,
                       .folder = "",
                       .command = {},
                       .processes = {}});
      continue;
    }
    const auto found = std::find_if(tests.rbegin(), tests.rend(), [&](const TestRecord& test) {
      return test.outcome.empty() && test.name == name && test.attempt == attempt;
    });
    if (found == tests.rend()) {
      problems.push_back(fmt::format("{}: line {} ends a test that did not begin: {}", file, number, name));
      continue;
    }
    if (what == "limit") {
      const auto seconds = event.find("seconds");
      constexpr double kMost = 1e9;
      if (seconds != event.end() && seconds->is_number()) {
        found->limit_ns = static_cast<Realtime>(std::clamp(seconds->get<double>(), 0.0, kMost) * 1e9);
      }
      continue;
    }
    found->end_ns = number_at(event, "time_ns");
    found->outcome = text_at(event, "outcome");
    if (found->outcome.empty()) found->outcome = "unknown";
    found->message = text_at(event, "message");
    if (const auto before = numbers_at(event, "begin")) found->before = before;
    found->after = numbers_at(event, "end");
  }
  return tests;
}

std::vector<TestRecord> read_test_list(const std::string& text, const std::string& file,
                                       std::vector<std::string>& problems) {
  std::vector<TestRecord> tests;
  const json list = json::parse(text, nullptr, false);
  if (!list.is_object() || !list.contains("tests")) {
    problems.push_back(file + ": not a list of tests, {\"tests\": […]}");
    return tests;
  }
  for (const json& entry : array_at(list, "tests")) {
    if (!entry.is_object()) continue;
    const auto ambiguous = entry.find("ambiguous");
    TestRecord test{.name = text_at(entry, "name"),
                    .runner = text_at(entry, "runner"),
                    .attempt = attempt_of(entry),
                    .outcome = text_at(entry, "outcome"),
                    .message = text_at(entry, "message"),
                    .begin_ns = number_at(entry, "begin_ns"),
                    .end_ns = number_at(entry, "end_ns"),
                    .within = "",
                    .before = std::nullopt,
                    .after = std::nullopt,
                    .ambiguous = ambiguous != entry.end() && *ambiguous == true,
                    .folder = text_at(entry, "folder"),
                    .command = texts_at(entry, "command"),
                    .processes = texts_at(entry, "processes")};
    if (test.outcome.empty()) test.outcome = "unknown";
    tests.push_back(std::move(test));
  }
  return tests;
}

Result<bool> replace_file(const std::string& path, const std::string& text) {
  const std::string partial = fmt::format("{}.{}", path, getpid());
  errno = 0;
  std::ofstream file(partial, std::ios::binary);
  file << text;
  file.close();
  if (!file || std::rename(partial.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(partial.c_str());
    return Error{fmt::format("{}: cannot be written: {}", path, std::strerror(error))};
  }
  return true;
}

std::string own_boot() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

Result<Session> read_session(const std::string& path) {
  const fs::path folder(path);
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return Error{fmt::format("{}: {}", path, error ? error.message() : "not a folder of a session")};
  }
  if (!fs::exists(folder / kSessionFile, error) && !fs::is_directory(folder / kProcessFolder, error)) {
    return Error{fmt::format("{}: neither {} nor {} is there: it is no session that `rota run --report` kept", path,
                             kSessionFile, kProcessFolder)};
  }
  Session session;
  session.path = path;
  const std::string session_file = (folder / kSessionFile).string();
  if (const auto text = read_text(session_file)) {
    const json object = json::parse(*text, nullptr, false);
    if (object.is_object()) {
      read_job(object, session);
    } else {
      session.problems.push_back(session_file + ": not the description of a session");
    }
  } else {
    session.problems.push_back(fmt::format("{}: {}", session_file, std::strerror(errno)));
  }
  if (fs::is_directory(folder / kLostFolder, error)) {
    for (const fs::path& file : files_in(folder / kLostFolder, nullptr, session.problems)) {
      session.problems.push_back(fmt::format("process {} called CUDA and has no account: it could not write one",
                                             lost_process(file.filename().string())));
    }
  }
  for (const fs::path& file : files_in(folder / kProcessFolder, ".account", session.problems)) {
    auto process = read_account(file.string());
    if (process) {
      session.processes.push_back(std::move(*process));
    } else {
      session.problems.push_back(process.error().text);
    }
  }
  std::ranges::stable_sort(session.processes, {}, &ProcessAccount::began_ns);
  for (const fs::path& file : files_in(folder / kTestFolder, ".jsonl", session.problems)) {
    if (const auto text = read_text(file)) {
      auto tests = read_test_events(*text, file.stem().string(), file.string(), session.problems);
      std::ranges::move(tests, std::back_inserter(session.tests));
    } else {
      session.problems.push_back(fmt::format("{}: {}", file.string(), std::strerror(errno)));
    }
  }
  if (fs::is_directory(folder / kHangFolder, error)) {
    for (const fs::path& file : files_in(folder / kHangFolder, ".txt", session.problems)) {
      if (const auto text = read_text(file)) session.hangs.push_back({file.stem().string(), *text});
    }
  }
  if (fs::is_directory(folder / kEndFolder, error)) {
    for (const fs::path& file : files_in(folder / kEndFolder, ".json", session.problems)) {
      const auto text = read_text(file);
      const json ends = text ? json::parse(*text, nullptr, false) : json();
      if (ends.is_array()) {
        read_ends(ends, session);
      } else {
        session.problems.push_back(file.string() + ": no list of how processes ended");
      }
    }
  }
  judge_unfinished(session.tests);
  if (const fs::path file = folder / kTestFile; fs::exists(file, error)) {
    if (const auto text = read_text(file)) {
      auto tests = read_test_list(*text, file.string(), session.problems);
      std::ranges::move(tests, std::back_inserter(session.tests));
    } else {
      session.problems.push_back(fmt::format("{}: {}", file.string(), std::strerror(errno)));
    }
  }
  std::ranges::stable_sort(session.tests, {}, &TestRecord::begin_ns);
  return session;
}

}  // namespace rota::report
