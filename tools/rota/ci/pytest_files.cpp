#include "tools/rota/ci/pytest_files.h"

// As for the profiles of the simulated GPU (tools/simgpu/state/profile.cpp): a program must use the parser in one
// configuration only.
#define TOML_EXCEPTIONS 0
#undef TOML_SHARED_LIB
#undef TOML_HEADER_ONLY
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <system_error>
#include <utility>

namespace rota::ci {
namespace {

namespace fs = std::filesystem;

// Nobody has written configurations or tests that are larger.
constexpr std::size_t kMostConfiguration = std::size_t{1} << 20;
constexpr std::size_t kMostSource = std::size_t{8} << 20;

std::optional<std::string> text_of_file(const fs::path& path, std::size_t most_bytes) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;  // a FIFO would wait for a writer
  const std::uintmax_t size = fs::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || size > most_bytes || !file) return std::nullopt;
  std::string text(size, '\0');
  file.read(text.data(), static_cast<std::streamsize>(size));  // throws nothing, and no more even if the file grows
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n\f";
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

// --- configuration

// The section of an INI file; nothing: it has none.
std::optional<PytestConfig> from_ini(const std::string& text, std::string_view section) {
  std::optional<PytestConfig> found;
  std::istringstream lines(text);
  bool inside = false;
  std::string key;
  std::string addopts;
  for (std::string line; std::getline(lines, line);) {
    const std::string_view content = trimmed(line);
    if (content.empty() || content.front() == '#' || content.front() == ';') continue;
    const bool goes_on = line.front() == ' ' || line.front() == '\t';
    if (!goes_on && content.front() == '[') {
      inside = content.substr(1, content.find(']') - 1) == section;
      if (inside && !found) found = PytestConfig{};
      key.clear();
      continue;
    }
    if (!inside) continue;
    std::string_view value = content;
    if (!goes_on) {
      const std::size_t end = content.find_first_of("=:");
      key = trimmed(content.substr(0, end));
      value = end == std::string_view::npos ? std::string_view() : trimmed(content.substr(end + 1));
    }
    if (key == "addopts") addopts += std::string(value) + "\n";
    if (key == "timeout" && !value.empty()) found->timeout = value;
  }
  if (found) found->addopts = shell_words(addopts);
  return found;
}

std::optional<PytestConfig> from_toml(const std::string& text, std::initializer_list<const char*> tables) {
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) return std::nullopt;  // pytest will say so
  for (const char* const name : tables) {
    const toml::table* const table = parsed.table().at_path(name).as_table();
    if (table == nullptr) continue;
    PytestConfig config;
    const auto timeout = (*table)["timeout"];
    if (const auto seconds = timeout.value<double>()) config.timeout = std::to_string(*seconds);
    if (timeout.is_string()) config.timeout = timeout.value<std::string>();
    const auto added = (*table)["addopts"];
    if (added.is_string()) config.addopts = shell_words(*added.value<std::string>());
    if (const toml::array* const words = added.as_array()) {
      for (const toml::node& word : *words) config.addopts.push_back(word.value_or(std::string()));
    }
    return config;
  }
  return std::nullopt;
}

std::optional<PytestConfig> from_file(const fs::path& path) {
  const auto text = text_of_file(path, kMostConfiguration);
  if (!text) return std::nullopt;
  const std::string name = path.filename();
  std::optional<PytestConfig> config;
  if (name == "pytest.toml" || name == ".pytest.toml") {
    config = from_toml(*text, {"pytest"}).value_or(PytestConfig{});
  } else if (path.extension() == ".toml") {
    config = from_toml(*text, {"tool.pytest.ini_options", "tool.pytest"});
  } else if (path.extension() == ".cfg") {
    config = from_ini(*text, "tool:pytest");
  } else {
    config = from_ini(*text, "pytest");
    // This one counts even without the section.
    if (!config && (name == "pytest.ini" || name == ".pytest.ini")) config = PytestConfig{};
  }
  if (config) config->folder = path.parent_path();
  return config;
}

// The last of -c FILE, -cFILE, --config-file FILE and --config-file=FILE.
std::optional<std::string> named_file(const std::vector<std::string>& words) {
  std::optional<std::string> named;
  for (std::size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    const std::string& word = words[i];
    constexpr std::string_view kLong = "--config-file";
    if ((word == "-c" || word == kLong) && i + 1 < words.size()) {
      named = words[++i];
    } else if (word.starts_with("-c") && word.size() > 2) {
      named = word.substr(2);
    } else if (word.starts_with(kLong) && word.size() > kLong.size() && word[kLong.size()] == '=') {
      named = word.substr(kLong.size() + 1);
    }
  }
  return named;
}

// The innermost folder that contains all files and folders that the words name; this folder if they name none.
fs::path common_folder(const std::vector<std::string>& words, const fs::path& here) {
  std::optional<fs::path> common;
  for (const std::string& word : words) {
    std::error_code error;
    if (word.empty() || word.front() == '-') continue;
    fs::path path = (here / word.substr(0, word.find("::"))).lexically_normal();
    if (!fs::exists(path, error)) continue;  // an option's value
    if (!fs::is_directory(path, error) || !path.has_filename()) path = path.parent_path();
    if (!common) {
      common = path;
      continue;
    }
    fs::path both;
    const auto [mine, other] = std::mismatch(common->begin(), common->end(), path.begin(), path.end());
    for (auto part = common->begin(); part != mine; ++part) both /= *part;
    common = both;
  }
  return common.value_or(here);
}

// --- marks

std::optional<double> number_at(std::string_view text) {
  text = trimmed(text);
  constexpr std::string_view kName = "timeout";
  if (text.starts_with(kName)) {
    text = trimmed(text.substr(kName.size()));
    if (!text.starts_with('=')) return std::nullopt;
    text = trimmed(text.substr(1));
  }
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || !std::isfinite(seconds) || seconds < 0) return std::nullopt;
  const std::string_view rest = trimmed(text.substr(static_cast<std::size_t>(end - text.data())));
  return rest.empty() || rest.front() == ',' || rest.front() == ')' ? std::optional(seconds) : std::nullopt;
}

// Whether a call is still open at the end of the text.
bool is_in_call(std::string_view text) {
  std::vector<bool> open;  // brackets: whether each is a call's
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char before = i == 0 ? ' ' : text[i - 1];
    if (std::string_view("([{").find(text[i]) != std::string_view::npos) {
      open.push_back(text[i] == '(' && (std::isalnum(static_cast<unsigned char>(before)) != 0 || before == '_'));
    } else if (std::string_view(")]}").find(text[i]) != std::string_view::npos && !open.empty()) {
      open.pop_back();
    }
  }
  return std::ranges::find(open, true) != open.end();
}

// The mark in a statement, if it has one. One in a call is of a parameter.
std::optional<MarkedTimeout> mark_in(std::string_view statement) {
  constexpr std::string_view kMark = "mark.timeout";
  for (std::size_t at = statement.find(kMark); at != std::string_view::npos; at = statement.find(kMark, at + 1)) {
    const std::string_view behind = trimmed(statement.substr(at + kMark.size()));
    if (!behind.starts_with('(') || is_in_call(statement.substr(0, at))) continue;
    const auto seconds = number_at(behind.substr(1));
    return MarkedTimeout{seconds, !seconds};
  }
  return std::nullopt;
}

// A statement of a file: lines within brackets are joined, and the contents of strings and comments are left out.
struct Statement {
  std::size_t indent = 0;
  std::string text;
};

std::vector<Statement> statements_of(std::string_view source) {
  std::vector<Statement> all;
  Statement now;
  bool begun = false;
  int depth = 0;
  const auto ended = [&] {
    if (begun && !trimmed(now.text).empty()) all.push_back(now);
    now = {};
    begun = false;
  };
  for (std::size_t i = 0; i < source.size(); ++i) {
    const char letter = source[i];
    if (letter == '#') {
      i = std::min(source.find('\n', i), source.size()) - 1;
    } else if (letter == '"' || letter == '\'') {
      const bool is_long = source.substr(i, 3) == std::string(3, letter);
      const std::string end(is_long ? 3 : 1, letter);
      for (i += end.size(); i < source.size() && source.substr(i, end.size()) != end; ++i) {
        if (source[i] == '\\') ++i;
        if (!is_long && i < source.size() && source[i] == '\n') break;
      }
      if (i < source.size() && source.substr(i, end.size()) == end) i += end.size() - 1;
      begun = true;
      now.text += "''";
    } else if (letter == '\\' && i + 1 < source.size() && source[i + 1] == '\n') {
      ++i;
    } else if (letter == '\n' && depth == 0) {
      ended();
    } else if (!begun && (letter == ' ' || letter == '\t')) {
      ++now.indent;
    } else {
      if (std::string_view("([{").find(letter) != std::string_view::npos) ++depth;
      if (std::string_view(")]}").find(letter) != std::string_view::npos) depth = std::max(0, depth - 1);
      begun = true;
      now.text += letter == '\n' ? ' ' : letter;
    }
  }
  ended();
  return all;
}

// The name behind one of these words: "class TestX(Base):".
std::string_view name_behind(std::string_view text, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) {
    if (!text.starts_with(word)) continue;
    const std::string_view name = trimmed(text.substr(word.size()));
    return name.substr(0, name.find_first_of("(:[ "));
  }
  return {};
}

}  // namespace

std::vector<std::string> shell_words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool within = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (quote != 0) {
      if (letter == quote) {
        quote = 0;
      } else {
        const bool escapes = letter == '\\' && quote == '"' && i + 1 < text.size();
        word += escapes && (text[i + 1] == '"' || text[i + 1] == '\\') ? text[++i] : letter;
      }
    } else if (letter == '"' || letter == '\'') {
      quote = letter;
      within = true;
    } else if (std::string_view(" \t\r\n").find(letter) != std::string_view::npos) {
      if (within) words.push_back(std::exchange(word, {}));
      within = false;
    } else {
      word += letter == '\\' && i + 1 < text.size() ? text[++i] : letter;
      within = true;
    }
  }
  if (within) words.push_back(word);
  return words;
}

PytestConfig pytest_config(const std::vector<std::string>& words, const std::string& here) {
  if (const auto named = named_file(words)) {
    return from_file((fs::path(here) / *named).lexically_normal()).value_or(PytestConfig{});
  }
  for (fs::path folder = common_folder(words, here);; folder = folder.parent_path()) {
    for (const char* const name :
         {"pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"}) {
      if (auto config = from_file(folder / name)) return *std::move(config);
    }
    if (!folder.has_relative_path()) return {};
  }
}

std::optional<std::string> test_source(const std::string& path) {
  return text_of_file(path, kMostSource);
}

MarkedTimeouts::MarkedTimeouts(std::string_view source) {
  struct Definition {
    std::size_t indent;
    std::string name;  // with its classes: "TestX::test_y"
    bool is_class;
  };
  std::vector<Definition> around;          // the statement, the outermost first
  std::optional<MarkedTimeout> decorated;  // by the decorators above the next definition
  for (const Statement& statement : statements_of(source)) {
    const std::string_view text = statement.text;
    while (!around.empty() && statement.indent <= around.back().indent) around.pop_back();
    if (text.starts_with('@')) {
      if (const auto mark = mark_in(text)) decorated = mark;
      continue;
    }
    const auto above = std::exchange(decorated, std::nullopt);
    if (around.empty() ? statement.indent != 0 : !around.back().is_class) continue;
    const std::string outer = around.empty() ? "" : around.back().name;
    if (text.starts_with("pytestmark")) {
      if (const auto mark = mark_in(text)) marks_[outer] = *mark;
      continue;
    }
    const bool is_class = text.starts_with("class ");
    const std::string_view name = name_behind(text, {"def ", "async def ", "class "});
    if (name.empty()) continue;
    Definition& now =
        around.emplace_back(statement.indent, outer + (outer.empty() ? "" : "::") + std::string(name), is_class);
    if (above) marks_[now.name] = *above;
  }
}

MarkedTimeout MarkedTimeouts::of(std::string_view test) const {
  test = test.substr(0, test.find('['));
  for (;;) {
    if (const auto mark = marks_.find(test); mark != marks_.end()) return mark->second;
    if (test.empty()) return {};
    const std::size_t end = test.rfind("::");
    test = test.substr(0, end == std::string_view::npos ? 0 : end);
  }
}

}  // namespace rota::ci
