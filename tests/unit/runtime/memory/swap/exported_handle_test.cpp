#include "runtime/memory/swap/exported_handle.h"

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>

using namespace rota;
using namespace rota::memory;

namespace {

constexpr ExportedHandle kHandle{.process = {1, 2}, .serial = 3, .key = {4, 5}};

api::CUipcMemHandle with_byte_changed(api::CUipcMemHandle all, std::size_t index) {
  unsigned char bytes[sizeof all];
  std::memcpy(bytes, &all, sizeof all);
  bytes[index] ^= 1;
  std::memcpy(&all, bytes, sizeof all);
  return all;
}

}  // namespace

TEST_CASE("a handle of exported memory is read as it was written, and has the same bytes each time") {
  const api::CUipcMemHandle all = handle_bytes(kHandle);
  CHECK(read_handle(all) == kHandle);
  CHECK_FALSE(is_drivers(all));
  const api::CUipcMemHandle again = handle_bytes(kHandle);
  CHECK(std::memcmp(&all, &again, sizeof all) == 0);
}

TEST_CASE("a handle without the magic is the driver's") {
  CHECK(is_drivers({}));
  CHECK_FALSE(read_handle({}));
  for (std::size_t index = 0; index < 8; ++index) {
    CHECK(is_drivers(with_byte_changed(handle_bytes(kHandle), index)));
    CHECK_FALSE(read_handle(with_byte_changed(handle_bytes(kHandle), index)));
  }
}

TEST_CASE("a handle of another layout is nobody's, and every other byte names something else") {
  for (std::size_t index = 8; index < sizeof(api::CUipcMemHandle); ++index) {
    const api::CUipcMemHandle other = with_byte_changed(handle_bytes(kHandle), index);
    CHECK_FALSE(is_drivers(other));
    CHECK(read_handle(other) != kHandle);
    const bool named = index >= 16 && index < 56;
    CHECK(read_handle(other).has_value() == named);
  }
}
