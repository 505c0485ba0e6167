// The hot path of tracing: what a tracer (tracer.h) calls before and after the traced function.
//
//   enter(api, function, arguments…, captures…);   values are packed as they are; captures follow, each with its length
//   result = next(…);
//   leave(api, function, result, captures…);
//
// The arguments' types decide the payload. Header-only, no allocation, no lock.
//
// Measured on the H200 machine (tests/bench/run, simgpu, files on ext4), both records of cuCtxGetDevice: 40 ns over the
// direct call, of which the time stamps alone are 34. Back to back the two reads take 23 ns; around a call they also
// keep the CPU from overlapping one call with the next. Fresh pages of the file are 2 to 3 ns of the rest: see
// writer.cpp.
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

// The same within a buffer of `room` characters, for buffers without a terminated string.
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
    // A single element that is too long is cut; otherwise whole elements are recorded.
    const std::uint32_t bytes = most == 0 ? kMaxCaptureBytes : static_cast<std::uint32_t>(most * element_bytes);
    return {data, static_cast<std::uint16_t>(bytes | CaptureWord::kCutOff)};
  }
  return {data, static_cast<std::uint16_t>(count * element_bytes)};
}

// The array that a struct points to and counts; offsets and sizes in bytes.
inline Capture list_behind(const void* record, std::uint32_t pointer_offset, std::uint32_t count_offset,
                           std::uint32_t count_bytes, std::uint32_t element_bytes) {
  if (record == nullptr) return Capture::absent();
  const auto* const bytes = static_cast<const char*>(record);
  const void* data = nullptr;
  std::uint64_t count = 0;
  std::memcpy(&data, bytes + pointer_offset, sizeof data);
  std::memcpy(&count, bytes + count_offset, count_bytes);
  // With a count of zero the pointer may be anything, and a negative count is an invalid call that the driver will
  // refuse.
  const bool none = count == 0 || count >> (count_bytes * 8 - 1) != 0;
  return none ? Capture::absent() : memory(data, count, element_bytes);
}

// The string that a call returned through a const char**.
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

// A count of so many bytes that lies behind a pointer; null counts as zero.
template <std::uint32_t kBytes>
inline std::uint64_t count_at(const void* pointer) {
  std::uint64_t count = 0;
  if (pointer != nullptr) std::memcpy(&count, pointer, kBytes);
  return count;
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
  // Nearly all out-parameters are an int or a handle: not worth a call to memcpy.
  if (bytes == 4) {
    std::memcpy(to, capture.data, 4);
  } else if (bytes == 8) {
    std::memcpy(to, capture.data, 8);
  } else {
    std::memcpy(to, capture.data, bytes);
  }
  return to + bytes;
}

// Null while nothing can be recorded.
[[gnu::always_inline]] inline std::byte* reserve(Thread& thread, std::uint32_t bytes) {
  std::byte* const place = thread.cursor;
  if (static_cast<std::size_t>(thread.end - place) < bytes) [[unlikely]] {
    return reserve_slowly(thread, bytes);
  }
  thread.cursor = place + bytes;
  if (place == nullptr) __builtin_unreachable();  // there is no space at all then
  return place;
}

// The word is stored last: until then the record does not exist.
inline void commit(std::byte* place, std::uint64_t word) {
  __atomic_store_n(reinterpret_cast<std::uint64_t*>(place), word, __ATOMIC_RELEASE);
}

// Whether the stretch's last kTime record holds for these ticks.
inline bool in_epoch(const Thread& thread, std::uint64_t ticks) {
  return (ticks ^ thread.epoch) >> 32 == 0;
}

// Turns a record that was reserved but not committed into the missing kTime record. Happens once per 2^32 ticks (some
// seconds) and stretch, so it is also the moment to refresh the calibration.
[[gnu::noinline]] inline void begin_epoch(Thread& thread, std::byte* place, std::uint32_t bytes, std::uint64_t ticks) {
  thread.epoch = ticks;
  commit(place, RecordWord::make(bytes, RecordKind::kTime, 0, 0, static_cast<std::uint32_t>(ticks >> 32)));
  if (ticks >= thread.refresh_at) refresh(thread, ticks);
}

// Writes one record. `ticks` is called last, so that recording a call's entry is not counted as the call's time.
// Inlined into every tracer, since the sizes are known there: that saves a third of the instructions.
template <RecordKind kKind, class Ticks, class... Values>
[[gnu::always_inline]] inline void append(Thread& thread, Ticks&& ticks_now, std::uint32_t api, std::uint32_t function,
                                          const Values&... values) {
  const std::uint32_t bytes = (RecordWord::kOverhead + 7 + (0u + ... + bytes_of(values))) & ~7u;
  for (;;) {
    std::byte* const place = reserve(thread, bytes);
    if (place == nullptr) [[unlikely]] {
      return;
    }
    [[maybe_unused]] std::byte* to = place + RecordWord::kOverhead;
    ((to = put(to, values)), ...);
    const std::uint64_t ticks = ticks_now();
    if (in_epoch(thread, ticks)) [[likely]] {
      return commit(place, RecordWord::make(bytes, kKind, api, function, static_cast<std::uint32_t>(ticks)));
    }
    begin_epoch(thread, place, bytes, ticks);
  }
}

// By value: a reference would have the caller keep what it refers to in memory.
template <class... Values>
[[gnu::noinline]] void append_result(Thread& thread, std::uint64_t ticks, std::uint32_t api, std::uint32_t function,
                                     Values... values) {
  append<RecordKind::kResult>(thread, [ticks] { return ticks; }, api, function, values...);
}

}  // namespace detail

// Records that a call begins.
template <class... Values>
[[gnu::always_inline]] inline void enter(std::uint32_t api, std::uint32_t function, const Values&... values) {
  Thread& thread = this_thread();
  detail::append<RecordKind::kEntry>(thread, [&thread] { return read_ticks(thread.clock); }, api, function, values...);
}

// The moment a call returned: take it before anything else.
inline std::uint64_t returned(Thread& thread) {
  return read_ticks(thread.clock);
}

// Records that a call returned at `ticks` with `value`.
template <class... Values>
[[gnu::always_inline]] inline void leave(Thread& thread, std::uint64_t ticks, std::uint32_t api, std::uint32_t function,
                                         std::uint32_t value, const Values&... values) {
  if (value != 0) [[unlikely]] {
    return detail::append_result(thread, ticks, api, function, value, values...);
  }
  detail::append<RecordKind::kReturn>(thread, [ticks] { return ticks; }, api, function, values...);
}

}  // namespace rota::trace
