// Which test a process says it runs, on files made up.
#include "tools/rota/ci/identify.h"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace rota::ci {
namespace {

namespace fs = std::filesystem;

class Told {
 public:
  Told() {
    REQUIRE(mkdtemp(folder_.data()) != nullptr);
    fs::create_directories(fs::path(folder_) / report::kTestFolder);
    account.self.pid = 7;
    account.self.start_ticks = 9;
    file_.open(fs::path(folder_) / report::kTestFolder / (account.self.id() + ".jsonl"));
  }
  ~Told() { fs::remove_all(folder_); }
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;

  Told& event(const std::string& what, const std::string& test) {
    file_ << R"({"event":")" << what << R"(","test":")" << test << R"(","time_ns":1})" << std::endl;
    return *this;
  }
  Told& tests(int count) {
    for (int i = 0; i < count; ++i) {
      const std::string name = "t" + std::to_string(i);
      event("begin", name).event("end", name);
    }
    return *this;
  }
  std::vector<std::string> asked() { return Identify(folder_).test_of(account).names; }

  report::ProcessAccount account;

 private:
  std::string folder_ = (fs::temp_directory_path() / "rota-identify-XXXXXX").string();
  std::ofstream file_;
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("the test that a process says it runs is found, however many it has run") {
  Told told;
  CHECK(told.asked().empty());
  CHECK(told.event("begin", "first").asked() == Names{"first"});
  CHECK(told.event("end", "first").asked().empty());
  CHECK(told.tests(2000).asked().empty());
  CHECK(told.event("begin", "long").asked() == Names{"long"});
  // Those that other threads ran meanwhile.
  CHECK(told.tests(2000).asked() == Names{"long"});
  CHECK(told.event("begin", "last").asked() == Names{"last"});
}

TEST_CASE("asking for a running test takes no longer after thousands of others") {
  // The shortest of several, since the machine does other things as well.
  const auto time = [](int tests) {
    Told told;
    told.tests(tests).event("begin", "it");
    auto least = std::chrono::steady_clock::duration::max();
    for (int i = 0; i < 10; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      REQUIRE(told.asked() == Names{"it"});
      least = std::min(least, std::chrono::steady_clock::now() - begin);
    }
    return least;
  };
  const auto after_some = time(2000);
  CHECK(time(40'000) < 5 * after_some);
}

}  // namespace rota::ci
