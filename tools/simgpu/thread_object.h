// An object of the calling thread that lives until the thread can call no more. C++'s own thread_local objects end
// earlier: what a program destroys at its threads' end may still call, and those of the main thread are gone before its
// static objects are destroyed.
#pragma once

#include <pthread.h>

namespace rota::sim {

// Made when the thread first asks. The main thread's is not destroyed when the program exits.
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
    pthread_key_create(&key, [](void* object) {
      object_ = nullptr;
      delete static_cast<Object*>(object);
    });
    return key;
  }
  static inline thread_local Object* object_ = nullptr;
};

}  // namespace rota::sim
