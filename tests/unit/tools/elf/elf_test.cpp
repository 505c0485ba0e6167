// A library cut to other exports, seen by the dynamic loader; and files that are no library, or a damaged one.
#include "tools/elf/elf.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

namespace {

namespace fs = std::filesystem;
using rota::elf::ExportChange;
using rota::elf::read_build_id;
using rota::elf::read_exports;
using rota::elf::write_with_exports;

constexpr const char* kReserved1 = "reserved_name_long_enough_for_another_1";
constexpr const char* kReserved2 = "reserved_name_long_enough_for_another_2";

class Folder {
 public:
  Folder() {
    std::string name = fs::temp_directory_path() / "rota-elf-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ / name; }
  std::size_t files() const { return static_cast<std::size_t>(std::distance(fs::directory_iterator(path_), {})); }

 private:
  fs::path path_;
};

std::string library(const std::string& name) {
  return fmt::format("{}/lib{}.so", ELF_LIBRARIES, name);
}

// A library opened for itself, closed at the end.
class Opened {
 public:
  explicit Opened(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    INFO((handle_ != nullptr ? "" : dlerror()));
    REQUIRE(handle_ != nullptr);
  }
  ~Opened() { dlclose(handle_); }
  void* find(const char* name) const { return dlsym(handle_, name); }
  void* find(const char* name, const char* version) const { return dlvsym(handle_, name, version); }
  int call(const char* name) const {
    auto* function = reinterpret_cast<int (*)()>(find(name));
    REQUIRE(function != nullptr);
    return function();
  }

 private:
  void* handle_;
};

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string error_of(const rota::Result<bool>& result) {
  REQUIRE_FALSE(result);
  return result.error().text;
}

}  // namespace

TEST_CASE("a library's exports are what dlsym finds in it, functions and variables apart") {
  for (const char* name : {"gnu", "sysv", "both", "open"}) {
    INFO(name);
    const auto exports = read_exports(library(name));
    REQUIRE(exports);
    CHECK(exports->functions == std::vector<std::string>{"alpha", "beta", "calls", "gamma", kReserved1, kReserved2});
    CHECK(std::ranges::find(exports->objects, "value") != exports->objects.end());
  }
}

TEST_CASE("what is not kept is absent for the loader and what is kept works, in every form of library") {
  const Folder folder;
  for (const char* name : {"gnu", "sysv", "both"}) {
    INFO(name);
    const std::string copy = folder / name;
    const auto written = write_with_exports(library(name), copy, {{"gamma", "value", "calls"}, {}});
    INFO((written ? "" : written.error().text));
    REQUIRE(written);
    const Opened opened(copy);
    CHECK(opened.find("alpha") == nullptr);
    CHECK(opened.find("beta") == nullptr);
    CHECK(opened.find(kReserved1) == nullptr);
    CHECK(opened.call("gamma") == 12);  // which still reaches both
    CHECK(opened.call("calls") == 7);
    REQUIRE(opened.find("value") != nullptr);
    CHECK(*static_cast<int*>(opened.find("value")) == 42);
    const auto exports = read_exports(copy);
    REQUIRE(exports);
    CHECK(exports->functions == std::vector<std::string>{"calls", "gamma"});
    CHECK(fs::file_size(copy) == fs::file_size(library(name)));
  }
}

TEST_CASE("a reserved name becomes another one and is itself gone") {
  const Folder folder;
  for (const char* name : {"gnu", "sysv", "both"}) {
    INFO(name);
    const std::string copy = folder / name;
    const auto written =
        write_with_exports(library(name), copy, {{"alpha"}, {{kReserved1, "cuFromTheFuture"}, {kReserved2, "z"}}});
    INFO((written ? "" : written.error().text));
    REQUIRE(written);
    const Opened opened(copy);
    CHECK(opened.call("cuFromTheFuture") == 101);
    CHECK(opened.call("z") == 102);
    CHECK(opened.call("alpha") == 1);
    CHECK(opened.find(kReserved1) == nullptr);
    CHECK(opened.find("gamma") == nullptr);
    Dl_info info{};
    REQUIRE(dladdr(opened.find("cuFromTheFuture"), &info) != 0);
    CHECK(std::string(info.dli_sname) == "cuFromTheFuture");
  }
}

TEST_CASE("versions are removed with their names") {
  const Folder folder;
  REQUIRE(write_with_exports(library("both"), folder / "copy", {{"gamma", "alpha"}, {}}));
  void* handle = dlopen((folder / "copy").c_str(), RTLD_NOW);
  REQUIRE(handle != nullptr);
  CHECK(dlvsym(handle, "gamma", "ELF_TEST_2") != nullptr);
  CHECK(dlvsym(handle, "gamma", "ELF_TEST_1") == nullptr);
  CHECK(dlvsym(handle, "alpha", "ELF_TEST_1") != nullptr);
  dlclose(handle);
}

// That programs linked with it find it, tests/integration/fitted_preload_test.py shows.
TEST_CASE("what is hidden is absent for dlsym and for who reads the exports, and there under its version") {
  const Folder folder;
  const std::string copy = folder / "copy";
  const auto written = write_with_exports(library("both"), copy, {{"gamma", "value", "calls"}, {}, {"alpha"}});
  INFO((written ? "" : written.error().text));
  REQUIRE(written);
  const Opened opened(copy);
  CHECK(opened.find("alpha") == nullptr);
  CHECK(opened.find("beta") == nullptr);
  CHECK(opened.call("gamma") == 12);
  CHECK(opened.find("alpha", "ELF_TEST_1") != nullptr);
  CHECK(opened.find("beta", "ELF_TEST_2") == nullptr);
  const auto exports = read_exports(copy);
  REQUIRE(exports);
  CHECK(exports->functions == std::vector<std::string>{"calls", "gamma"});
  CHECK(*read_build_id(copy) != *read_build_id(library("both")));
  const auto dropped = folder / "dropped", kept = folder / "kept";
  REQUIRE(write_with_exports(library("both"), dropped, {{"gamma", "value", "calls"}, {}}));
  REQUIRE(write_with_exports(library("both"), kept, {{"gamma", "value", "calls", "alpha"}, {}}));
  CHECK(*read_build_id(copy) != *read_build_id(dropped));
  CHECK(*read_build_id(copy) != *read_build_id(kept));
}

TEST_CASE("a library that needs its own exports by name keeps them or is refused") {
  const Folder folder;
  CHECK(error_of(write_with_exports(library("open"), folder / "copy", {{"gamma"}, {}})).find("-Bsymbolic") !=
        std::string::npos);
  CHECK(folder.files() == 0);
  REQUIRE(write_with_exports(library("open"), folder / "copy", {{"gamma", "alpha", "beta"}, {}}));
  CHECK(Opened(folder / "copy").call("gamma") == 12);
}

TEST_CASE("the whole simulated driver can be cut to a few of its functions") {
  const Folder folder;
  const auto all = read_exports(ELF_DRIVER);
  REQUIRE(all);
  REQUIRE(all->functions.size() > 600);
  ExportChange change;
  for (std::size_t i = 0; i < all->functions.size(); i += 3) change.keep.insert(all->functions[i]);
  const auto written = write_with_exports(ELF_DRIVER, folder / "libcuda.so.1", change);
  INFO((written ? "" : written.error().text));
  REQUIRE(written);
  const Opened opened(folder / "libcuda.so.1");
  for (const std::string& name : all->functions) {
    INFO(name);
    REQUIRE((opened.find(name.c_str()) != nullptr) == change.keep.contains(name));
  }
}

TEST_CASE("a copy can be cut again") {
  const Folder folder;
  REQUIRE(write_with_exports(library("both"), folder / "once", {{"gamma", "alpha"}, {{kReserved1, "other"}}}));
  REQUIRE(write_with_exports(folder / "once", folder / "twice", {{"alpha", "other"}, {}}));
  const Opened opened(folder / "twice");
  CHECK(opened.call("alpha") == 1);
  CHECK(opened.call("other") == 101);
  CHECK(opened.find("gamma") == nullptr);
}

TEST_CASE("a copy without any export is still a library") {
  const Folder folder;
  for (const char* name : {"gnu", "sysv", "both"}) {
    REQUIRE(write_with_exports(library(name), folder / name, {}));
    const Opened opened(folder / name);
    CHECK(opened.find("alpha") == nullptr);
    const auto exports = read_exports(folder / name);
    REQUIRE(exports);
    CHECK(exports->functions.empty());
  }
}

TEST_CASE("a copy has a build-id of its own, the same each time") {
  const Folder folder;
  const ExportChange change{{"gamma"}, {}};
  REQUIRE(write_with_exports(library("gnu"), folder / "a", change));
  REQUIRE(write_with_exports(library("gnu"), folder / "b", change));
  REQUIRE(write_with_exports(library("gnu"), folder / "c", {{"gamma", "alpha"}, {}}));
  CHECK(read_build_id(library("gnu"))->size() == 40);
  CHECK(*read_build_id(folder / "a") != *read_build_id(library("gnu")));
  CHECK(*read_build_id(folder / "a") == *read_build_id(folder / "b"));
  CHECK(*read_build_id(folder / "a") != *read_build_id(folder / "c"));
}

TEST_CASE("a new name that cannot be given is refused and nothing is written") {
  const Folder folder;
  const auto refusal = [&](const ExportChange& change) {
    return error_of(write_with_exports(library("gnu"), folder / "copy", change));
  };
  CHECK(refusal({{}, {{"nothing", "x"}}}).find("does not export 'nothing'") != std::string::npos);
  CHECK(refusal({{}, {{"beta", "longer"}}}).find("longer than 'beta'") != std::string::npos);
  CHECK(refusal({{"beta"}, {{kReserved1, "beta"}}}).find("'beta' twice") != std::string::npos);
  CHECK(refusal({{}, {{kReserved1, ""}}}).find("cannot be the new name") != std::string::npos);
  CHECK(refusal({{}, {{kReserved1, "same"}, {kReserved2, "same"}}}).find("'same' twice") != std::string::npos);
  CHECK(folder.files() == 0);
}

TEST_CASE("nobody but its owner may write the copy, and a folder that cannot be written is named") {
  const Folder folder;
  fs::copy_file(library("gnu"), folder / "open.so");
  fs::permissions(folder / "open.so", fs::perms::all);
  REQUIRE(write_with_exports(folder / "open.so", folder / "copy", {{"alpha"}, {}}));
  CHECK((fs::status(folder / "copy").permissions() & (fs::perms::group_write | fs::perms::others_write)) ==
        fs::perms::none);
  const std::string text = error_of(write_with_exports(library("gnu"), folder / "none/copy", {{"alpha"}, {}}));
  CHECK(text.find(folder / "none/copy: cannot be written") != std::string::npos);
}

TEST_CASE("what is no library is an error that names the file") {
  const Folder folder;
  write(folder / "text", "INPUT(-lcuda)");
  write(folder / "empty", "");
  for (const std::string& path :
       {folder / "text", folder / "empty", folder / "missing", std::string("/proc/self/exe"), folder / ""}) {
    INFO(path);
    const auto exports = read_exports(path);
    if (path != "/proc/self/exe") {  // a program may be laid out like a library
      REQUIRE_FALSE(exports);
      CHECK(exports.error().text.find(path) == 0);
      CHECK(error_of(write_with_exports(path, folder / "copy", {})).find(path) == 0);
    }
  }
}

TEST_CASE("a library that was cut off anywhere is an error or a library, never a crash") {
  const Folder folder;
  for (const char* name : {"gnu", "sysv", "both"}) {
    const std::string whole = content_of(library(name));
    for (std::size_t size = 0; size < whole.size(); size += 1 + size / 16) {
      write(folder / "cut", whole.substr(0, size));
      (void)read_exports(folder / "cut");
      (void)read_build_id(folder / "cut");
      (void)write_with_exports(folder / "cut", folder / "copy", {{"alpha"}, {{kReserved1, "x"}}});
    }
    // Without its dynamic tables it cannot be read.
    write(folder / "cut", whole.substr(0, 700));
    CHECK_FALSE(read_exports(folder / "cut"));
  }
}

TEST_CASE("a library with wrong bytes anywhere is an error or a library, never a crash") {
  const Folder folder;
  std::mt19937 random(20261121);  // NOLINT: the same damage each time
  for (const char* name : {"gnu", "both"}) {
    const std::string whole = content_of(library(name));
    for (int round = 0; round < 500; ++round) {
      std::string damaged = whole;
      for (int wrong = 0; wrong < 4; ++wrong) {
        // Mostly among the headers and tables, which lie in front, and the dynamic section and section headers behind.
        const std::size_t range = round % 2 == 0 ? std::min<std::size_t>(whole.size(), 0x600) : whole.size();
        const std::size_t at = random() % (range - 3);
        const std::uint64_t values[] = {0, 0xffffffff, 0x7fffffff, random(), random() % 64};
        const std::uint64_t value = values[random() % 5];
        std::memcpy(damaged.data() + at, &value, 1 + random() % 4);
      }
      write(folder / "damaged", damaged);
      (void)read_exports(folder / "damaged");
      (void)read_build_id(folder / "damaged");
      (void)write_with_exports(folder / "damaged", folder / "copy", {{"alpha"}, {{kReserved1, "x"}}});
    }
  }
}
