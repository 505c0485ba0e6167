// See tracers.h. The runtime's headers change signatures between majors under one name, so a function's signature is
// made from its row: of types that are passed in the same way as the runtime's own.
#include "runtime/preload/cudart/tracers.h"

#include <type_traits>
#include <utility>

#include "runtime/trace/runtime_rows.h"
#include "runtime/trace/tracer.h"

namespace rota::runtime_tracers {
namespace {

using names::Kind;

struct Runtime {
  static constexpr std::uint32_t kApi = trace::kRuntimeApi;
  static constexpr const names::Rows& kRows = names::runtime_rows::kRows;
  [[gnu::always_inline]] static void* next(std::uint32_t number) { return rota_cudart_real[number]; }
};

// A struct: codegen/emit_trace_runtime.cpp refuses those that would be passed in another way.
template <std::uint32_t kBytes>
struct Bytes {
  using Word = std::conditional_t<kBytes % 8 == 0, std::uint64_t, std::uint32_t>;
  Word words[kBytes / sizeof(Word)];
};

template <std::uint32_t kBytes>
using Unsigned = std::conditional_t<
    kBytes == 8, std::uint64_t,
    std::conditional_t<kBytes == 4, std::uint32_t, std::conditional_t<kBytes == 2, std::uint16_t, std::uint8_t>>>;

template <Kind kKind, std::uint32_t kBytes>
constexpr auto passed() {
  if constexpr (kKind == Kind::kBool) return std::type_identity<bool>();
  if constexpr (kKind == Kind::kCharacter) return std::type_identity<char>();
  if constexpr (kKind == Kind::kSigned) return std::type_identity<std::make_signed_t<Unsigned<kBytes>>>();
  if constexpr (kKind == Kind::kUnsigned || kKind == Kind::kEnum || kKind == Kind::kFlags)
    return std::type_identity<Unsigned<kBytes>>();
  if constexpr (kKind == Kind::kFloat) return std::type_identity<std::conditional_t<kBytes == 4, float, double>>();
  if constexpr (kKind == Kind::kAddress) return std::type_identity<void*>();
  if constexpr (kKind == Kind::kRecord) return std::type_identity<Bytes<kBytes>>();
  if constexpr (kKind == Kind::kOpaque && kBytes == 0) return std::type_identity<void>();
}
template <std::uint32_t kType>
using Passed = typename decltype(passed<Runtime::kRows.types[kType].kind, Runtime::kRows.types[kType].bytes>())::type;

template <std::uint32_t kNumber>
constexpr const names::Function& kFunction = Runtime::kRows.functions[kNumber];

template <std::uint32_t kNumber, std::size_t... kIndex>
auto tracer_of(std::index_sequence<kIndex...>)
    -> trace::Tracer<Runtime, kNumber,
                     Passed<kFunction<kNumber>.result>(
                         Passed<Runtime::kRows.parameters[kFunction<kNumber>.first_parameter + kIndex].type>...)>;
template <std::uint32_t kNumber>
using TracerOf = decltype(tracer_of<kNumber>(std::make_index_sequence<kFunction<kNumber>.parameters>()));

}  // namespace

#define ROTA_TRACED(number, ...) reinterpret_cast<void*>(&TracerOf<number>::call),
#define ROTA_UNTRACED(number, name) nullptr,
void* const table[kSymbols] = {
#include "generated/runtime_trace_functions.inc"
};

#define ROTA_CUDART_SYMBOL(major, node, name) #name,
const char* const symbol_names[kSymbols] = {
#include "generated/runtime_symbols.inc"
};

}  // namespace rota::runtime_tracers
