// What pytest's own files say of time-outs and of words that are added to a command: its configuration, and the marks
// in test files. Files are read as text; nothing of them is run.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rota::ci {

// The configuration that pytest would use: pytest.toml, pytest.ini, pyproject.toml, tox.ini or setup.cfg, in that order
// for each folder from the one that has all files of the command up to the root; or the one that -c names.
struct PytestConfig {
  std::string folder;                  // pytest's root, to which ids are relative; empty: there is no such file
  std::vector<std::string> addopts;    // these words go before those of the command
  std::optional<std::string> timeout;  // of pytest-timeout, in seconds
};
// `words`: what follows "pytest" in the command, in the folder `here`.
PytestConfig pytest_config(const std::vector<std::string>& words, const std::string& here);

// The time-out that the file gives a test ("TestClass::test_x[1]" or "test_x") by @pytest.mark.timeout(30), at the
// function, at its class or by pytestmark, in seconds; 0: it has none. `unreadable`: there is such a mark, but not with
// a number.
struct MarkedTimeout {
  std::optional<double> seconds;
  bool unreadable = false;
};
MarkedTimeout marked_timeout(std::string_view source, std::string_view test);

}  // namespace rota::ci
