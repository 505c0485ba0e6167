// The hot path of tracing: what a generated tracer calls before and after the traced function.
//
//   enter(api, function, arguments…, captures…);   values are packed as they are; captures follow, each with its length
//   result = next(…);
//   leave(api, function, result, captures…);
//
// The arguments' types decide the payload, and codegen/emit_trace.cpp derives from the same plan both these calls and
// the name tables that decode them. Header-only, no allocation, no lock.
//
// Measured on the H200 machine, both records of a call with one scalar and one out-parameter: 26 ns over a direct call
// once the pages are there, of which the two reads of the time stamp counter are 23; in an endless tight loop 43 ns,
// since each 4 KiB of records is a fresh page of the file (some 1.2 us of the kernel's time in a virtual machine).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "runtime/trace/clock.h"
#include "runtime/trace/format.h"
#include "runtime/trace/thread.h"

namespace rota::trace {

// `count` bytes at `data`; null data is recorded as absent.
struct Capture {
  const void* data;
  std::uint16_t word;

  static Capture absent() { return {nullptr, CaptureWord::kAbsent}; }
};

// A zero-terminated string, cut off at kMaxStringBytes.
inline Capture string(const void* text) {
  if (text == nullptr) return Capture::absent();
  const std::size_t length = strnlen(static_cast<const char*>(text), kMaxStringBytes + 1);
  if (length > kMaxStringBytes) return {text, kMaxStringBytes | CaptureWord::kCutOff};
  return {text, static_cast<std::uint16_t>(length)};
}

// The same within a buffer of `room` characters, for callers who were given room and not a terminated text.
inline Capture string(const void* text, std::uint64_t room) {
  if (text == nullptr) return Capture::absent();
  const std::uint64_t limit = room < kMaxStringBytes ? room : kMaxStringBytes;
  return {text, static_cast<std::uint16_t>(strnlen(static_cast<const char*>(text), limit))};
}

// `count` elements of `element_bytes` each, cut off at kMaxCaptureBytes.
inline Capture memory(const void* data, std::uint64_t count, std::uint32_t element_bytes) {
  if (data == nullptr) return Capture::absent();
  const std::uint64_t most = kMaxCaptureBytes / element_bytes;
  if (count > most) {
    // An element that alone is too long is cut, else whole elements are kept.
    const std::uint32_t bytes = most == 0 ? kMaxCaptureBytes : static_cast<std::uint32_t>(most * element_bytes);
    return {data, static_cast<std::uint16_t>(bytes | CaptureWord::kCutOff)};
  }
  return {data, static_cast<std::uint16_t>(count * element_bytes)};
}

// The string that an out-parameter of type const char** was given.
inline Capture string_at(const void* text) {
  if (text == nullptr) return Capture::absent();
  const char* target = nullptr;
  std::memcpy(&target, text, sizeof target);
  return string(target);
}

// A pointer, handle or function as its address.
inline std::uint64_t address(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}
template <class Result, class... Arguments>
inline std::uint64_t address(Result (*function)(Arguments...)) {
  return reinterpret_cast<std::uintptr_t>(function);
}

// A counter that a call gave back through a pointer, for "out[*count]"; null counts as nothing.
template <class T>
inline std::uint64_t count_at(const T* count) {
  return count == nullptr ? 0 : static_cast<std::uint64_t>(*count);
}
template <class T>
inline std::uint64_t count_at(const void* count) {
  return count_at(static_cast<const T*>(count));
}
// A count that is a signed parameter may be negative in a wrong call.
template <class T>
inline std::uint64_t count_of(T count) {
  if constexpr (std::is_signed_v<T>) {
    return count < 0 ? 0 : static_cast<std::uint64_t>(count);
  } else {
    return count;
  }
}

namespace detail {

template <class T>
constexpr std::uint32_t bytes_of(const T&) {
  return sizeof(T);
}
inline std::uint32_t bytes_of(const Capture& capture) {
  return sizeof(std::uint16_t) + (capture.word == CaptureWord::kAbsent ? 0u : CaptureWord::bytes(capture.word));
}

template <class T>
inline std::byte* put(std::byte* to, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(to, &value, sizeof value);
  return to + sizeof value;
}
inline std::byte* put(std::byte* to, const Capture& capture) {
  std::memcpy(to, &capture.word, sizeof capture.word);
  to += sizeof capture.word;
  if (capture.word == CaptureWord::kAbsent) return to;
  const std::size_t bytes = CaptureWord::bytes(capture.word);
  std::memcpy(to, capture.data, bytes);
  return to + bytes;
}

inline std::byte* reserve(Thread& thread, std::uint32_t bytes) {
  std::byte* const place = thread.cursor;
  if (static_cast<std::size_t>(thread.end - place) < bytes) [[unlikely]] {
    return reserve_slowly(thread, bytes);
  }
  thread.cursor = place + bytes;
  return place;
}

// The word goes in last: until then the record is not there.
inline void commit(std::byte* place, std::uint64_t word) {
  __atomic_store_n(reinterpret_cast<std::uint64_t*>(place), word, __ATOMIC_RELEASE);
}

}  // namespace detail

// Records that a call begins. The time stamp is taken last, so that recording is not counted as the call's time.
template <class... Values>
inline void enter(std::uint32_t api, std::uint32_t function, const Values&... values) {
  Thread& thread = this_thread();
  const std::uint32_t bytes = (RecordWord::kOverhead + 7 + (0u + ... + detail::bytes_of(values))) & ~7u;
  std::byte* const place = detail::reserve(thread, bytes);
  if (place == nullptr) [[unlikely]] {
    return;
  }
  [[maybe_unused]] std::byte* to = place + RecordWord::kOverhead;
  ((to = detail::put(to, values)), ...);
  const std::uint64_t ticks = read_ticks(thread.clock);
  std::memcpy(place + 8, &ticks, sizeof ticks);
  detail::commit(place, RecordWord::make(bytes, RecordKind::kEntry, api, function, 0));
}

// The moment a call returned: take it before anything else.
inline std::uint64_t returned(Thread& thread) {
  return read_ticks(thread.clock);
}

// Records that a call returned at `ticks` with `value`.
template <class... Values>
inline void leave(Thread& thread, std::uint64_t ticks, std::uint32_t api, std::uint32_t function, std::uint32_t value,
                  const Values&... values) {
  const std::uint32_t bytes = (RecordWord::kOverhead + 7 + (0u + ... + detail::bytes_of(values))) & ~7u;
  std::byte* const place = detail::reserve(thread, bytes);
  if (place == nullptr) [[unlikely]] {
    return;
  }
  [[maybe_unused]] std::byte* to = place + RecordWord::kOverhead;
  ((to = detail::put(to, values)), ...);
  std::memcpy(place + 8, &ticks, sizeof ticks);
  detail::commit(place, RecordWord::make(bytes, RecordKind::kReturn, api, function, value));
  if (ticks >= thread.refresh_at) [[unlikely]] {
    refresh(thread, ticks);
  }
}

}  // namespace rota::trace
