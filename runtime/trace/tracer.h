// The one tracer: a template over a function's row and signature. See rows.h for the rows and record.h for what is
// written.
//
// Functions that are called and recorded in the same way can share a body, which gets the function's number as one more
// argument. That costs a nanosecond, so it is done where more is recorded than parameters and outputs.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "runtime/trace/record.h"
#include "runtime/trace/rows.h"

namespace rota::trace {
namespace detail {

// Parameters and results as they are passed and recorded, whatever they are called.
template <class T>
struct LoweredOf {
  using Type = T;
};
template <class T>
  requires(std::is_pointer_v<T> || std::is_enum_v<T> || std::is_integral_v<T>) && (sizeof(T) >= 4)
struct LoweredOf<T> {
  using Type = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
};
template <class T>
using Lowered = typename LoweredOf<T>::Type;

template <class To, class From>
[[gnu::always_inline]] inline To convert(const From& from) {
  if constexpr (std::is_same_v<To, From>) {
    return from;
  } else if constexpr (std::is_pointer_v<From> || std::is_pointer_v<To>) {
    return reinterpret_cast<To>(from);
  } else {
    return static_cast<To>(from);
  }
}

// A row's capture without names: functions that record the same have the same.
struct Recorded {
  std::int8_t parameter;
  bool at_return;
  bool text;
  std::uint32_t element_bytes;
  names::Recipe recipe;
};

template <Recorded kRecorded>
[[gnu::always_inline]] inline Capture captured(std::uint64_t value, [[maybe_unused]] const std::uint64_t* words) {
  constexpr names::Recipe recipe = kRecorded.recipe;
  constexpr std::uint32_t bytes = kRecorded.element_bytes;
  const void* const data = std::bit_cast<const void*>(value);
  if constexpr (recipe.source == names::Source::kText) {
    return string(data);
  } else if constexpr (recipe.source == names::Source::kTextBehind) {
    return string_at(data);
  } else if constexpr (recipe.source == names::Source::kListBehind) {
    return list_behind(data, recipe.pointer_offset, recipe.count_offset, recipe.count_bytes, bytes);
  } else {
    std::uint64_t count = recipe.count.number;
    if constexpr (recipe.count.kind == names::Count::Kind::kParameter) {
      count = words[recipe.count.number];
      // A count in a signed parameter may be negative in an invalid call.
      if constexpr (recipe.count.bytes != 0) {
        if (count >> (recipe.count.bytes * 8 - 1) != 0) count = 0;
      }
    } else if constexpr (recipe.count.kind == names::Count::Kind::kBehindParameter) {
      count = count_at<recipe.count.bytes>(std::bit_cast<const void*>(words[recipe.count.number]));
    }
    return recipe.source == names::Source::kTextWithin ? string(data, count) : memory(data, count, bytes);
  }
}

// The body of tracers. kHasStatus: the result says whether the outputs were written.
template <class Api, bool kHasStatus, class Signature, Recorded... kRecorded>
struct Body;

template <class Api, bool kHasStatus, class Result, class... Parameters, Recorded... kRecorded>
struct Body<Api, kHasStatus, Result(Parameters...), kRecorded...> {
  [[gnu::always_inline]] static Result run(Parameters... parameters, std::uint32_t number) {
    // The last word is the result's.
    std::uint64_t words[kResultWord + 1] = {word(parameters)...};
    enter(number, std::make_index_sequence<kEntries>(), words, parameters...);
    auto* const next = reinterpret_cast<Result (*)(Parameters...)>(Api::next(number));
    if constexpr (std::is_void_v<Result>) {
      next(parameters...);
      Thread& thread = this_thread();
      trace::leave(thread, returned(thread), Api::kApi, number, 0);
    } else {
      const Result result = next(parameters...);
      Thread& thread = this_thread();
      const std::uint64_t ticks = returned(thread);
      std::uint32_t value = 0;
      if constexpr (kResultInValue) {
        value = static_cast<std::uint32_t>(result);
      } else if constexpr (kAll[kEntries].text) {
        words[kResultWord] = word(result);
      } else {
        words[kResultWord] = reinterpret_cast<std::uintptr_t>(&result);
      }
      leave(number, std::make_index_sequence<kLeaving>(), thread, ticks, value, words);
      return result;
    }
  }
  [[gnu::noinline]] static Result shared(Parameters... parameters, std::uint32_t number) {
    return run(parameters..., number);
  }

 private:
  static constexpr std::size_t kResultWord = sizeof...(Parameters);
  static constexpr Recorded kAll[] = {kRecorded..., {}};
  static constexpr std::size_t kEntries = (0 + ... + (kRecorded.at_return ? 0 : 1));
  static constexpr std::size_t kLeaving = sizeof...(kRecorded) - kEntries;
  static constexpr bool kResultInValue = (true && ... && (kRecorded.parameter >= 0));

  template <class T>
  [[gnu::always_inline]] static std::uint64_t word(const T& value) {
    if constexpr (std::is_integral_v<T>) {
      return value;
    } else {
      return 0;
    }
  }

  template <std::size_t kIndex>
  [[gnu::always_inline]] static Capture capture(const std::uint64_t* words) {
    constexpr Recorded one = kAll[kIndex];
    return captured<one>(words[one.parameter < 0 ? kResultWord : one.parameter], words);
  }
  // For a call that did not return zero.
  template <std::size_t kIndex>
  [[gnu::always_inline]] static Capture capture_failed([[maybe_unused]] const std::uint64_t* words) {
    if constexpr (kHasStatus && kAll[kIndex].parameter >= 0) {
      return Capture::absent();
    } else {
      return capture<kIndex>(words);
    }
  }

  template <std::size_t... kIndex>
  [[gnu::always_inline]] static void enter(std::uint32_t number, std::index_sequence<kIndex...>,
                                           [[maybe_unused]] const std::uint64_t* words,
                                           const Parameters&... parameters) {
    trace::enter(Api::kApi, number, parameters..., capture<kIndex>(words)...);
  }
  template <std::size_t... kIndex>
  [[gnu::always_inline]] static void leave(std::uint32_t number, std::index_sequence<kIndex...>, Thread& thread,
                                           std::uint64_t ticks, std::uint32_t value,
                                           [[maybe_unused]] const std::uint64_t* words) {
    if (value != 0) [[unlikely]] {
      return append_result(thread, ticks, Api::kApi, number, value, capture_failed<kEntries + kIndex>(words)...);
    }
    append<RecordKind::kReturn>(
        thread, [ticks] { return ticks; }, Api::kApi, number, capture<kEntries + kIndex>(words)...);
  }
};

}  // namespace detail

// `Api` has kApi (the number in records), kRows, and next(number), the function to call.
template <class Api, std::uint32_t kNumber, class Signature>
struct Tracer;

template <class Api, std::uint32_t kNumber, class Result, class... Parameters>
struct Tracer<Api, kNumber, Result(Parameters...)> {
  static Result call(Parameters... parameters) {
    using Body = decltype(body(std::make_index_sequence<kFunction.captures>()));
    // One more argument is cheap only in a register.
    constexpr bool share = kReadsMemory && sizeof...(Parameters) <= 5 &&
                           (std::is_scalar_v<detail::Lowered<Parameters>> && ...) &&
                           (std::is_void_v<Result> || std::is_scalar_v<Result>);
    if constexpr (std::is_void_v<Result>) {
      Body::run(detail::convert<detail::Lowered<Parameters>>(parameters)..., kNumber);
    } else if constexpr (share) {
      return detail::convert<Result>(
          Body::shared(detail::convert<detail::Lowered<Parameters>>(parameters)..., kNumber));
    } else {
      return detail::convert<Result>(Body::run(detail::convert<detail::Lowered<Parameters>>(parameters)..., kNumber));
    }
  }

 private:
  static constexpr const names::Rows& kRows = Api::kRows;
  static constexpr const names::Function& kFunction = kRows.functions[kNumber];

  static constexpr bool kReadsMemory = kFunction.captures > 0 && !kRows.captures[kFunction.first_capture].at_return;

  static consteval detail::Recorded recorded(std::size_t index) {
    constexpr std::uint8_t signed_bytes[] = {(std::is_signed_v<Parameters> ? sizeof(Parameters) : 0)..., 0};
    const names::CaptureRow& row = kRows.captures[kFunction.first_capture + index];
    detail::Recorded recorded{row.parameter, row.at_return, row.kind == names::CaptureKind::kText,
                              kRows.types[row.type].bytes, row.recipe};
    names::Count& count = recorded.recipe.count;
    if (count.kind == names::Count::Kind::kParameter) count.bytes = signed_bytes[count.number];
    return recorded;
  }
  template <std::size_t... kIndex>
  static auto body(std::index_sequence<kIndex...>)
      -> detail::Body<Api, kRows.types[kFunction.result].kind == names::Kind::kEnum,
                      detail::Lowered<Result>(detail::Lowered<Parameters>...), recorded(kIndex)...>;

  template <std::size_t... kIndex>
  static constexpr bool fits(std::index_sequence<kIndex...>) {
    return ((kRows.types[kRows.parameters[kFunction.first_parameter + kIndex].type].bytes == sizeof(Parameters)) &&
            ...);
  }
  static_assert(kFunction.parameters == sizeof...(Parameters));
  static_assert(fits(std::index_sequence_for<Parameters...>()), "a reader would take another length");
};

}  // namespace rota::trace
