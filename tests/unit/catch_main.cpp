// The one translation unit that holds Catch2's main.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>

#ifdef __SANITIZE_ADDRESS__
// Of every allocation its caller only: to walk up the stack each time is a quarter of what long searches take. For the
// whole stack in a report: ASAN_OPTIONS=malloc_context_size=30.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "malloc_context_size=2";
}
#endif
