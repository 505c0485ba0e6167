// Writes who it is and who its ancestors are, as an account does: ctest_descendant [SECONDS]. The folder is in
// DESCENDANT_FOLDER; DESCENDANT_TEST is said, if it is set. It lives that long, on the clock.
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace {

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Of /proc/PID/stat, counted from the state on, which is field 3.
std::string field(const std::string& stat, int number) {
  std::istringstream words(stat.substr(stat.rfind(')') + 1));
  std::string word;
  for (int i = 3; i <= number; ++i) words >> word;
  return word;
}

nlohmann::json person(const std::string& pid) {
  const std::string proc = "/proc/" + pid;
  nlohmann::json arguments = nlohmann::json::array();
  std::istringstream line(content(proc + "/cmdline"));
  for (std::string argument; std::getline(line, argument, '\0');) arguments.push_back(argument);
  std::error_code error;
  return {{"pid", std::stoul(pid)},
          {"start", std::stoull(field(content(proc + "/stat"), 22))},
          {"command", arguments},
          {"folder", std::filesystem::read_symlink(proc + "/cwd", error).string()}};
}

long long realtime() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

}  // namespace

int main(int count, char** words) {
  const std::string self = std::to_string(getpid());
  nlohmann::json out{{"self", person(self)}, {"ancestors", nlohmann::json::array()}, {"began", realtime()}};
  if (const char* const test = std::getenv("DESCENDANT_TEST")) out["test"] = test;
  for (std::string at = field(content("/proc/" + self + "/stat"), 4); at != "0" && !at.empty();) {
    const std::string stat = content("/proc/" + at + "/stat");
    if (stat.empty()) break;
    out["ancestors"].push_back(person(at));
    at = field(stat, 4);
  }
  const std::string path =
      std::string(std::getenv("DESCENDANT_FOLDER")) + "/" + self + "-" + std::to_string(realtime());
  std::ofstream(path + ".partial") << out.dump();
  std::filesystem::rename(path + ".partial", path + ".json");
  if (count > 1) usleep(static_cast<useconds_t>(std::strtod(words[1], nullptr) * 1e6));
  return count > 2 ? std::atoi(words[2]) : 0;
}
