// What a job is judged by, as options of commands say it.
#pragma once

#include <string>

#include "tools/rota/report/files.h"
#include "tools/rota/report/outputs.h"

namespace rota::report {

struct JudgingOptions {
  std::string baseline;
  std::string update;
  std::string fail_on;
  std::string suppressions;

  // Reads and checks all of the files, including those that will be written. The error names the option or the file.
  Result<Demands> demands() const;
  // Checks that no two files of `others` and of these options are the same; only --baseline and --update may be.
  Result<bool> check_files(std::vector<NamedFile> others) const;
  // Writes what the tests used into the file of --update, if there is one.
  Result<bool> write_update(const Report& report) const;
};

}  // namespace rota::report
