#include "tools/rota/ci/ctest_files.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace rota::ci {
namespace {

using nlohmann::json;

std::string string_at(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

void append_utf8(std::string& text, std::uint32_t character) {
  const auto add = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  const auto rest = [&](unsigned shift) { add(0x80 | (character >> shift & 0x3F)); };
  if (character < 0x80) return add(character);
  if (character < 0x800) {
    add(0xC0 | character >> 6);
  } else {
    if (character < 0x10000) {
      add(0xE0 | character >> 12);
    } else {
      add(0xF0 | character >> 18);
      rest(12);
    }
    rest(6);
  }
  rest(0);
}

// The lines of a text, by position.
class LogReader {
 public:
  explicit LogReader(std::string_view text) : text_(text) {}

  std::optional<LoggedTest> next() {
    while (at_ < text_.size()) {
      const std::size_t begin = at_;
      const auto number = number_in(take_line());
      if (!number) continue;
      const auto name = name_at(begin, *number);
      if (!name) continue;
      const std::size_t command = begin + 2 * (number->size() + name->size()) + kTesting.size() + kTest.size() + 2;
      if (auto entry = rest_of(std::string(*name), text_.substr(command))) {
        at_ = command + used_;
        return entry;
      }
    }
    return std::nullopt;
  }

 private:
  static constexpr std::string_view kTesting = " Testing: ";
  static constexpr std::string_view kTest = " Test: ";
  static constexpr std::string_view kRule = "----------------------------------------------------------\n";

  std::string_view take_line() {
    const std::size_t end = std::min(text_.find('\n', at_), text_.size());
    const std::string_view line = text_.substr(at_, end - at_);
    at_ = std::min(end + 1, text_.size());
    return line;
  }

  // The beginning of "12/40 Testing: name", with blanks before the numbers where they are short.
  static std::optional<std::string_view> number_in(std::string_view line) {
    const std::size_t digits = line.find_first_not_of(" 0123456789");
    if (digits == line.npos || line[digits] != '/') return std::nullopt;
    const std::size_t more = line.find_first_not_of("0123456789", digits + 1);
    if (more == line.npos || !line.substr(more).starts_with(kTesting)) return std::nullopt;
    return line.substr(0, more);
  }

  // The text behind "Testing:", which is repeated behind "Test:"; it may have several lines.
  std::optional<std::string_view> name_at(std::size_t begin, std::string_view number) const {
    constexpr std::size_t kLongest = 64 << 10;
    const std::string_view text = text_.substr(begin + number.size() + kTesting.size());
    const std::string again = '\n' + std::string(number) + std::string(kTest);
    for (std::size_t end = 0; (end = text.substr(0, kLongest).find(again, end)) != text.npos; ++end) {
      const std::string_view rest = text.substr(end + again.size());
      if (rest.starts_with(text.substr(0, end)) && rest.substr(end).starts_with("\nCommand: ")) {
        return text.substr(0, end);
      }
    }
    return std::nullopt;
  }

  // Reads from the line "Command:" on. The output ends where it is followed by all the lines that end an entry.
  std::optional<LoggedTest> rest_of(const std::string& name, std::string_view text) {
    const std::string ends = '"' + name + "\" end time: ";
    const std::string elapsed = '"' + name + "\" time elapsed: ";
    std::size_t end = 0;
    for (;; ++end) {
      end = text.find(ends, end);
      if (end == text.npos) return std::nullopt;
      const std::size_t second = text.find('\n', end + ends.size());
      if (second == text.npos || !text.substr(second + 1).starts_with(elapsed)) continue;
      const std::size_t third = text.find('\n', second + 1 + elapsed.size());
      if (third != text.npos && text.substr(third + 1).starts_with(kRule)) {
        used_ = third + 1 + kRule.size();
        break;
      }
    }
    LoggedTest test;
    test.name = as_ctest_lists(name);
    test.raw = name;
    const std::string starts = '"' + name + "\" start time: ";
    const std::size_t start = text.find(starts);
    if (const std::size_t folder = text.rfind("\nDirectory: ", start); start < end && folder != text.npos) {
      const std::size_t begin = folder + std::string_view("\nDirectory: ").size();
      test.folder = text.substr(begin, text.find('\n', begin) - begin);
      constexpr std::string_view kCommand = "Command: ";
      test.command = text.substr(kCommand.size(), folder - kCommand.size());
    }
    const std::size_t output_end = text.rfind("<end of output>\nTest time =", end);
    if (output_end == text.npos) return std::nullopt;
    const std::string_view verdict = text.substr(output_end, end - output_end);
    test.seconds = std::strtod(
        std::string(verdict.substr(std::string_view("<end of output>\nTest time =").size())).c_str(), nullptr);
    judge(verdict, !text.starts_with("Command: \"\"\n"), test);
    return test;
  }

  static void judge(std::string_view verdict, bool run, LoggedTest& test) {
    using Verdict = LoggedTest::Verdict;
    if (!run) {
      test.verdict = Verdict::kNotRun;
    } else if (verdict.find("\nSkip regular expression found") != verdict.npos) {
      test.verdict = Verdict::kSkipped;
    } else if (verdict.find("\nTest Passed.\n") != verdict.npos ||
               verdict.find("\nTest Pass Reason:\n") != verdict.npos) {
      test.verdict = Verdict::kPassed;
    } else if (const std::size_t reason = verdict.find("\nTest Fail Reason:\n"); reason != verdict.npos) {
      const std::size_t begin = reason + std::string_view("\nTest Fail Reason:\n").size();
      test.message = verdict.substr(begin, verdict.find('\n', begin) - begin);
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t used_ = 0;
};

}  // namespace

// The library that writes the JSON (JsonCpp) turns invalid UTF-8 into UTF-8: a byte that announces a character of two
// to four bytes begins one, whatever the following bytes are.
std::string as_ctest_lists(std::string_view name, bool cut_off) {
  constexpr std::uint32_t kReplacement = 0xFFFD;
  std::string listed;
  while (!name.empty()) {
    const auto first = static_cast<unsigned char>(name.front());
    const std::size_t bytes = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (cut_off && first < 0xF8 && bytes > name.size()) break;
    std::uint32_t character = kReplacement;
    if (first < 0xF8 && bytes <= name.size()) {
      character = bytes == 1 ? first : first & (0x7Fu >> bytes);
      for (std::size_t i = 1; i < bytes; ++i) {
        character = character << 6 | (static_cast<unsigned char>(name[i]) & 0x3Fu);
      }
      constexpr std::uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
      if (character < kLeast[bytes - 1] || (character >= 0xD800 && character <= 0xDFFF)) character = kReplacement;
      // For values beyond Unicode a pair of surrogates is written, which drops their highest bits.
      if (character > 0x10FFFF) character = 0x10000 + ((character - 0x10000) & 0xFFFFF);
      name.remove_prefix(bytes);
    } else {
      name.remove_prefix(1);
    }
    append_utf8(listed, character);
  }
  return listed;
}

Result<std::vector<ListedTest>> read_ctest_listing(const std::string& text) {
  // Errors of its own may come before the list.
  const std::size_t begin = text.find('{');
  const json list = begin == text.npos ? json() : json::parse(text.substr(begin), nullptr, false);
  const auto tests = list.is_object() ? list.find("tests") : list.end();
  if (!list.is_object() || tests == list.end() || !tests->is_array()) {
    return Error{"ctest --show-only=json-v1 printed no list of tests (it needs CTest 3.14 or later)"};
  }
  std::vector<ListedTest> all;
  for (const json& entry : *tests) {
    if (!entry.is_object()) continue;
    ListedTest test;
    test.name = string_at(entry, "name");
    if (const auto command = entry.find("command"); command != entry.end() && command->is_array()) {
      for (const json& argument : *command)
        test.command.push_back(argument.is_string() ? argument.get<std::string>() : "");
    }
    const auto properties = entry.find("properties");
    for (const json& property : properties != entry.end() && properties->is_array() ? *properties : json::array()) {
      if (!property.is_object() || !property.contains("value")) continue;
      const std::string key = string_at(property, "name");
      const json& value = property["value"];
      if (key == "WORKING_DIRECTORY" && value.is_string()) test.folder = value.get<std::string>();
      if (key == "DISABLED" && value.is_boolean()) test.disabled = value.get<bool>();
      if (key == "TIMEOUT" && value.is_number()) test.timeout_s = value.get<double>();
    }
    all.push_back(std::move(test));
  }
  std::set<std::string> names;
  for (const ListedTest& test : all) names.insert(test.name);
  std::set<std::string> seen;
  for (ListedTest& test : all) {
    if (seen.insert(test.name).second) continue;
    test.listed_as = test.name;
    for (int number = 2; !names.insert(test.name).second; ++number)
      test.name = test.listed_as + " (" + std::to_string(number) + ")";
  }
  return all;
}

std::vector<LoggedTest> read_ctest_log(const std::string& text) {
  std::vector<LoggedTest> all;
  LogReader reader(text);
  while (auto entry = reader.next()) all.push_back(std::move(*entry));
  return all;
}

std::set<std::string> read_ctest_names(const std::string& text) {
  std::vector<std::string> all;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::size_t colon = text.find_first_not_of("0123456789", at);
    if (colon != at && colon < end && text[colon] == ':') {
      all.push_back(text.substr(colon + 1, end - colon - 1));
    } else if (!all.empty()) {  // a name of several lines
      all.back() += '\n' + text.substr(at, end - at);
    }
    at = end + 1;
  }
  return {all.begin(), all.end()};
}

}  // namespace rota::ci
