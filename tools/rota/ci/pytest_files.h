// What pytest's own files say about time-outs and about words that are added to a command: its configuration, and the
// marks in test files. Files are read as text; nothing in them is run.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rota::ci {

// The configuration that pytest would use: pytest.toml, pytest.ini, pyproject.toml, tox.ini or setup.cfg, in that order
// for each folder from the one that has all files of the command up to the root; or the one that -c names. A file
// larger than 1 MiB is ignored.
struct PytestConfig {
  std::string folder;                  // pytest's root, to which ids are relative; empty: there is no such file
  std::vector<std::string> addopts;    // these words go before those of the command
  std::optional<std::string> timeout;  // of pytest-timeout, in seconds
};
// `words`: what follows "pytest" in the command, in the folder `here`.
PytestConfig pytest_config(const std::vector<std::string>& words, const std::string& here);

// As pytest splits options in a text (Python's shlex.split).
std::vector<std::string> shell_words(std::string_view text);

// The file's text. Nothing: it is no regular file, is larger than 8 MiB, or cannot be read.
std::optional<std::string> test_source(const std::string& path);

// In seconds; 0: the test has none. `unreadable`: there is such a mark, but not with a number.
struct MarkedTimeout {
  std::optional<double> seconds;
  bool unreadable = false;
};

// The time-outs that a test file gives by @pytest.mark.timeout(30), at a function, at its class or by pytestmark. Not
// those of single parameters (pytest.param(1, marks=...)).
class MarkedTimeouts {
 public:
  explicit MarkedTimeouts(std::string_view source);
  // The closest to a test: "TestClass::test_x[1]" or "test_x".
  MarkedTimeout of(std::string_view test) const;

 private:
  std::map<std::string, MarkedTimeout, std::less<>> marks_;  // by function or class; "": of the file
};

}  // namespace rota::ci
