// The report as JUnit's XML, in the form that CI systems read: a test case for each test, and for each process that
// belongs to none.
#include <fmt/format.h>

#include "tools/rota/report/format.h"
#include "tools/rota/report/outputs.h"

namespace rota::report {
namespace {

std::string xml(std::string_view text) {
  std::string safe;
  for (const char c : printable(text)) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string seconds(std::uint64_t nanoseconds) {
  return fmt::format("{:.3f}", static_cast<double>(nanoseconds) / 1e9);
}

std::string properties(const Use& use, const std::string& indent) {
  std::string text = indent + "<properties>\n";
  const auto add = [&](const char* name, std::uint64_t value) {
    text += fmt::format("{}  <property name=\"rota.{}\" value=\"{}\"/>\n", indent, name, value);
  };
  add("peak_bytes", use.peak_bytes);
  add("reserved_peak_bytes", use.reserved_peak_bytes);
  add("gpu_ns", use.gpu_ns);
  add("waited_ns", use.waited_ns);
  add("launches", use.launches);
  add("copies", use.copies);
  add("copied_bytes", use.copied_bytes);
  add("synchronizations", use.synchronizations);
  add("calls", use.calls);
  add("errors", use.errors);
  add("live_bytes", use.live_bytes);
  return text + indent + "</properties>\n";
}

// Errors by name, and why memory ran out.
std::string output(const Use& use, const std::vector<const ProcessReport*>& processes) {
  std::string text;
  for (const auto& [key, calls] : use.failures) {
    text +=
        fmt::format("{} {}{}\n", xml(key.first), xml(key.second), calls == 1 ? "" : fmt::format(" ({} times)", calls));
  }
  for (const ProcessReport* process : processes) {
    const std::string_view reason = out_of_memory_text(process->account.out_of_memory);
    if (!reason.empty()) text += fmt::format("out of memory in {}: {}\n", process->account.self.pid, xml(reason));
  }
  return text.empty() ? text : fmt::format("      <system-out>{}</system-out>\n", text);
}

struct Case {
  std::string class_name;
  std::string name;
  std::string time;
  std::string body;  // properties, then what is wrong
  bool failed = false;
  bool error = false;
  bool skipped = false;
};

std::string problem(const char* element, std::string_view type, std::string_view message, const std::string& details) {
  return fmt::format("      <{} type=\"{}\" message=\"{}\">{}{}</{}>\n", element, xml(type), xml(message), xml(message),
                     details.empty() ? "" : "\n" + xml(details), element);
}

std::string details_of(const std::vector<const Finding*>& findings) {
  std::string all;
  for (const Finding* finding : findings) all += finding->details;
  return all;
}

void add_findings(Case& made, const std::vector<const Finding*>& findings) {
  // Readers expect at most one failure of a case; everything that is wrong is in its text.
  if (findings.empty() || made.error) return;
  std::string message;
  for (const Finding* finding : findings)
    message += (message.empty() ? "" : "; ") + finding->kind + ": " + finding->text;
  made.failed = true;
  made.body += problem("failure", "rota." + findings.front()->kind, message, details_of(findings));
}

Case case_of(const TestReport& test, const std::vector<const Finding*>& findings) {
  const TestRecord& record = test.record;
  Case made{.class_name = record.runner.empty() ? "rota" : record.runner,
            .name = test.title(),
            .time = seconds(test.duration_ns()),
            .body = properties(test.use, "      ")};
  const std::string message = record.message.empty() ? record.outcome : record.message;
  if (record.outcome == "skipped") {
    made.skipped = true;
    made.body += fmt::format("      <skipped message=\"{}\"/>\n", xml(record.message));
  } else if (record.outcome == "error" || record.outcome == "died" || record.outcome == "timeout") {
    made.error = true;
    std::string all = message;
    for (const Finding* finding : findings) {
      if (finding->kind != "died") all += "; " + finding->kind + ": " + finding->text;  // the message says so
    }
    made.body += problem("error", record.outcome, all, details_of(findings));
  } else if (record.outcome == "failed") {
    made.failed = true;
    std::string all = message;
    for (const Finding* finding : findings) all += "; " + finding->kind + ": " + finding->text;
    made.body += problem("failure", record.outcome, all, details_of(findings));
  }
  if (!made.failed && !made.error) add_findings(made, findings);
  return made;
}

Case case_of(const ProcessReport& process, const std::vector<const Finding*>& findings) {
  Case made{.class_name = "rota.process",
            .name = fmt::format("{} {}", process.account.id, command_text(process.account.self.command, 200)),
            .time = seconds(process.account.ended_ns > process.account.began_ns
                                ? static_cast<std::uint64_t>(process.account.ended_ns - process.account.began_ns)
                                : 0),
            .body = properties(process.use, "      ")};
  add_findings(made, findings);
  return made;
}

std::vector<Case> cases_of(const Report& report) {
  const Model& model = report.model;
  std::vector<std::vector<const Finding*>> of_tests(model.tests.size());
  std::vector<std::vector<const Finding*>> of_processes(model.processes.size());
  std::vector<const Finding*> of_job;
  for (const Finding& finding : report.judgement.findings) {
    if (finding.test) {
      of_tests[*finding.test].push_back(&finding);
    } else if (finding.process && (model.tests.empty() || !model.processes[*finding.process].hosts_tests)) {
      of_processes[*finding.process].push_back(&finding);
    } else {
      of_job.push_back(&finding);
    }
  }
  std::vector<Case> cases;
  for (std::size_t i = 0; i < model.tests.size(); ++i) {
    cases.push_back(case_of(model.tests[i], of_tests[i]));
    std::vector<const ProcessReport*> own;
    for (const std::size_t process : model.tests[i].processes) own.push_back(&model.processes[process]);
    cases.back().body += output(model.tests[i].use, own);
  }
  for (std::size_t i = 0; i < model.processes.size(); ++i) {
    const ProcessReport& process = model.processes[i];
    if (!process.test.empty() || process.hosts_tests) continue;
    cases.push_back(case_of(process, of_processes[i]));
    cases.back().body += output(process.use, {&process});
  }
  if (!of_job.empty()) {
    Case made{
        .class_name = "rota", .name = model.job_title(), .time = "0.000", .body = properties(model.total, "      ")};
    add_findings(made, of_job);
    cases.push_back(std::move(made));
  }
  return cases;
}

}  // namespace

std::string junit_report(const Report& report) {
  const Model& model = report.model;
  const std::vector<Case> cases = cases_of(report);
  std::size_t failed = 0, errors = 0, skipped = 0;
  for (const Case& one : cases) {
    failed += one.failed ? 1 : 0;
    errors += one.error ? 1 : 0;
    skipped += one.skipped ? 1 : 0;
  }
  const JobRecord& job = model.job;
  const std::uint64_t lasted =
      job.end_ns > job.begin_ns && job.begin_ns > 0 ? static_cast<std::uint64_t>(job.end_ns - job.begin_ns) : 0;
  const std::string numbers =
      fmt::format("name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{}\"",
                  xml(model.job_title()), cases.size(), failed, errors, skipped, seconds(lasted));
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  text += fmt::format("<testsuites {}>\n  <testsuite {} hostname=\"{}\">\n", numbers, numbers, xml(job.host));
  text += properties(model.total, "    ");
  for (const Case& one : cases) {
    text += fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{}\">\n{}    </testcase>\n",
                        xml(one.class_name), xml(one.name), one.time, one.body);
  }
  return text + "  </testsuite>\n</testsuites>\n";
}

}  // namespace rota::report
