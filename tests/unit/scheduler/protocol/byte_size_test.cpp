#include "scheduler/base/byte_size.h"

#include <catch2/catch.hpp>

using rota::parse_bytes;

TEST_CASE("sizes are read as people write them") {
  CHECK(parse_bytes("123") == 123);
  CHECK(parse_bytes("4096") == 4096);
  CHECK(parse_bytes("4K") == 4096);
  CHECK(parse_bytes("64k") == 65536);
  CHECK(parse_bytes("512M") == 512ull << 20);
  CHECK(parse_bytes("8G") == 8ull << 30);
  CHECK(parse_bytes("8g") == 8ull << 30);
  CHECK(parse_bytes("1.5G") == 3ull << 29);
  CHECK(parse_bytes("1MB") == 1ull << 20);
  CHECK(parse_bytes("2GiB") == 2ull << 30);
  for (const char* same : {"8G", "8g", "8GB", "8gb", "8Gb", "8GiB", "8gib", "8GIB"})
    CHECK(parse_bytes(same) == 8ull << 30);
  CHECK(parse_bytes("1T") == 1ull << 40);
  CHECK(parse_bytes("1t") == 1ull << 40);
}

TEST_CASE("what is no size, or none that a machine could have, is nothing") {
  for (const char* bad : {"", "G", "M", "-1", "-1G", "12X", "1Gx", "1GG", "0", "0.5", "0x10", "1e30T", "99999999999T",
                          "nan", "inf", " 8G", "8 G"}) {
    INFO(bad);
    CHECK_FALSE(parse_bytes(bad).has_value());
  }
}
