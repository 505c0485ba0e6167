// What a real driver answered to cuGetProcAddress, from tests/data/cugetprocaddress-*.txt, whose head describes its
// lines.
#pragma once
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace rota::test {

struct RecordedLookup {
  std::string name;  // without a suffix
  int flags;
  int version;         // of CUDA: the first for which the answer holds
  std::string answer;  // an export, "-[status]" or "-[status rc result]"

  bool found() const { return answer[0] != '-'; }
  std::string text() const {
    return name + " flags " + std::to_string(flags) + " version " + std::to_string(version) + " recorded " + answer;
  }
};

// In the order of names, of flags and of versions. Throws std::runtime_error that names the line which it cannot read.
inline std::vector<RecordedLookup> recorded_lookups(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("no recording at " + path);
  std::vector<RecordedLookup> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.find(' ');
    const size_t colon = line.find(": ");
    if (space == std::string::npos || colon == std::string::npos || colon < space) {
      throw std::runtime_error(path + ": unreadable: " + line);
    }
    std::istringstream flags(line.substr(space + 1, colon - space - 1));
    for (std::string flag; std::getline(flags, flag, ',');) {
      std::istringstream answers(line.substr(colon + 2));
      for (std::string each; std::getline(answers, each, ',');) {
        std::istringstream words(each);
        RecordedLookup row{line.substr(0, space), flag[0] - '0', 0, ""};
        words >> row.version >> std::ws;
        std::getline(words, row.answer);
        if (flag.size() != 1 || row.version <= 0 || row.answer.empty()) {
          throw std::runtime_error(path + ": unreadable: " + line);
        }
        rows.push_back(row);
      }
    }
  }
  return rows;
}

}  // namespace rota::test
