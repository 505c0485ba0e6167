// The report as workflow commands of GitHub Actions: an annotation for each finding.
#include <fmt/format.h>

#include "tools/rota/report/format.h"
#include "tools/rota/report/outputs.h"

namespace rota::report {
namespace {

// As the runner's toolkit does it; properties also escape what separates them.
std::string command_data(std::string_view text, bool property) {
  std::string safe;
  for (const char c : text) {
    const bool special = c == '%' || c == '\r' || c == '\n' || (property && (c == ':' || c == ','));
    safe += special ? fmt::format("%{:02X}", static_cast<unsigned char>(c)) : std::string(1, c);
  }
  return safe;
}

std::string annotation(const char* level, const std::string& file, const std::string& title, const std::string& text) {
  const std::string place = file.empty() ? "" : fmt::format("file={},", command_data(file, true));
  return fmt::format("::{} {}title={}::{}\n", level, place, command_data(printable(title), true),
                     command_data(printable(text), false));
}

// pytest's names begin with the file.
std::string file_of(const std::string& test) {
  const std::size_t end = test.find("::");
  return end == std::string::npos || !test.substr(0, end).ends_with(".py") ? "" : printable(test.substr(0, end));
}

}  // namespace

std::string github_report(const Report& report) {
  const Model& model = report.model;
  std::string text;
  for (const Finding& finding : report.judgement.findings) {
    const std::string name = finding.test ? model.tests[*finding.test].title()
                             : finding.process
                                 ? command_text(model.processes[*finding.process].account.self.command, 80)
                                 : model.job_title();
    text += annotation("error", file_of(name), fmt::format("rota {}: {}", finding.kind, name), finding.text);
  }
  for (const std::string& note : report.judgement.notes) text += annotation("warning", "", "rota", note);
  for (const std::string& problem : model.problems) text += annotation("warning", "", "rota", problem);
  for (const LeftRecord& left : model.left) {
    text +=
        annotation("warning", "", "rota", fmt::format("still running after the command: {} ({})", left.id, left.name));
  }
  const Use& total = model.total;
  return text + annotation("notice", "", fmt::format("rota: {}", model.job_title()),
                           fmt::format("memory in use at most {}, GPU time {}, waited {}, {} launches, {} copied",
                                       bytes_text(total.peak_bytes), duration_text(total.gpu_ns),
                                       duration_text(total.waited_ns), total.launches, bytes_text(total.copied_bytes)));
}

}  // namespace rota::report
