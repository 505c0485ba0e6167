// What a program's file says of who can run it: files from the linker, files made byte by byte, and damaged ones.
#include "tools/elf/program.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <set>

#include "tests/unit/tools/elf/made_program.h"
#include "tools/elf/image.h"

namespace {

using rota::elf::MappedFile;
using rota::elf::Program;
using rota::elf::read_program;
using rota::test::kThisMachine;
using rota::test::MadeProgram;
using Kind = Program::Kind;

constexpr const char* kPath = "folder/program";

std::string error_of(const std::string& bytes) {
  const auto program = read_program(bytes, kPath);
  REQUIRE_FALSE(program);
  CHECK(program.error().text.find(kPath) == 0);
  return program.error().text.substr(std::strlen(kPath));
}

bool needs(const Program& program, std::string_view name) {
  return std::ranges::any_of(program.needed, [&](std::string_view library) { return library.starts_with(name); });
}

// The program with one entry of its dynamic section changed.
std::string with_entry(const MadeProgram& program, std::size_t index, Elf64_Dyn entry) {
  std::string bytes = program.bytes();
  std::memcpy(bytes.data() + MadeProgram::kDynamicAt + index * sizeof entry, &entry, sizeof entry);
  return bytes;
}

}  // namespace

TEST_CASE("a program that the dynamic loader starts says so, and names its libraries in their order") {
  const auto own = MappedFile::open("/proc/self/exe");
  REQUIRE(own);
  const auto program = read_program(own->bytes(), "/proc/self/exe");
  REQUIRE(program);
  CHECK(program->kind == Kind::kNative);
  CHECK(program->has_loader);
  CHECK(needs(*program, "libc.so.6"));

  const std::string bytes = MadeProgram{.needed = {"libasan.so.8", "libm.so.6", "libc.so.6"}}.bytes();
  const auto made = read_program(bytes, kPath);
  REQUIRE(made);
  CHECK(made->needed == std::vector<std::string_view>{"libasan.so.8", "libm.so.6", "libc.so.6"});
}

TEST_CASE(
    "programs without a dynamic loader are told, with and without a dynamic section, and a library is none either") {
  for (const char* path : {ELF_STATIC, ELF_STATIC_PIE}) {
    INFO(path);
    const auto file = MappedFile::open(path);
    REQUIRE(file);
    const auto program = read_program(file->bytes(), path);
    REQUIRE(program);
    CHECK(program->kind == Kind::kNative);
    CHECK_FALSE(program->has_loader);
    CHECK(program->needed.empty());
  }
  const auto library = MappedFile::open(ELF_DRIVER);
  REQUIRE(library);
  const auto program = read_program(library->bytes(), ELF_DRIVER);
  REQUIRE(program);
  CHECK_FALSE(program->has_loader);
  CHECK(needs(*program, "libc.so.6"));
}

TEST_CASE("32 bits, another processor and another byte order are told apart from what runs here") {
  const auto kind = [](const std::string& bytes) {
    const auto program = read_program(bytes, kPath);
    REQUIRE(program);
    return program->kind;
  };
  CHECK(kind(MadeProgram{}.bytes()) == Kind::kNative);
  std::string changed = MadeProgram{.machine = EM_S390}.bytes();
  CHECK(kind(changed) == Kind::kOtherMachine);
  changed[EI_CLASS] = ELFCLASS32;
  CHECK(kind(changed) == Kind::k32Bit);
  changed = MadeProgram{}.bytes();
  changed[EI_DATA] = ELFDATA2MSB;
  CHECK(kind(changed) == Kind::kOtherMachine);
  CHECK(kind(std::string(ELFMAG, SELFMAG)) == Kind::kOtherMachine);
  CHECK(kind(MadeProgram{}.bytes().substr(0, sizeof(Elf64_Ehdr) - 1)) == Kind::kOtherMachine);
}

TEST_CASE("what is not a program, or says what cannot be, is an error that names the file") {
  CHECK(error_of("") == ": is not a program");
  CHECK(error_of("#!/bin/sh\n") == ": is not a program");
  const MadeProgram sound;
  constexpr const char* kNoSegments = ": is a damaged program: its segments cannot be read";
  constexpr const char* kNoDynamic = ": is a damaged program: its dynamic section cannot be read";
  constexpr const char* kNoName = ": is a damaged program: a library that it needs has no name";
  std::string bytes = sound.bytes();
  CHECK(error_of(bytes.substr(0, sizeof(Elf64_Ehdr) + sizeof(Elf64_Phdr))) == kNoSegments);
  CHECK(error_of(bytes.substr(0, MadeProgram::kDynamicAt + sizeof(Elf64_Dyn))) == kNoDynamic);
  bytes[offsetof(Elf64_Ehdr, e_phentsize)] = 1;
  CHECK(error_of(bytes) == kNoSegments);
  // The entries: DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_NULL.
  constexpr Elf64_Xword kFar = ~Elf64_Xword{0} - 5;
  CHECK(error_of(with_entry(sound, 0, {.d_tag = DT_NEEDED, .d_un = {.d_val = 11}})) == kNoName);  // behind the last
  CHECK(error_of(with_entry(sound, 0, {.d_tag = DT_NEEDED, .d_un = {.d_val = kFar}})) == kNoName);
  CHECK(error_of(with_entry(sound, 1, {.d_tag = DT_STRTAB, .d_un = {.d_ptr = kFar}})) == kNoDynamic);
  CHECK(error_of(with_entry(sound, 1, {.d_tag = DT_DEBUG, .d_un = {}})) == kNoDynamic);
  CHECK(error_of(with_entry(sound, 2, {.d_tag = DT_STRSZ, .d_un = {.d_val = kFar}})) == kNoDynamic);
  CHECK(error_of(with_entry(sound, 2, {.d_tag = DT_STRSZ, .d_un = {.d_val = 10}})) == kNoName);  // without its end
}

TEST_CASE("a program cut off or damaged anywhere is an error or a program, never a crash") {
  const std::string whole = MadeProgram{.needed = {"libasan.so.8", "libc.so.6"}}.bytes();
  const std::set<std::string_view> names = {"libasan.so.8", "libc.so.6"};
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string cut = whole.substr(0, size);
    const auto program = read_program(cut, kPath);
    CHECK((!program || program->kind == Kind::kOtherMachine));
  }
  std::mt19937 random(20261122);  // NOLINT: the same damage each time
  for (int round = 0; round < 20'000; ++round) {
    std::string damaged = whole;
    const std::size_t from = round % 2 == 0 ? 0 : MadeProgram::kDynamicAt;
    for (int wrong = 0; wrong < 2; ++wrong) {
      const std::uint64_t values[] = {0, ~std::uint64_t{0}, 0x7fffffff, random(), random() % 64};
      const std::uint64_t value = values[random() % 5];
      std::memcpy(damaged.data() + from + random() % 240, &value, 1 + random() % 8);
    }
    const auto program = read_program(damaged, kPath);
    if (!program) continue;
    for (const std::string_view name : program->needed) {
      const bool within = name.data() >= damaged.data() && name.data() + name.size() < damaged.data() + damaged.size();
      if (!within) FAIL_CHECK("a name that is not in the file");
    }
  }
}
