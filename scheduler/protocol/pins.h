// Why memory of extents stays on a GPU, as pages and rows say it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace rota::protocol {

// Of one allocation: who or what reaches it by its physical pages. What holds for several counts as the first of them.
enum class Pin : std::uint8_t {
  kDescriptor = 0,  // exported by descriptor (cuMemExportToShareableHandle)
  kDmaBuf = 1,      // exported as a dma-buf (cuMemGetHandleForAddressRange)
  kTokens = 2,      // the program has its P2P tokens
  kSparse = 3,      // mapped to a sparse array
  kFabric = 4,      // bound to a multicast object or a logical endpoint
  kAccess = 5,      // others than GPUs may access it (cuMemSetAccess)
  kIpc = 6,         // other processes may open it, or have it open, by a legacy IPC handle
};
inline constexpr std::size_t kPins = 7;
// For programs, and for people: "exported by descriptor".
inline constexpr std::array<const char*, kPins> kPinNames = {"descriptor", "dma_buf", "p2p_tokens", "sparse_array",
                                                             "fabric",     "access",  "ipc"};
inline constexpr std::array<const char*, kPins> kPinTexts = {"exported by descriptor",
                                                             "exported as a dma-buf",
                                                             "reached by P2P tokens",
                                                             "mapped to sparse arrays",
                                                             "bound to multicast objects or endpoints",
                                                             "open to others than GPUs",
                                                             "opened by IPC handles"};

// Of all memory of a process on a GPU.
enum class PinAll : std::uint8_t {
  kNo = 0,
  kUnseen = 1,     // calls that rota does not know, or cannot count, may use it
  kExported = 2,   // a call has exported it in a way that names no range
  kReached = 3,    // a device, a library or a tool may reach it without any call
  kNoContext = 4,  // no context is left that could copy it
};
inline constexpr int kLastPinAll = 4;
inline constexpr std::array<const char*, kLastPinAll + 1> kPinAllNames = {nullptr, "unseen_calls", "exported",
                                                                          "reached_from_outside", "no_context"};
inline constexpr std::array<const char*, kLastPinAll + 1> kPinAllTexts = {
    "", "calls that rota does not know may use all of it", "all of it may have been exported",
    "a device, a library or a debugger may reach all of it", "no context is left to copy it"};

}  // namespace rota::protocol
