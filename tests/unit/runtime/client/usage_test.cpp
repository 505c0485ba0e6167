#include "runtime/client/usage.h"

#include <catch2/catch.hpp>
#include <memory>

#include "tests/unit/runtime/fake_residency.h"

using namespace rota;

TEST_CASE("a page says that all memory is pinned as soon as it is to be shown, and not that none is") {
  struct Pinned : test::FakeResidency {
    protocol::PinAll pinned_all() const override { return why; }
    protocol::PinAll why = protocol::PinAll::kNo;
  } memory;
  client::Bell bell;
  client::Usage usage(memory, bell);
  const auto page = std::make_unique<protocol::UsagePage>();
  usage.connected(page.get());
  usage.set_index(0, 3);
  usage.show_if_all_pinned(0);
  CHECK(page->gpus[3].pinned_all == static_cast<std::uint8_t>(protocol::PinAll::kNo));
  memory.why = protocol::PinAll::kUnseen;
  usage.show_if_all_pinned(0);
  CHECK(page->gpus[3].pinned_all == static_cast<std::uint8_t>(protocol::PinAll::kUnseen));
}
