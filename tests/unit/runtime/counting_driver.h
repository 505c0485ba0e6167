// Counts the calls that reach the driver, and can make them as expensive as a real driver's. Wraps whatever real::table
// holds. A real driver has a lock for each context, and most calls take it. What a call costs a program with many
// threads is how often and how long it holds that lock.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <string>

#include "generated/driver_symbols.h"

namespace rota::test {

// One at a time, and none while another thread calls the driver. Declared after a FakeDriver, and after what the test
// sets there.
class CountingDriver {
 public:
  CountingDriver();
  ~CountingDriver();
  CountingDriver(const CountingDriver&) = delete;
  CountingDriver& operator=(const CountingDriver&) = delete;

  // From now on each call of these functions holds the one lock for this long.
  void cost(Symbol symbol, std::chrono::nanoseconds locked);

  void reset() const;
  // By function, those that were called since the last reset().
  std::map<std::string, long> calls() const;
  long total() const;
  // Of these, the ones with a cost: calls that queue for the lock.
  long locked() const;
};

}  // namespace rota::test
