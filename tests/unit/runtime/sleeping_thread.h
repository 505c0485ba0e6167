// Tells whether another thread of the test has begun to wait.
#pragma once

#include <sys/types.h>

#include <fstream>
#include <string>

namespace rota::test {

inline bool sleeps_or_is_gone(pid_t thread) {
  std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  std::getline(stat, line);
  return line.find(") R ") == std::string::npos;
}

}  // namespace rota::test
