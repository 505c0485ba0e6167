#include "tools/rota/ci/selected.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <system_error>

namespace rota::ci {
namespace {

namespace fs = std::filesystem;

// `words`: with a space before and behind each.
bool is_one_of(std::string_view word, std::string_view words) {
  return words.find(' ' + std::string(word) + ' ') != std::string_view::npos;
}

// The name of a long option that has its value in the same word; otherwise the word.
std::string_view name_of(std::string_view word) {
  return word.starts_with("--") ? word.substr(0, word.find('=')) : word;
}

// ctest's options that select tests by properties that the list contains: those with a value, and those without.
constexpr std::string_view kSelects =
    " -R --tests-regex -E --exclude-regex -L --label-regex -LE --label-exclude -FA --fixture-exclude-any -FS "
    "--fixture-exclude-setup -FC --fixture-exclude-cleanup ";
constexpr std::string_view kSelectsWithoutValue = " -U --union ";
// Those that need files, which a ctest that lists does not have in its folder.
constexpr std::string_view kSelectsByFile =
    " -I --tests-information --rerun-failed --tests-from-file --exclude-from-file --preset ";

// Options of pytest, xdist, pytest-timeout, pytest-cov and pytest-rerunfailures: those that select nothing, with a
// value or without, and those that select by what is not known here.
constexpr std::string_view kPlain =
    " -v -vv -vvv -q -qq -s -l -x --verbose --quiet --exitfirst --showlocals --no-header --no-summary "
    "--strict-markers --strict-config --cov --cov-report --ff --failed-first --nf --new-first ";
constexpr std::string_view kWithValue =
    " -n -c -o -p -r -W --color --tb --durations --capture --maxfail --junitxml --junit-xml --rootdir --confcutdir "
    "--basetemp --timeout --timeout-method --numprocesses --maxprocesses --dist --import-mode --log-level "
    "--log-cli-level --log-file --reruns ";
constexpr std::string_view kPytestSelects = " -k -m --deselect --ignore --ignore-glob ";
constexpr std::string_view kPytestSelectsWithoutValue = " --lf --last-failed --sw --stepwise ";

// -n8, -rA, -pno:xdist: a value in the same word.
bool has_value_behind(std::string_view word) {
  return word.size() > 2 && word[1] != '-' && is_one_of(word.substr(0, 2), kWithValue);
}

bool ends_with_path(std::string_view path, std::string_view end) {
  return path.ends_with(end) && (path.size() == end.size() || path[path.size() - end.size() - 1] == '/');
}

}  // namespace

CtestSelection ctest_selection(const std::vector<std::string>& words) {
  CtestSelection selection;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view name = name_of(words[i]);
    if (is_one_of(name, kSelectsWithoutValue)) {
      selection.words.push_back(words[i]);
    } else if (is_one_of(name, kSelects)) {
      selection.words.push_back(words[i]);
      if (name == words[i] && i + 1 < words.size()) selection.words.push_back(words[++i]);
    } else if (is_one_of(name, kSelectsByFile)) {
      selection.complete = false;
    }
  }
  return selection;
}

PytestSelection::PytestSelection(const std::vector<std::string>& words, const std::string& folder) {
  bool only_names = false;
  bool names_known = true;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (only_names || !word.starts_with('-')) {
      take(word, folder);
    } else if (word == "--") {
      only_names = true;
    } else if (is_one_of(name_of(word), kPytestSelects) || is_one_of(word, kPytestSelectsWithoutValue)) {
      complete_ = false;
      if (is_one_of(word, kPytestSelects)) ++i;
    } else if (is_one_of(word, kWithValue)) {
      ++i;
    } else if (!is_one_of(name_of(word), kWithValue) && !is_one_of(name_of(word), kPlain) && !has_value_behind(word)) {
      // An option of another plugin. What follows may be its value or the name of a test.
      complete_ = false;
      names_known = names_known &&
                    (word.find('=') != std::string::npos || i + 1 == words.size() || words[i + 1].starts_with('-'));
    }
  }
  if (!names_known) named_.clear();
}

void PytestSelection::take(const std::string& word, const std::string& folder) {
  const std::size_t end = word.find("::");
  const fs::path path = (fs::path(folder) / word.substr(0, end)).lexically_normal();
  std::string text = path.string();
  if (text.size() > 1 && text.ends_with('/')) text.pop_back();
  named_.push_back({text, end == std::string::npos ? "" : word.substr(end + 2)});
  std::error_code error;
  if (!fs::exists(text, error)) complete_ = false;  // a name in Python's form (--pyargs), or pytest will complain
}

bool PytestSelection::has(std::string_view id) const {
  if (named_.empty()) return true;
  const std::size_t end = std::min(id.find("::"), id.size());
  const std::string_view test = id.substr(std::min(end + 2, id.size()));
  const auto [known, fresh] = named_in_.try_emplace(std::string(id.substr(0, end)));
  if (fresh) known->second = named_in(known->first);
  return std::ranges::any_of(known->second, [&](const std::string& named) {
    return named.empty() || (test.starts_with(named) &&
                             (test.size() == named.size() || test[named.size()] == ':' || test[named.size()] == '['));
  });
}

std::vector<std::string> PytestSelection::named_in(std::string_view file) const {
  const auto is_in = [&](const std::string& path) {
    if (ends_with_path(path, file)) return true;
    // An id is relative to pytest's root, which is this folder or one above.
    for (fs::path root = path;; root = root.parent_path()) {
      const fs::path full = root / file;
      std::error_code error;
      if (full.string().starts_with(path + "/") && fs::exists(full, error)) return true;
      if (!root.has_relative_path()) return false;
    }
  };
  std::vector<std::string> tests;
  for (const Named& named : named_) {
    if (is_in(named.path)) tests.push_back(named.test);
  }
  return tests;
}

}  // namespace rota::ci
