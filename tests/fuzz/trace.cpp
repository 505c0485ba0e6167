// A trace file, through everything that `rota trace` prints of one.
#include <ostream>
#include <streambuf>

#include "tests/fuzz/input.h"
#include "tools/rota/trace/output.h"

namespace {

struct Nowhere : std::streambuf {
  int overflow(int c) override { return c; }
  std::streamsize xsputn(const char*, std::streamsize count) override { return count; }
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const rota::fuzz::InputFile input(data, size);
  for (int what = 0; what < 4; ++what) {
    std::string problem;
    rota::tool::TraceFiles files;
    files.push_back(rota::tool::TraceFile::open(input.path(), problem));
    if (files.front() == nullptr) {
      CHECK(rota::fuzz::is_a_line(problem));
      return 0;
    }
    Nowhere nowhere;
    std::ostream out(&nowhere);
    if (what == 0) rota::tool::show_calls(files, {}, out);
    if (what == 1) rota::tool::show_calls(files, {.json = true, .times = false}, out);
    if (what == 2) rota::tool::print_summary(files, {}, out);
    if (what == 3) rota::tool::export_chrome(files, {}, out);
    for (const std::string& line : files.front()->problems()) CHECK(rota::fuzz::is_a_line(line));
  }
  return 0;
}
