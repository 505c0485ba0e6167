// See names.h.
#include "runtime/trace/names.h"

#include "generated/trace_schema.h"
#include "runtime/trace/driver_rows.h"
#include "runtime/trace/runtime_rows.h"

namespace rota::names {
namespace {

template <std::size_t kCount>
consteval std::array<Capture, kCount> without_recipes(const CaptureRow (&rows)[kCount]) {
  std::array<Capture, kCount> captures{};
  for (std::size_t i = 0; i < kCount; ++i) captures[i] = rows[i];
  return captures;
}

// Where each one's enumerators or fields begin.
template <class Row, std::size_t kCount>
consteval std::array<Row, kCount> placed(std::array<Row, kCount> rows) {
  std::uint32_t first = 0;
  for (Row& row : rows) {
    row.first = first;
    first += row.count;
  }
  return rows;
}

consteval std::uint32_t how_many(std::initializer_list<Enumerator> enumerators) {
  return static_cast<std::uint32_t>(enumerators.size());
}
consteval std::uint32_t how_many(std::initializer_list<Field> fields) {
  return static_cast<std::uint32_t>(fields.size());
}

}  // namespace

#define ROTA_NOTHING(...)
#define ROTA_LIST(...) __VA_ARGS__ __VA_OPT__(, )

namespace driver_rows {
#define ROTA_TYPES "generated/driver_trace_types.inc"
#include "runtime/trace/names.inc"
#undef ROTA_TYPES
}  // namespace driver_rows

namespace runtime_rows {
#define ROTA_TYPES "generated/runtime_trace_types.inc"
#include "runtime/trace/names.inc"
#undef ROTA_TYPES
}  // namespace runtime_rows

const Api& driver() {
  using namespace driver_rows;
  static constexpr Api api{trace::kDriverSchema, 0,        kFunctions, kParameters, kReadCaptures, kTypes, kEnums,
                           kEnumerators,         kRecords, kFields};
  return api;
}

const Api& runtime() {
  using namespace runtime_rows;
  static constexpr Api api{trace::kRuntimeSchema, 0,        kFunctions, kParameters, kReadCaptures, kTypes, kEnums,
                           kEnumerators,          kRecords, kFields};
  return api;
}

}  // namespace rota::names
