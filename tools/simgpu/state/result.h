// A value, or the reason why there is none. Errors are values here: a driver must never throw into its caller.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace rota::sim {

struct Failure {
  std::string reason;
};

template <class T>
class Result {
 public:
  Result(T value) : content_(std::move(value)) {}
  Result(Failure failure) : content_(std::move(failure)) {}
  explicit operator bool() const { return content_.index() == 0; }
  T& value() { return std::get<0>(content_); }
  const std::string& reason() const { return std::get<1>(content_).reason; }

 private:
  std::variant<T, Failure> content_;
};

}  // namespace rota::sim
