// A value, or the reason why there is none. Errors of rota-codegen are values, so that `check` can report all of them
// and tests can look at the text; the text names the file, symbol or option concerned.
// Separate from base/result.h, since the generator depends on no other part of rota.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace rota::codegen {

struct Error {
  std::string text;
};

template <class T>
class Result {
 public:
  Result(T value) : state_(std::move(value)) {}  // NOLINT(google-explicit-constructor): `return value;` is the point
  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const { return state_.index() == 0; }
  // Only when the result holds a value.
  T& operator*() { return std::get<0>(state_); }
  const T& operator*() const { return std::get<0>(state_); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  // Only when it holds an error.
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

}  // namespace rota::codegen
