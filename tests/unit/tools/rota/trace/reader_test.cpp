// The reader on files that are cut off, overwritten or no traces at all: a clear error with file and offset, never a
// crash.
#include <fstream>
#include <random>
#include <sstream>

#include "generated/driver_symbols.h"
#include "runtime/trace/record.h"
#include "tests/unit/tools/rota/trace/recording.h"
#include "tools/rota/trace/output.h"

namespace rota::test {
namespace {

std::string load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void save(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

constexpr std::uint32_t kCalls = 2000;

// A small trace with calls of many functions, captures included: random payloads are as good as any to a reader.
std::string sample(const Folder& folder, std::uint32_t calls = kCalls) {
  REQUIRE(record(options_for(folder), [calls] {
            const std::string text = "text";
            for (std::uint32_t i = 0; i < calls; ++i) {
              const std::uint32_t function = i % kSymbolCount;
              const std::uint64_t number = i;
              trace::enter(trace::kDriverApi, function, number, trace::string(text.c_str()), number);
              trace::Thread& thread = trace::this_thread();
              trace::leave(thread, trace::returned(thread), trace::kDriverApi, function, i % 3,
                           trace::memory(&number, 1, 8), trace::Capture::absent());
            }
          }) == 0);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().extension() == trace::kFileSuffix) return entry.path().string();
  }
  FAIL("no trace was made");
  return {};
}

// Everything that reads: list, JSON, summary, export.
std::size_t read_everything(const std::string& path, std::vector<std::string>& problems) {
  std::size_t characters = 0;
  for (const int what : {0, 1, 2, 3}) {
    problems.clear();
    const tool::TraceFiles files = tool::open_traces(path, problems);
    std::ostringstream out;
    if (what == 0) tool::show_calls(files, {}, out);
    if (what == 1) tool::show_calls(files, {.json = true}, out);
    if (what == 2) tool::print_summary(files, {}, out);
    if (what == 3) tool::export_chrome(files, {}, out);
    for (const auto& file : files) {
      problems.insert(problems.end(), file->problems().begin(), file->problems().end());
    }
    characters += out.str().size();
  }
  return characters;
}

TEST_CASE("What is no trace is refused with file, offset and reason") {
  const Folder folder;
  const std::string path = sample(folder);
  const std::string whole = load(path);
  const std::string damaged = folder.path() + "/damaged.rotatrace";
  const auto problem_of = [&](const std::string& bytes) {
    save(damaged, bytes);
    std::string problem;
    CHECK(tool::TraceFile::open(damaged, problem) == nullptr);
    CHECK(problem.find(damaged) != std::string::npos);
    return problem;
  };
  CHECK(problem_of("").find("at offset 0: the file is cut off within its header") != std::string::npos);
  CHECK(problem_of(whole.substr(0, 1000)).find("at offset 1000") != std::string::npos);
  CHECK(problem_of(std::string(70'000, 'x')).find("not a rota trace") != std::string::npos);
  std::string other = whole;
  other[8] = 99;
  CHECK(problem_of(other).find("format version 99") != std::string::npos);
  other = whole;
  other[offsetof(trace::FileHeader, driver_schema)] ^= 1;
  CHECK(problem_of(other).find("other function tables") != std::string::npos);
  other = whole;
  other[offsetof(trace::FileHeader, byte_order)] = 1;
  CHECK(problem_of(other).find("byte order") != std::string::npos);
  std::string problem;
  CHECK(tool::TraceFile::open(folder.path() + "/none.rotatrace", problem) == nullptr);
  CHECK(problem.find("No such file") != std::string::npos);
  CHECK(tool::TraceFile::open(folder.path(), problem) == nullptr);
  CHECK(problem.find("not a regular file") != std::string::npos);
}

TEST_CASE("A trace that was cut off is read up to the cut, and the cut is named") {
  const Folder folder;
  const std::string path = sample(folder);
  const std::string whole = load(path);
  const std::string cut = folder.path() + "/cut.rotatrace";
  const std::size_t complete = read_all(path).calls.size();
  REQUIRE(complete == kCalls);
  save(cut, whole.substr(0, trace::kHeaderBytes + 1000));
  const Read read = read_all(cut);
  CHECK(read.calls.size() > 5);
  CHECK(read.calls.size() < 30);
  REQUIRE(!read.problems.empty());
  CHECK(read.problems[0].find("cut.rotatrace: at offset 66536") != std::string::npos);
  save(cut, whole.substr(0, trace::kHeaderBytes));
  CHECK(read_all(cut).calls.empty());
}

TEST_CASE("A damaged record costs the rest of its chunk, not the other chunks") {
  const Folder folder;
  const std::string path = sample(folder);
  std::string bytes = load(path);
  REQUIRE(bytes.size() >= trace::kHeaderBytes + 2 * trace::kChunkBytes);
  // A kind that does not exist in the first record of the first chunk.
  bytes[trace::kHeaderBytes + sizeof(trace::ChunkHeader) + 1] |= '\xf0';
  const std::string damaged = folder.path() + "/damaged.rotatrace";
  save(damaged, bytes);
  const Read read = read_all(damaged);
  REQUIRE(!read.problems.empty());
  CHECK(read.problems[0].find("at offset 65568: a record of unknown kind 15") != std::string::npos);
  CHECK(read.calls.size() > 0);
  CHECK(read.calls.size() < kCalls);
}

TEST_CASE("Random damage never crashes the reader and always gives some answer") {
  const Folder folder;
  const std::string path = sample(folder, kSymbolCount);  // each function once, since a sanitized render takes a second
  const std::string whole = load(path);
  const std::string damaged = folder.path() + "/damaged.rotatrace";
  std::mt19937_64 random(20261121);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  std::size_t with_problems = 0;
  constexpr int kRounds = 60 / ROTA_TEST_EVERY;
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = whole;
    const std::size_t hits = 1 + below(40);
    for (std::size_t hit = 0; hit < hits; ++hit) {
      // Mostly where records are; now and then the header behind its magic.
      const std::size_t place = below(8) == 0 ? 8 + below(sizeof(trace::FileHeader) - 8)
                                              : trace::kHeaderBytes + below(bytes.size() - trace::kHeaderBytes);
      switch (below(3)) {
        case 0:
          bytes[place] = static_cast<char>(random());
          break;
        case 1:
          bytes[place] = static_cast<char>(bytes[place] ^ (1 << below(8)));
          break;
        default: {
          const std::size_t length = std::min<std::size_t>(1 + below(64), bytes.size() - place);
          bytes.replace(place, length, std::string(length, below(2) == 0 ? '\0' : '\xff'));
        }
      }
    }
    if (below(4) == 0) bytes.resize(below(bytes.size()));
    save(damaged, bytes);
    std::vector<std::string> problems;
    const std::size_t characters = read_everything(damaged, problems);
    CHECK((characters > 0 || !problems.empty()));
    if (!problems.empty()) ++with_problems;
    for (const std::string& problem : problems) REQUIRE(problem.find(damaged) == 0);
  }
  CHECK(with_problems > kRounds / 4);
}

}  // namespace
}  // namespace rota::test
