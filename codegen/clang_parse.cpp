#include "codegen/clang_parse.h"

#include <algorithm>

#include <fmt/format.h>

namespace rota::codegen {
namespace {

constexpr const char* kVirtualFile = "rota-codegen-input.cpp";
// Enough diagnostics to see what is wrong; one missing header causes hundreds.
constexpr unsigned kReportedDiagnostics = 3;

// A header that ends too early causes an error where the next one begins, which is in the virtual file.
struct LastInclude {
  unsigned line;  // in the virtual file
  CXFile header = nullptr;
};

CXFile header_included_before(CXTranslationUnit unit, unsigned line) {
  LastInclude search{line};
  clang_getInclusions(
      unit,
      [](CXFile header, CXSourceLocation* stack, unsigned depth, CXClientData data) {
        if (depth != 1) return;  // not included by the virtual file
        auto* search = static_cast<LastInclude*>(data);
        unsigned at = 0;
        clang_getExpansionLocation(stack[0], nullptr, &at, nullptr, nullptr);
        if (at <= search->line) search->header = header;
      },
      &search);
  return search.header;
}

unsigned line_count(CXTranslationUnit unit, CXFile file) {
  std::size_t size = 0;
  const char* text = clang_getFileContents(unit, file, &size);
  if (!text || size == 0) return 0;
  return static_cast<unsigned>(std::count(text, text + size, '\n')) + (text[size - 1] == '\n' ? 0 : 1);
}

std::string describe(CXTranslationUnit unit, CXDiagnostic diagnostic) {
  CXFile file = nullptr;
  unsigned line = 0;
  clang_getExpansionLocation(clang_getDiagnosticLocation(diagnostic), &file, &line, nullptr, nullptr);
  std::string text = to_string(clang_getDiagnosticSpelling(diagnostic));
  std::string path = file ? to_string(clang_getFileName(file)) : std::string("(no file)");
  if (path == kVirtualFile) {
    const CXFile header = header_included_before(unit, line);
    if (!header) return text;  // "'cuda.h' file not found" says it all
    path = to_string(clang_getFileName(header));
    return fmt::format("{}:{}: {} (at its end: is it cut short?)", path, line_count(unit, header), text);
  }
  return fmt::format("{}:{}: {}", path, line, text);
}

}  // namespace

struct ParsedUnit::Handles {
  CXIndex index = nullptr;
  CXTranslationUnit unit = nullptr;
  ~Handles() {
    if (unit) clang_disposeTranslationUnit(unit);
    if (index) clang_disposeIndex(index);
  }
};

std::string to_string(CXString text) {
  const char* characters = clang_getCString(text);
  std::string result = characters ? characters : "";
  clang_disposeString(text);
  return result;
}

void for_each_child(CXCursor parent, const std::function<void(CXCursor)>& visit) {
  clang_visitChildren(
      parent,
      [](CXCursor child, CXCursor, CXClientData data) {
        (*static_cast<const std::function<void(CXCursor)>*>(data))(child);
        return CXChildVisit_Continue;
      },
      const_cast<std::function<void(CXCursor)>*>(&visit));
}

std::string file_of(CXCursor cursor) {
  CXFile file = nullptr;
  clang_getExpansionLocation(clang_getCursorLocation(cursor), &file, nullptr, nullptr, nullptr);
  return file ? to_string(clang_getFileName(file)) : std::string();
}

std::string location_of(CXCursor cursor) {
  unsigned line = 0;
  clang_getExpansionLocation(clang_getCursorLocation(cursor), nullptr, &line, nullptr, nullptr);
  return fmt::format("{}:{}", file_of(cursor), line);
}

Result<ParsedUnit> ParsedUnit::parse(const std::string& source, const std::vector<std::string>& arguments) {
  auto handles = std::make_shared<Handles>();
  handles->index = clang_createIndex(0, 0);
  std::vector<const char*> raw;
  raw.reserve(arguments.size());
  for (const std::string& argument : arguments) raw.push_back(argument.c_str());
  CXUnsavedFile file{kVirtualFile, source.c_str(), source.size()};
  const CXErrorCode code =
      clang_parseTranslationUnit2(handles->index, kVirtualFile, raw.data(), static_cast<int>(raw.size()), &file, 1,
                                  CXTranslationUnit_SkipFunctionBodies, &handles->unit);
  if (code != CXError_Success) return Error{fmt::format("libclang could not parse the headers (code {})", int{code})};

  std::string report;
  unsigned errors = 0;
  const unsigned count = clang_getNumDiagnostics(handles->unit);
  for (unsigned i = 0; i < count; ++i) {
    CXDiagnostic diagnostic = clang_getDiagnostic(handles->unit, i);
    if (clang_getDiagnosticSeverity(diagnostic) >= CXDiagnostic_Error && errors++ < kReportedDiagnostics) {
      if (!report.empty()) report += '\n';
      report += describe(handles->unit, diagnostic);
    }
    clang_disposeDiagnostic(diagnostic);
  }
  if (errors > kReportedDiagnostics) report += fmt::format("\n… and {} more errors", errors - kReportedDiagnostics);
  if (errors > 0) return Error{report};
  return ParsedUnit(std::move(handles));
}

std::vector<std::string> ParsedUnit::included_files() const {
  std::vector<std::string> files;
  clang_getInclusions(
      handles_->unit,
      [](CXFile header, CXSourceLocation*, unsigned depth, CXClientData data) {
        if (depth > 0) static_cast<std::vector<std::string>*>(data)->push_back(to_string(clang_getFileName(header)));
      },
      &files);
  return files;
}

CXCursor ParsedUnit::root() const {
  return clang_getTranslationUnitCursor(handles_->unit);
}

}  // namespace rota::codegen
