// The folder that `rota run --report` and `rota ci --report-dir` keep a session and its reports in. An earlier report
// of rota's is replaced, so that the same command can be run again. A folder that holds anything else is refused, and
// nothing in it is touched.
#pragma once

#include <string>
#include <vector>

#include "scheduler/base/descriptor.h"
#include "scheduler/base/result.h"
#include "tools/rota/report/files.h"
#include "tools/rota/report/outputs.h"

namespace rota::report {

struct ReportFolder {
  std::string path;  // absolute
  Descriptor lock;   // while it is open, another job that wants the folder is refused
};

// Makes the folder, or removes the earlier report from it. `named`: files that the command reads or writes, which may
// also be there and stay. Errors begin with the path and say what to do.
Result<ReportFolder> prepare_folder(const std::string& path, const std::vector<NamedFile>& named = {});

// Makes the folders in a session's folder. In a temporary one, which nobody else may read, others may traverse it to
// what they write.
Result<bool> make_session_folders(const std::string& folder, bool temporary = false);

struct FolderFile {
  const char* name;
  Format format;
};
inline constexpr FolderFile kFolderFiles[] = {{"report.txt", Format::kText},
                                              {"report.json", Format::kJson},
                                              {"junit.xml", Format::kJunit},
                                              {"report.html", Format::kHtml}};

}  // namespace rota::report
