#include "tools/rota/ci/bazel.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "tools/rota/ci/groups.h"

namespace rota::ci {
namespace {

struct Name {
  std::string test;  // target, and shard if there are several
  std::uint64_t attempt = 1;
  auto operator<=>(const Name&) const = default;
};

// "bazel TARGET[ shard I][ of N][ attempt A]"; no target has spaces.
std::optional<Name> name_of(const std::string& text) {
  constexpr std::string_view kBegin = "bazel ";
  if (!text.starts_with(kBegin)) return std::nullopt;
  Name name{
      text.substr(kBegin.size(), text.find('\n') == std::string::npos ? text.npos : text.find('\n') - kBegin.size()),
      1};
  constexpr std::string_view kAttempt = " attempt ";
  if (const auto at = name.test.rfind(kAttempt); at != std::string::npos) {
    const char* const end = name.test.data() + name.test.size();
    const auto read = std::from_chars(name.test.data() + at + kAttempt.size(), end, name.attempt);
    if (read.ec == std::errc() && read.ptr == end) name.test.resize(at);
  }
  return name;
}

}  // namespace

std::vector<report::TestRecord> bazel_tests(const std::vector<report::ProcessAccount>& processes,
                                            report::Realtime boot_ns) {
  std::map<Name, report::TestRecord> tests;
  for (const report::ProcessAccount& process : processes) {
    const auto name = name_of(process.test);
    if (!name) continue;
    report::TestRecord& test = tests[*name];
    const report::Realtime begin = start_of(process.self, boot_ns);
    if (test.name.empty() || begin < test.begin_ns) {
      test.begin_ns = begin;
      test.command = process.self.command;
      test.folder = process.self.folder;
    }
    test.name = name->test;
    test.runner = "bazel";
    test.attempt = name->attempt;
    test.outcome = "unknown";
    test.end_ns = std::max(test.end_ns, last_sign_of(process));
    if (const std::string id = process.self.id(); std::ranges::find(test.processes, id) == test.processes.end()) {
      test.processes.push_back(id);
    }
  }
  std::vector<report::TestRecord> list;
  for (auto& [name, test] : tests) list.push_back(std::move(test));
  return list;
}

}  // namespace rota::ci
