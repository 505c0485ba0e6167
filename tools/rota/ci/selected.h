// Which of a baseline's tests a command selects, if its words say so. Runs no program.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace rota::ci {

// Those of ctest's words that select tests, for a ctest that lists them.
struct CtestSelection {
  std::vector<std::string> words;
  bool complete = true;  // false: other words select tests, too, in a way that is not known here
};
CtestSelection ctest_selection(const std::vector<std::string>& words);

// Files, folders and tests that pytest's words name.
class PytestSelection {
 public:
  // What follows "pytest", and the folder that it runs in.
  PytestSelection(const std::vector<std::string>& words, const std::string& folder);
  // False: some words select tests in a way that is not known here, or may be a file as well as an option's value.
  bool complete() const { return complete_; }
  // Whether the test of this id ("tests/a.py::test_x[1]") may be among those selected.
  bool has(std::string_view id) const;

 private:
  void take(const std::string& word, const std::string& folder);
  // What the words name in this file of ids; empty: all of it.
  std::vector<std::string> named_in(std::string_view file) const;

  struct Named {
    std::string path;  // absolute
    std::string test;  // what follows the path's "::"; empty: all
  };
  std::vector<Named> named_;                                          // none: all tests
  mutable std::map<std::string, std::vector<std::string>> named_in_;  // by file, of those asked for
  bool complete_ = true;
};

}  // namespace rota::ci
