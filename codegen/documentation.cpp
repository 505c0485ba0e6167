// Reads the doxygen commands that CUDA's headers use: \note_async, \param[out] name, \sa.
#include "codegen/documentation.h"

#include <algorithm>
#include <cctype>
#include <set>

namespace rota::codegen {
namespace {

std::string_view read_word(std::string_view text, std::size_t& at) {
  const std::size_t start = at;
  while (at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) || text[at] == '_')) ++at;
  return text.substr(start, at - start);
}

void skip_space(std::string_view text, std::size_t& at) {
  while (at < text.size() && (std::isspace(static_cast<unsigned char>(text[at])) || text[at] == '*')) ++at;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return result;
}

}  // namespace

ParsedComment parse_comment(std::string_view comment) {
  ParsedComment parsed;
  parsed.documentation.present = true;
  std::set<std::string> notes;
  std::string
      prose;  // what describes this function: without the list of related ones, whose names say nothing about it
  bool in_related = false;
  for (std::size_t at = 0; at < comment.size();) {
    if (comment[at] != '\\') {
      if (!in_related) prose += comment[at];
      ++at;
      continue;
    }
    ++at;
    const std::string_view command = read_word(comment, at);
    if (command == "sa" || command == "see") in_related = true;
    if (command == "param" || command == "return" || command == "brief" || command == "note") in_related = false;
    if (command.starts_with("note_")) notes.emplace(command.substr(5));
    if (command == "param" && at < comment.size() && comment[at] == '[') {
      const std::size_t end = comment.find(']', at);
      if (end == std::string_view::npos) break;
      const std::string_view tag = comment.substr(at + 1, end - at - 1);
      const bool in = tag.find("in") != std::string_view::npos;
      const bool out = tag.find("out") != std::string_view::npos;
      at = end + 1;
      skip_space(comment, at);
      const std::string name(read_word(comment, at));
      if (in || out) parsed.directions[name] = in && out ? "inout" : in ? "in" : "out";
    }
  }
  const std::string text = lower(prose);
  if (text.find("asynchronous") != std::string::npos) notes.insert("says_asynchronous");
  if (text.find("blocks until") != std::string::npos || text.find("block until") != std::string::npos) {
    notes.insert("says_blocks");
  }
  if (text.find("enqueue") != std::string::npos) notes.insert("says_enqueues");
  parsed.documentation.notes.assign(notes.begin(), notes.end());
  return parsed;
}

}  // namespace rota::codegen
