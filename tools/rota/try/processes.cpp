#include "tools/rota/try/processes.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>

namespace rota::attempt {
namespace {

struct Stat {
  std::string name;
  char state = 0;
  pid_t parent = 0;
};

// /proc/PID/stat: `pid (name) state parent …`; the name may hold anything, parentheses too.
bool read_stat(pid_t process, Stat& stat) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  if (!std::getline(file, line)) return false;
  const auto open = line.find('(');
  const auto close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return false;
  stat.name = line.substr(open + 1, close - open - 1);
  std::istringstream rest(line.substr(close + 1));
  return static_cast<bool>(rest >> stat.state >> stat.parent);
}

// Reaps what has ended, and returns whether no child remains. This asks the kernel and not /proc: orphans become
// children of this process, so a process with a descendant has a child, while a listing of /proc misses the child of a
// process that ended while the listing was read.
bool all_ended() {
  pid_t child;
  do {
    child = waitpid(-1, nullptr, WNOHANG);
  } while (child > 0);
  return child < 0 && errno == ECHILD;
}

// Whether all have ended within that time.
bool gone_within(int milliseconds) {
  constexpr int kStep = 5;
  for (int waited = 0;; waited += kStep) {
    if (all_ended()) return true;
    if (waited >= milliseconds) return false;
    poll(nullptr, 0, kStep);
  }
}

}  // namespace

bool adopt_orphans() {
  int before = 0;
  prctl(PR_GET_CHILD_SUBREAPER, &before);
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  return before != 0;
}

bool descends_from(pid_t process, pid_t ancestor) {
  // Processes come and go during the search: a chain that is too long must contain a cycle.
  constexpr int kLongest = 1000;
  for (int i = 0; i < kLongest && process > 0; ++i) {
    Stat stat;
    if (!read_stat(process, stat)) return false;
    if (process == ancestor) return true;
    process = stat.parent;
  }
  return false;
}

std::vector<pid_t> descendants() {
  std::multimap<pid_t, pid_t> children;
  std::set<pid_t> zombies;
  DIR* const folder = opendir("/proc");
  if (folder == nullptr) return {};
  while (const dirent* entry = readdir(folder)) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) == 0) continue;
    const auto process = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    Stat stat;
    if (!read_stat(process, stat)) continue;
    children.emplace(stat.parent, process);
    if (stat.state == 'Z' || stat.state == 'X') zombies.insert(process);
  }
  closedir(folder);
  std::vector<pid_t> found = {getpid()};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto [begin, end] = children.equal_range(found[i]);
    for (auto child = begin; child != end; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  std::erase_if(found, [&](pid_t process) { return zombies.contains(process); });
  return found;
}

std::string process_name(pid_t process) {
  Stat stat;
  return read_stat(process, stat) ? stat.name : std::string();
}

void end_descendants(int patience_ms) {
  for (const pid_t process : descendants()) {
    kill(process, SIGTERM);
    kill(process, SIGCONT);  // a stopped process would not react
  }
  if (gone_within(patience_ms)) return;
  // A process that is killed may have started others in the meantime.
  constexpr int kRounds = 50;
  for (int round = 0; round < kRounds; ++round) {
    for (const pid_t process : descendants()) kill(process, SIGKILL);
    if (gone_within(100)) return;
  }
}

}  // namespace rota::attempt
