// The texts that reports are made of; the first byte says which: what test plugins write, lists of tests, baselines,
// rules, suppressions.
#include <string>
#include <vector>

#include "tests/fuzz/input.h"
#include "tools/rota/report/baseline.h"
#include "tools/rota/report/rules.h"
#include "tools/rota/report/session.h"
#include "tools/rota/report/suppressions.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace rota::report;
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<std::string> problems;
  switch (data[0]) {
    case 'e':
      for (const TestRecord& test : read_test_events(text, "1-2", "file", problems)) CHECK(test.attempt > 0);
      break;
    case 't':
      for (const TestRecord& test : read_test_list(text, "file", problems)) CHECK(!test.outcome.empty());
      break;
    case 'b':
      if (const auto baseline = parse_baseline(text, "file")) {
        // What is written is read as the same.
        const std::string written = baseline_text(*baseline);
        const auto again = parse_baseline(written, "file");
        CHECK(again && baseline_text(*again) == written);
      } else {
        CHECK(rota::fuzz::is_a_line(baseline.error().text));
      }
      break;
    case 'r':
      if (const auto rules = parse_rules(text)) {
        CHECK(!rules->empty());
      } else {
        CHECK(!rules.error().text.empty());
      }
      break;
    case 's': {
      Suppressions suppressions;
      suppressions.add_text(text);
      suppressions.find("/opt/app/libapp.so");
      break;
    }
    default:
      break;
  }
  return 0;
}
