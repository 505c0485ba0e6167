// See rules.h.
#include "tools/rota/report/rules.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "scheduler/base/byte_size.h"
#include "tools/rota/report/account_file.h"
#include "tools/rota/report/format.h"

namespace rota::report {
namespace {

struct MetricName {
  std::string_view name;
  Metric metric;
  Unit unit;
};

constexpr MetricName kMetrics[] = {
    {"peak", Metric::kPeak, Unit::kBytes},
    {"reserved", Metric::kReserved, Unit::kBytes},
    {"time", Metric::kTime, Unit::kNanoseconds},
    {"gpu", Metric::kGpu, Unit::kNanoseconds},
    {"waited", Metric::kWaited, Unit::kNanoseconds},
    {"launches", Metric::kLaunches, Unit::kCount},
    {"copies", Metric::kCopies, Unit::kCount},
    {"copied", Metric::kCopied, Unit::kBytes},
    {"synchronizations", Metric::kSynchronizations, Unit::kCount},
    {"calls", Metric::kCalls, Unit::kCount},
    {"errors", Metric::kErrors, Unit::kCount},
    {"live", Metric::kLive, Unit::kBytes},
};

const MetricName& row(Metric metric) {
  return kMetrics[static_cast<std::size_t>(metric)];
}

template <class Number>
std::optional<Number> whole_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<std::uint64_t> parse_duration(std::string_view text) {
  struct Suffix {
    std::string_view text;
    double ns;
  };
  constexpr Suffix kSuffixes[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}};
  for (const Suffix& suffix : kSuffixes) {
    if (!text.ends_with(suffix.text)) continue;
    const auto number = whole_number<double>(text.substr(0, text.size() - suffix.text.size()));
    if (!number || !(*number >= 0) || *number * suffix.ns >= 9e18) continue;
    return static_cast<std::uint64_t>(*number * suffix.ns);
  }
  return std::nullopt;
}

std::optional<std::uint64_t> parse_value(Unit unit, std::string_view text) {
  if (unit == Unit::kNanoseconds) return parse_duration(text);
  if (unit == Unit::kCount) return whole_number<std::uint64_t>(text);
  return text == "0" ? std::uint64_t{0} : parse_bytes(text);
}

std::string_view example_of(Unit unit) {
  if (unit == Unit::kBytes) return "2G, +64M or +10%";
  if (unit == Unit::kNanoseconds) return "30s, +500ms or +10%";
  return "100, +5 or +10%";
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

bool is_function(const std::string& name) {
  for (std::uint32_t symbol = 0; symbol < kSymbolCount; ++symbol) {
    if (function_name(symbol) == name) return true;
  }
  return false;
}

bool is_error(const std::string& name) {
  // Larger codes are not used by any release.
  constexpr std::uint32_t kLargest = 1000;
  for (std::uint32_t code = 1; code < kLargest; ++code) {
    if (error_name(code) == name) return true;
  }
  return false;
}

Result<Rule> parse_rule(std::string_view text) {
  const auto wrong = [&](const std::string& why) { return Error{fmt::format("'{}': {}", text, why)}; };
  Rule rule;
  rule.text = text;
  const std::size_t than = text.find('>');
  std::string_view name = trimmed(text.substr(0, than));
  if (const std::size_t colon = name.find(':'); colon != std::string_view::npos) {
    rule.detail = trimmed(name.substr(colon + 1));
    name = name.substr(0, colon);
    if (rule.detail.empty()) return wrong("a name is missing behind the colon, as in calls:cuMemAlloc");
  }
  const MetricName* found = nullptr;
  std::string known;
  for (const MetricName& metric : kMetrics) {
    if (metric.name == name) found = &metric;
    known += (known.empty() ? "" : ", ") + std::string(metric.name);
  }
  if (found == nullptr) return wrong(fmt::format("'{}' is not measured: use {}", name, known));
  rule.metric = found->metric;
  if (!rule.detail.empty() && rule.metric != Metric::kCalls && rule.metric != Metric::kErrors) {
    return wrong("only calls and errors take a name: calls:cuMemAlloc, errors:CUDA_ERROR_OUT_OF_MEMORY");
  }
  if (rule.metric == Metric::kCalls && !rule.detail.empty() && !is_function(rule.detail)) {
    return wrong(fmt::format("the driver has no function {} that this rota knows", printable(rule.detail)));
  }
  if (rule.metric == Metric::kErrors && !rule.detail.empty() && !is_error(rule.detail)) {
    return wrong(fmt::format("there is no error {}: use its name in cuda.h, as in errors:CUDA_ERROR_OUT_OF_MEMORY",
                             printable(rule.detail)));
  }
  const bool alone = rule.metric == Metric::kErrors || rule.metric == Metric::kLive;
  if (than == std::string_view::npos) {
    if (!alone) return wrong(fmt::format("a limit is missing: {}>{}", name, example_of(found->unit)));
    return rule;
  }
  std::string_view value = trimmed(text.substr(than + 1));
  const std::string why = fmt::format("'{}' is not a limit of {}: use {}", value, name, example_of(found->unit));
  const bool more = value.starts_with('+');
  if (more) value.remove_prefix(1);
  if (value.ends_with('%')) {
    const auto percent = whole_number<double>(value.substr(0, value.size() - 1));
    if (!more || !percent || !(*percent >= 0) || *percent > 1e9) return wrong(why);
    rule.limit = Rule::Limit::kPercent;
    rule.percent = *percent;
    return rule;
  }
  const auto number = parse_value(found->unit, value);
  if (!number) return wrong(why);
  rule.limit = more ? Rule::Limit::kMore : Rule::Limit::kAbsolute;
  rule.value = *number;
  return rule;
}

}  // namespace

std::string_view metric_name(Metric metric) {
  return row(metric).name;
}

Unit unit_of(Metric metric) {
  return row(metric).unit;
}

std::string value_text(Unit unit, std::uint64_t value) {
  if (unit == Unit::kBytes) return bytes_text(value);
  if (unit == Unit::kNanoseconds) return duration_text(value);
  return std::to_string(value);
}

Result<std::vector<Rule>> parse_rules(std::string_view text) {
  std::vector<Rule> rules;
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view part = trimmed(text.substr(0, comma));
    if (part.empty()) return Error{"an empty rule: rules are separated by single commas, as in peak>+10%,errors"};
    auto rule = parse_rule(part);
    if (!rule) return rule.error();
    rules.push_back(std::move(*rule));
    if (comma == std::string_view::npos) return rules;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace rota::report
