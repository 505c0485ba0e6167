// Reads the descriptions of faults.
#include "tools/simgpu/driver/entry/faults.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "generated/driver_symbols.h"
#include "tools/simgpu/driver/entry/errors.h"

namespace rota::sim {
namespace {

constexpr int kErrorsEnd = 1000;  // the driver's error numbers are below this

template <class Number>
bool parse_number(std::string_view text, Number* number) {
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return code == std::errc{} && end == text.data() + text.size();
}

bool parse_error(std::string_view text, int* error) {
  if (parse_number(text, error)) return *error != 0 && error_name(static_cast<CUresult>(*error)) != nullptr;
  for (*error = 1; *error < kErrorsEnd; ++*error) {
    const char* name = error_name(static_cast<CUresult>(*error));
    if (name != nullptr && text == name) return true;
  }
  return false;
}

std::string parse_item(std::string_view item, Faults* faults) {
  size_t equals = item.find('=');
  if (equals == std::string_view::npos) return "has no '='";
  std::string_view left = item.substr(0, equals);
  std::string_view right = item.substr(equals + 1);
  if (left == "copies") {
    std::string text(right);
    char* end = nullptr;
    double factor = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !std::isfinite(factor) || factor < 1) return "needs a factor of at least 1";
    faults->copy_factor = factor;
    return {};
  }
  Fault fault;
  if (!left.empty() && left.back() == '+') {
    fault.onwards = true;
    left.remove_suffix(1);
  }
  size_t at = left.find('@');
  fault.if_full = !fault.onwards && at != std::string_view::npos && left.substr(at + 1) == "full";
  if (at == std::string_view::npos ||
      (!fault.if_full && (!parse_number(left.substr(at + 1), &fault.call) || fault.call == 0))) {
    return "needs the number of a call, from 1, or 'full' after an '@'";
  }
  fault.function = left.substr(0, at);
  bool known = false;
  for (const char* symbol : kSymbolNames) known = known || fault.names(symbol);
  if (!known) return "names no function of the driver";
  constexpr std::string_view kSticky = "sticky:";
  if (right == "lost" && !fault.if_full) {
    fault.kind = Fault::Kind::kLost;
  } else {
    if (right.substr(0, kSticky.size()) == kSticky && !fault.if_full) {
      fault.kind = Fault::Kind::kSticky;
      right.remove_prefix(kSticky.size());
    }
    if (!parse_error(right, &fault.error)) return "names no error of the driver";
  }
  faults->calls.push_back(std::move(fault));
  return {};
}

}  // namespace

bool Fault::names(std::string_view symbol) const {
  std::string_view name = function;
  if (!name.empty() && name.back() == '*') return symbol.substr(0, name.size() - 1) == name.substr(0, name.size() - 1);
  if (symbol.substr(0, name.size()) != name) return false;
  std::string_view rest = symbol.substr(name.size());
  return rest.empty() || rest == "_ptsz" || rest == "_ptds" || (rest.size() > 2 && rest.substr(0, 2) == "_v");
}

bool parse_faults(const std::string& text, Faults* faults, std::string* error) {
  std::string_view left = text;
  while (!left.empty()) {
    std::string_view item = left.substr(0, left.find(','));
    left.remove_prefix(item.size() < left.size() ? item.size() + 1 : left.size());
    if (item.empty()) continue;
    if (std::string wrong = parse_item(item, faults); !wrong.empty()) {
      *error = "the fault '" + std::string(item) + "' " + wrong +
               ": give FUNCTION@CALL=CUDA_ERROR_…, =sticky:CUDA_ERROR_… or =lost (CALL+ for all later ones too), "
               "FUNCTION@full=CUDA_ERROR_… for calls that have no memory, or copies=FACTOR";
      return false;
    }
  }
  return true;
}

}  // namespace rota::sim
