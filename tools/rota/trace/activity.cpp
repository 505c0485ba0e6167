// See activity.h. One line per kernel: process, thread, launched, begin, simulated, stream, name.
#include "tools/rota/trace/activity.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tools/rota/trace/render.h"

namespace rota::tool {

std::map<std::uint32_t, std::vector<KernelRun>> read_activity(const std::string& path) {
  namespace fs = std::filesystem;
  std::map<std::uint32_t, std::vector<KernelRun>> runs;
  std::error_code error;
  const fs::path folder = fs::is_directory(path, error) ? fs::path(path) : fs::path(path).parent_path();
  for (fs::directory_iterator entry(folder.empty() ? "." : folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() != ".activity") continue;
    std::ifstream file(entry->path());
    for (std::string line; std::getline(file, line);) {
      std::istringstream fields(line);
      std::uint32_t process = 0;
      KernelRun run;
      std::string mangled;
      if (fields >> process >> run.thread >> run.launched_ns >> run.begin_ns >> run.simulated_ns >> run.stream &&
          fields >> mangled) {
        run.kernel = demangled(mangled);
        runs[process].push_back(std::move(run));
      }
    }
  }
  return runs;
}

}  // namespace rota::tool
