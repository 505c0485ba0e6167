// A value, or why there is none. An error here concerns one client, one file or one call, never the whole process, so
// it is returned to the code that can report it to the user. (C++20 has no std::expected yet.)
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace rota {

struct Error {
  std::string text;  // one line: what was being done to what, why it failed, what helps
};

template <typename T>
class Result {
 public:
  Result(T value) : content_(std::move(value)) {}      // NOLINT(google-explicit-constructor): a value is a result
  Result(Error error) : content_(std::move(error)) {}  // NOLINT(google-explicit-constructor): so is an error

  explicit operator bool() const { return std::holds_alternative<T>(content_); }
  // Only if there is a value.
  T& operator*() { return std::get<T>(content_); }
  const T& operator*() const { return std::get<T>(content_); }
  T* operator->() { return &std::get<T>(content_); }
  const T* operator->() const { return &std::get<T>(content_); }
  // Only if there is none. It converts to a result of any other type: `return inner.error();`.
  const Error& error() const { return std::get<Error>(content_); }

 private:
  std::variant<T, Error> content_;
};

}  // namespace rota
