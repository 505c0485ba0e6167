// How rows are laid out in generated files.
#include "codegen/emit.h"

namespace rota::codegen {
namespace {

constexpr std::size_t kColumns = 150;

}  // namespace

std::string wrapped(const std::vector<std::string>& items, const std::string& indent) {
  std::string text;
  std::size_t column = 0;
  for (const std::string& item : items) {
    const bool fits = column + 1 + item.size() <= kColumns;
    if (column != 0) text += fits ? " " : "\n" + indent;
    column = column == 0 ? item.size() : fits ? column + 1 + item.size() : indent.size() + item.size();
    text += item;
  }
  return text + "\n";
}

std::string row(const std::vector<std::string>& items) {
  std::vector<std::string> punctuated = items;
  for (std::string& item : punctuated) item += &item == &punctuated.back() ? ")" : ",";
  return wrapped(punctuated, "    ");
}

}  // namespace rota::codegen
