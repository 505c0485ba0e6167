// A per-thread object that outlives C++ thread_local objects: what a program destroys when its threads end may still
// call the driver, and the main thread's thread_local objects are gone before its static objects are destroyed.
// (Destructors of the program's own pthread keys may find a new object.)
#pragma once

#include <limits.h>
#include <pthread.h>

namespace rota::sim {

// Created on the thread's first use. The main thread's object is not destroyed when the program exits.
template <class Object>
class ThreadObject {
 public:
  static Object& get() {
    if (object_ == nullptr) {
      static const pthread_key_t key = make_key();
      object_ = new Object;
      pthread_setspecific(key, object_);
    }
    return *object_;
  }

 private:
  static pthread_key_t make_key() {
    pthread_key_t key = 0;
    int result = pthread_key_create(&key, [](void* object) {
      object_ = nullptr;
      delete static_cast<Object*>(object);
    });
    return result == 0 ? key : PTHREAD_KEYS_MAX;  // none is left: objects are never destroyed
  }
  static inline thread_local Object* object_ = nullptr;
};

}  // namespace rota::sim
