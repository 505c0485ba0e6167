// Which lines about a client in a loop are written.
#include "scheduler/base/paced_lines.h"

#include <catch2/catch.hpp>

namespace rota::server {

using namespace std::chrono_literals;

TEST_CASE("each line is written while there are few, and of many some are, and how many were left out is told") {
  PacedLines lines;
  constexpr std::chrono::nanoseconds kBegin = 1000h;
  for (int i = 0; i < PacedLines::kAtOnce; ++i) CHECK(lines.next(kBegin) == 0U);
  for (int i = 0; i < 500; ++i) CHECK_FALSE(lines.next(kBegin + 1s));
  CHECK(lines.left_out() == 500);
  CHECK(lines.next(kBegin + PacedLines::kEach) == 500U);
  CHECK(lines.left_out() == 0);
  CHECK_FALSE(lines.next(kBegin + PacedLines::kEach));
  for (int i = 0; i < PacedLines::kAtOnce; ++i) CHECK(lines.next(kBegin + 1h));
  CHECK_FALSE(lines.next(kBegin + 1h));
}

}  // namespace rota::server
