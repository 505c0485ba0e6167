#include "codegen/hidden_declarations.h"

#include <algorithm>
#include <regex>

#include <fmt/format.h>

#include "codegen/files.h"

namespace rota::codegen {
namespace {

constexpr std::size_t kReported = 5;

// The text with comments blanked out; line numbers stay the same.
std::string without_comments(std::string text) {
  for (std::size_t at = text.find("/*"); at != std::string::npos; at = text.find("/*", at)) {
    const std::size_t found = text.find("*/", at + 2);
    const std::size_t end = found == std::string::npos ? text.size() : found + 2;
    for (; at < end; ++at) {
      if (text[at] != '\n') text[at] = ' ';
    }
  }
  return text;
}

}  // namespace

std::optional<Error> find_hidden_declarations(const std::string& include_directory,
                                              const std::vector<std::string>& headers,
                                              const std::set<std::string>& declared) {
  // How CUDA's headers mark the functions of their libraries.
  static const std::regex kDeclaration(R"(\bCUDA(?:RT)?API(?:_CDECL)?\s+(\w+)\s*\()");
  std::string report;
  std::size_t count = 0;
  for (const std::string& header : headers) {
    const std::string text = without_comments(read_file(include_directory + "/" + header).value_or(""));
    for (std::sregex_iterator at(text.begin(), text.end(), kDeclaration), end; at != end; ++at) {
      const std::string name = (*at)[1];
      // OpenGL interop for Windows is declared under _WIN32.
      if (declared.contains(name) || name.find("WGL") != std::string::npos) continue;
      if (++count > kReported) continue;
      const auto line = 1 + std::count(text.begin(), text.begin() + at->position(), '\n');
      report += fmt::format("{}{}/{}:{}: {} is declared here, but the preprocessor leaves it out",
                            report.empty() ? "" : "\n", include_directory, header, line, name);
    }
  }
  if (count == 0) return std::nullopt;
  if (count > kReported) report += fmt::format("\n… and {} more", count - kReported);
  return Error{report + "\na macro hides them: the model would lack them"};
}

}  // namespace rota::codegen
