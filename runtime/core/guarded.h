// A value that several threads use, each under its lock: `guarded->change()` holds it for that expression.
#pragma once

#include <mutex>

namespace rota {

template <typename T>
class Guarded {
 public:
  class Access {
   public:
    Access(std::recursive_mutex& mutex, T& value) : lock_(mutex), value_(value) {}
    T* operator->() const { return &value_; }

   private:
    std::unique_lock<std::recursive_mutex> lock_;
    T& value_;
  };
  Access operator->() const { return Access(mutex_, value_); }

 private:
  mutable std::recursive_mutex mutex_;  // an expression may use the value twice
  mutable T value_;
};

}  // namespace rota
