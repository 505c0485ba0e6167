// A machine for tests: the files under /proc and /sys that say what memory the host and cgroups have left.
#pragma once

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace rota::test {

struct Machine {
  Machine() {
    std::string made = std::filesystem::temp_directory_path() / "rota-machine-XXXXXX";
    REQUIRE(mkdtemp(made.data()) != nullptr);
    root = made;
  }
  ~Machine() { std::filesystem::remove_all(root); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  void file(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root + path).substr(0, (root + path).rfind('/')));
    std::ofstream(root + path) << text;
  }
  std::string root;
};

}  // namespace rota::test
