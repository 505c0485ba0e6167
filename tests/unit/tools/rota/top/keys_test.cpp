// Keys of `rota top`, as terminals send them.
#include "tools/rota/top/keys.h"

#include <catch2/catch.hpp>

namespace rota::top {
namespace {

Pressed text(const char* letter) {
  return {Key::kText, letter};
}

Pressed function_key(int number) {
  return {Key::kFunction, "", number};
}

TEST_CASE("letters, arrows and function keys of several terminals are told apart in one piece") {
  KeyReader keys;
  CHECK(
      keys.read("aM\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~") ==
      std::vector<Pressed>{
          text("a"), text("M"), {Key::kUp}, {Key::kDown}, {Key::kPageUp}, {Key::kPageDown}, {Key::kHome}, {Key::kEnd}});
  CHECK(keys.read("\x1bOP\x1b[11~\x1b[[A\x1b[14~\x1bOS\x1b[17~\x1b[21~") ==
        std::vector<Pressed>{function_key(1), function_key(1), function_key(1), function_key(4), function_key(4),
                             function_key(6), function_key(10)});
  CHECK(keys.read("\r\n\x7f\b\x0c") ==
        std::vector<Pressed>{{Key::kEnter}, {Key::kEnter}, {Key::kBackspace}, {Key::kBackspace}, {Key::kRedraw}});
  CHECK_FALSE(keys.waits());
}

TEST_CASE("a key that comes in pieces is one key") {
  KeyReader keys;
  CHECK(keys.read("\x1b").empty());
  CHECK(keys.waits());
  CHECK(keys.read("[2").empty());
  CHECK(keys.read("1~") == std::vector<Pressed>{function_key(10)});
  CHECK(keys.read("\xe6\xbc").empty());
  CHECK(keys.read("\xa2") == std::vector<Pressed>{text("漢")});
  CHECK_FALSE(keys.waits());
}

TEST_CASE("an escape is a key of its own once nothing has followed for a moment") {
  KeyReader keys;
  CHECK(keys.read("\x1b").empty());
  CHECK(keys.pause() == std::vector<Pressed>{{Key::kEscape}});
  CHECK_FALSE(keys.waits());
  CHECK(keys.pause().empty());
  CHECK(keys.read("\x1b\x1b[A") == std::vector<Pressed>{{Key::kEscape}, {Key::kUp}});
}

TEST_CASE("sequences that are not known, control characters and bytes that are no UTF-8 are left out as a whole") {
  KeyReader keys;
  CHECK(keys.read("\x1b[200~x\x1b[1;5Cy\x1bxz") == std::vector<Pressed>{text("x"), text("y"), text("z")});
  CHECK(keys.read("\x01\x9b\xff\xc3(a") == std::vector<Pressed>{text("a")});
  // One that never ends is none.
  CHECK_FALSE(keys.read("\x1b[" + std::string(100, '1') + "q").empty());
  CHECK_FALSE(keys.waits());
}

}  // namespace
}  // namespace rota::top
