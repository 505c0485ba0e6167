// Pretends to be the thin preload, for tests of the core's side of interposing: slots, and for each symbol a thunk and
// a real function with distinct addresses, none of which is ever called.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "generated/driver_symbols.h"
#include "runtime/preload/attachment.h"
#include "runtime/preload/symbol_list.h"

namespace rota::test {

struct FakePreload {
  static constexpr std::uint32_t kStride = 16;

  std::array<void*, kSymbolCount> slots{};
  std::array<void*, kSymbolCount> real{};
  std::array<std::uint8_t, kSymbolCount> available{};
  std::vector<char> functions = std::vector<char>(kSymbolCount);
  std::vector<char> thunks = std::vector<char>(kSymbolCount * kStride);
  RotaNoteUnknown* note_unknown = nullptr;
  RotaBeforeLoad* before_load = nullptr;
  RotaAttachment attachment{};

  FakePreload() {
    for (std::size_t index = 0; index < kSymbolCount; ++index) {
      real[index] = &functions[index];
      available[index] = 1;
    }
    attachment = {kRotaAttachmentVersion, kSymbolCount, kSymbolListHash,  slots.data(), real.data(), available.data(),
                  thunks.data(),          kStride,      kRotaDriverFound, "/fake",      "",          &note_unknown,
                  &before_load,           "",           nullptr};
  }
  void*& real_of(Symbol symbol) { return real[static_cast<std::size_t>(symbol)]; }
  void* slot_of(Symbol symbol) const { return slots[static_cast<std::size_t>(symbol)]; }
  void* thunk_of(Symbol symbol) { return &thunks[static_cast<std::size_t>(symbol) * kStride]; }
  // The symbol that a thunk belongs to.
  std::string name_at(const void* thunk) const {
    const auto offset = static_cast<const char*>(thunk) - thunks.data();
    return kSymbolNames[static_cast<std::size_t>(offset) / kStride];
  }

  // A new one, which is never destroyed: the core keeps pointers into the last one that attached.
  static FakePreload& fresh() {
    static auto& all = *new std::vector<FakePreload*>;
    all.push_back(new FakePreload());
    return *all.back();
  }
};

}  // namespace rota::test
