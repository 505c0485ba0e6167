// The library that the tests edit: functions that call each other, a variable, a table of pointers, and names to be
// replaced.
#include <cstdlib>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int alpha() {
  return 1;
}
EXPORT int beta() {
  return 2;
}
// Through the table of pointers, which a relocation fills: beta's, unless it is bound within the library.
static int (*const volatile table[])() = {&alpha, &beta};
EXPORT int gamma() {
  return table[0]() * 10 + table[1]();
}
EXPORT int value;
int value = 42;
// Needs something of the C library.
EXPORT int calls() {
  return std::abs(-7);
}
EXPORT int reserved_name_long_enough_for_another_1() {
  return 101;
}
EXPORT int reserved_name_long_enough_for_another_2() {
  return 102;
}
