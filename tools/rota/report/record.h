// `rota run --report`: runs a job whose processes leave their accounts in a session's folder, and writes the report.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "scheduler/base/descriptor.h"
#include "tools/rota/report/files.h"
#include "tools/rota/report/outputs.h"
#include "tools/rota/run/launch.h"
#include "tools/rota/run/signals.h"

namespace rota::report {

struct Recording {
  std::string target;  // file or folder
  std::string name;    // of the job; may be empty
};

// Where the report goes: to a file of one format, or, without one, to a folder that keeps the session.
struct Target {
  std::string path;  // absolute
  std::optional<Format> format;
  Descriptor lock;  // a folder's
};

// Checks what can be checked before the job runs, and makes a folder. The error says what to do.
Result<Target> prepare_target(const std::string& path);

// The same check for a file only; report_folder.h has the one for a folder. Errors begin with the path.
Result<bool> check_file(const std::string& path);
// The files that a folder of reports is going to have, or, without the reports, those that they are made of.
std::vector<NamedFile> files_of_folder(const std::string& option, const std::string& folder, bool reports);

// Runs a job whose session lies in `folder` (which has to have the folders for processes and tests), to the end of all
// that it started, and returns how it ended (run/signals.h). `signalled` is called with a signal that is about to be
// passed on to it; `own` returns whether a process is not the job's; `in_place` is that of run/wait.h, for a job that
// is to run also without a report. All may be null. The error, that the session cannot be described there, comes before
// anything was started.
Result<int> run_session(tool::LaunchOptions options, const tool::TakenSignals& signals, const std::string& folder,
                        const std::string& name, const std::function<void(int)>& signalled = nullptr,
                        const std::function<bool(pid_t)>& own = nullptr,
                        const std::function<tool::LaunchOptions()>& in_place = nullptr);
// Returns how the program ended; kNotRun if it was not started since the report could not be written.
inline constexpr int kNotRun = 125;
int run_and_report(tool::LaunchOptions options, const Recording& recording);

// A folder's session, judged. `complete` may add to what was read.
Result<Report> make_report(const std::string& folder, Demands demands,
                           const std::function<void(Session&)>& complete = nullptr);

// False: it could not be written, which was said on stderr.
bool write_report(const Report& report, const Target& target);

// The error names the file and why.
Result<bool> write_file(const std::string& path, const std::string& text);

}  // namespace rota::report
