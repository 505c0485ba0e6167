// A program that used up its thread-specific keys before rota started.
#include <pthread.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "runtime/gate/gate.h"

using namespace rota;
using namespace std::chrono_literals;
using gate::Gate;
using Clock = std::chrono::steady_clock;

TEST_CASE("without a thread-specific key the gate works, touches nobody else's, and notices threads that have ended") {
  std::vector<pthread_key_t> keys;
  pthread_key_t key{};
  while (pthread_key_create(&key, nullptr) == 0) {
    keys.push_back(key);
    pthread_setspecific(key, &keys);
  }
  REQUIRE(!keys.empty());
  const driver::Call call{Symbol::k_cuLaunchKernel, nullptr, true, false};
  Gate gate;
  for (int i = 0; i < 100; ++i) {
    std::thread([&] {
      alignas(gate::Scope) static thread_local char place[sizeof(gate::Scope)];
      new (place) gate::Scope(call);  // and never leaves
    }).join();
  }
  {
    const gate::Scope scope(call);
  }
  for (const pthread_key_t own : keys) REQUIRE(pthread_getspecific(own) == &keys);
  gate.close();
  CHECK(gate.wait_until_empty(Clock::now() + 20s));
  gate.open();
  for (const pthread_key_t own : keys) pthread_key_delete(own);
}
