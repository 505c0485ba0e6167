// See report.h.
#include "tools/rota/report/report.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "tools/rota/ci/tests.h"
#include "tools/rota/report/format.h"
#include "tools/rota/report/record.h"
#include "tools/rota/run/output.h"

namespace rota::report {
namespace {

constexpr int kFindings = 3;
constexpr int kOwnFailure = 125;

void say(const std::string& line) {
  tool::write_message("rota report: " + printable(line) + "\n");
}

struct ReportCommand {
  std::string folder;
  std::string format;
  std::string output;
  JudgingOptions judging;

  int run() const {
    const auto done = judge_and_write();
    if (done) return *done;
    say(done.error().text);
    return kOwnFailure;
  }

 private:
  Result<int> judge_and_write() const {
    // A name that promises another format, such as report.pdf; an explicit --format decides for itself.
    const std::string ending = std::filesystem::path(output).extension().string();
    if (format.empty() && output != "-" && !ending.empty() && !format_by_file(output)) {
      return Error{"--output " + output + ": " + ending +
                   " is no format of reports: use .txt, .json, .xml or .html, or --format"};
    }
    auto wanted = judging.demands();
    if (!wanted) return wanted.error();
    std::vector<NamedFile> files = files_of_folder("the session", folder, false);
    files.push_back({"--output", output == "-" ? "" : output});
    if (const auto checked = judging.check_files(std::move(files)); !checked) return checked.error();
    const auto report = make_report(folder, std::move(*wanted), ci::match_unfinished);
    if (!report) return report.error();
    Format chosen = format_by_file(output).value_or(Format::kText);
    if (!format.empty()) chosen = *format_by_name(format);
    const std::string text = render(*report, chosen);
    if (output.empty() || output == "-") {
      if (!tool::write_all(STDOUT_FILENO, text)) return Error{"cannot write the report to standard output"};
    } else if (const auto written = write_file(output, text); !written) {
      return written.error();
    }
    // Text has them in it.
    if (chosen != Format::kText || (!output.empty() && output != "-")) {
      for (const std::string& note : report->judgement.notes) say("note: " + note);
      for (const std::string& problem : report->model.problems) say(problem);
    }
    if (const auto updated = judging.write_update(*report); !updated) return updated.error();
    if (!report->judgement.findings.empty()) return kFindings;
    return report->model.job.exit_code.value_or(0);
  }
};

}  // namespace

void add_judging_options(CLI::App& command, JudgingOptions& options) {
  command.add_option("--baseline", options.baseline, "file to compare with, as --update wrote it (rota-ci.json)");
  command.add_option("--update", options.update, "write what the tests took into this baseline");
  command.add_option(
      "--fail-on", options.fail_on,
      "rules, separated by commas, whose breach is a finding: peak>+10%, time>30s, calls:cuMemAlloc>+20%, "
      "errors, live");
  command.add_option("--suppress", options.suppressions,
                     "file with patterns of modules whose live memory at exit is expected, one a line");
}

void register_report(CLI::App& app) {
  CLI::App* const report =
      app.add_subcommand("report", "show what a job did on the GPUs, and judge it, from what rota run --report kept");
  auto command = std::make_shared<ReportCommand>();
  report->add_option("dir", command->folder, "folder that rota run --report made")->required();
  report
      ->add_option("--format", command->format,
                   "default: by the name of the output's file, else text; junit is XML, github annotations of GitHub "
                   "Actions")
      ->check(CLI::IsMember({"text", "json", "junit", "html", "github"}));
  report->add_option("-o,--output", command->output, "file to write (default: standard output)");
  add_judging_options(*report, command->judging);
  report->footer(
      "Exit status: 3 if there are findings, 125 if the report cannot be made, else the job's. Memory freed twice, "
      "ended handles, tests that died with their process and growth under repeats are always findings.");
  report->callback([command] {
    if (const int code = command->run(); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace rota::report
