// How names that others have chosen are shown on a terminal and in a log.
#include "scheduler/base/printable.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <string>

using rota::make_printable;
using rota::printable;

TEST_CASE("letters of any language stay as they are") {
  for (const char* text : {"", "train.py --lr 0.1", "Größe", "обучение", "学習", "ἀρχή", "\U0001F680", "a b~"}) {
    CHECK(printable(text) == text);
  }
}

TEST_CASE("what a terminal takes for a command, and what hides or reorders text, is shown as a question mark") {
  CHECK(printable("\x1b[31mred") == "?[31mred");
  CHECK(printable(std::string("a\0b\n\r\t\x7f", 7)) == "a?b????");
  CHECK(printable("\xc2\x9b"
                  "2J") == "?2J");  // U+009B begins a command as ESC [ does
  CHECK(printable("\x9b"
                  "2J") == "?2J");                   // as a byte, for terminals without UTF-8
  CHECK(printable("\xc2\x85|\xc2\xad|") == "?|?|");  // a new line; a hyphen that is not shown
  CHECK(printable("a\u202etxt.exe\u2066") == "a?txt.exe?");
  CHECK(printable("a\u2028b\u200bc\ufeff") == "a?b?c?");
  CHECK(printable("\U000e0041") == "?");
}

TEST_CASE("bytes that are not UTF-8 are shown as a question mark each") {
  CHECK(printable("\xff\xfe") == "??");
  CHECK(printable("\xc0\x8a") == "??");            // a new line in too many bytes
  CHECK(printable("\xe0\x82\x9b") == "???");       // likewise U+009B
  CHECK(printable("\xed\xa0\x80") == "???");       // half of a pair
  CHECK(printable("\xf4\x90\x80\x80") == "????");  // beyond the last character
  CHECK(printable("\xc3") == "?");                 // cut off
  CHECK(printable("\xe2\x82") == "??");
  CHECK(printable("\xc3(") == "?(");
}

TEST_CASE("a field is ended within its size, and a character that is cut off there becomes a question mark") {
  char field[8];
  std::memcpy(field, "abcdefgh", 8);
  make_printable(field);
  CHECK(std::string(field) == "abcdefg");
  std::memcpy(field, "abcdef\xc3\xbc", 8);
  make_printable(field);
  CHECK(std::string(field) == "abcdef?");
  std::memcpy(field, "\xc2\x9b\0uvwxy", 8);
  make_printable(field);
  CHECK(std::memcmp(field, "?\0\0\0\0\0\0", 8) == 0);
}

TEST_CASE("whatever the bytes are, the result has no control characters, is no longer, and stays as it is") {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string text(random() % 12, '\0');
    for (char& byte : text) byte = static_cast<char>(random() % 3 == 0 ? random() : 0x80 + random() % 0x80);
    const std::string shown = printable(text);
    REQUIRE(shown.size() <= text.size());
    REQUIRE(printable(shown) == shown);
    for (std::size_t i = 0; i < shown.size(); ++i) {
      const auto byte = static_cast<unsigned char>(shown[i]);
      REQUIRE((byte >= ' ' && byte != 0x7f));
      const bool control = byte == 0xc2 && i + 1 < shown.size() && static_cast<unsigned char>(shown[i + 1]) < 0xa0;
      REQUIRE_FALSE(control);
    }
  }
}
