// What is asked over the control socket.
#include <algorithm>
#include <string_view>

#include "scheduler/server/control_request.h"
#include "tests/fuzz/input.h"

namespace {

using namespace rota::server;

struct Sound {
  bool operator()(const control::SetMode& set) const {
    return rota::scheduler::parse_mode(rota::scheduler::mode_name(set.mode)) == set.mode;
  }
  bool operator()(const control::SetQuantum& set) const { return set.quantum.count() == 0 || in_range(set.quantum); }
  bool operator()(const control::SetGrace& set) const { return in_range(set.grace); }
  bool operator()(const control::UseNvml&) const { return true; }
  bool operator()(const control::Reload&) const { return true; }
  bool operator()(const control::Stop&) const { return true; }
  static bool in_range(std::chrono::nanoseconds time) { return time.count() > 0 && time <= std::chrono::hours(24); }
};

bool printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // What is longer, the server refuses before it looks.
  const std::string_view text(reinterpret_cast<const char*>(data), std::min(size, kMaxControlBytes));
  const auto request = parse_control(text);
  if (!request) {
    CHECK(rota::fuzz::is_a_line(request.error().text) && printable(request.error().text));
    CHECK(request.error().text.size() < 200);  // the answer's room
  } else {
    CHECK(std::visit(Sound(), *request));
    CHECK(text.substr(0, 4) != "stop" || std::holds_alternative<control::Stop>(*request));
  }
  return 0;
}
