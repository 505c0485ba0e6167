// What ctest prints and writes: the list of its tests (--show-only=json-v1), and Testing/Temporary/LastTest.log.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/base/result.h"

namespace rota::ci {

struct ListedTest {
  std::string name;
  std::vector<std::string> command;  // empty: its program does not exist
  std::string folder;
  bool disabled = false;
  double timeout_s = 0;        // 0: the run's
  std::string shown = {};      // as the log shows its command; "" where the log does not have the test
  std::string listed_as = {};  // the name in the list; "": the same
};

// Names that differ only in bytes that are not UTF-8 are the same in the list. From the second on they get a number, so
// that each test has its own name, which is the same in each run.
Result<std::vector<ListedTest>> read_ctest_listing(const std::string& text);

// A name, an argument or a folder in the form that it has in that list, which is always UTF-8. `cut_off`: only the
// beginning of the text is known, and a character that may have been cut in two is left out.
std::string as_ctest_lists(std::string_view text, bool cut_off = false);

// One attempt of a test. Attempts are in the order of their ends. The log's clock times are whole minutes, too coarse
// to be of use.
struct LoggedTest {
  enum class Verdict { kPassed, kFailed, kSkipped, kNotRun };
  std::string name;
  std::string folder;
  double seconds = 0;
  Verdict verdict = Verdict::kFailed;
  std::string message;
  std::string command = {};  // its arguments byte by byte, each in quotes: "/bin/true" "one argument"
  std::string raw = {};      // its name byte by byte; "": the same
};

// Names are as in the list (UTF-8). If ctest was killed, only the tests that had ended. A test's output may look like
// the log itself.
std::vector<LoggedTest> read_ctest_log(const std::string& text);

// The names in LastTestsFailed.log or LastTestsDisabled.log, which also has tests that skipped themselves: "12:name"
// each. Names are byte by byte, and may have several lines unless one looks like the next entry.
std::set<std::string> read_ctest_names(const std::string& text);

}  // namespace rota::ci
