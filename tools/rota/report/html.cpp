// The report as one page that needs nothing else: page.html with the JSON report inside it.
#include <nlohmann/json.hpp>

#include "tools/rota/report/outputs.h"

namespace rota::report {
namespace {

constexpr std::string_view kPage =
#include "page.inc"
    ;
constexpr std::string_view kDataPlace = "ROTA_DATA";

std::string json_text(const Report& report, int indent) {
  return json_report(report).dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

std::string html_report(const Report& report) {
  std::string data;
  // Nothing in the data may end the script element that contains it.
  for (const char c : json_text(report, -1)) data += c == '<' ? std::string("\\u003c") : std::string(1, c);
  const std::size_t place = kPage.find(kDataPlace);
  return std::string(kPage.substr(0, place)) + data + std::string(kPage.substr(place + kDataPlace.size()));
}

std::string render(const Report& report, Format format) {
  switch (format) {
    case Format::kText:
      return text_report(report);
    case Format::kJson:
      return json_text(report, 2) + "\n";
    case Format::kJunit:
      return junit_report(report);
    case Format::kHtml:
      return html_report(report);
    case Format::kGithub:
      return github_report(report);
  }
  return {};
}

std::optional<Format> format_by_name(std::string_view name) {
  if (name == "text") return Format::kText;
  if (name == "json") return Format::kJson;
  if (name == "junit") return Format::kJunit;
  if (name == "html") return Format::kHtml;
  if (name == "github") return Format::kGithub;
  return std::nullopt;
}

std::optional<Format> format_by_file(std::string_view path) {
  if (path.ends_with(".txt")) return Format::kText;
  if (path.ends_with(".json")) return Format::kJson;
  if (path.ends_with(".xml")) return Format::kJunit;
  if (path.ends_with(".html")) return Format::kHtml;
  return std::nullopt;
}

}  // namespace rota::report
