/* Stands for librota-core.so: an account whose numbers the tests change. What is printed nowhere can be asked. */
#include <string.h>
#include <time.h>

#include "runtime/account/test_interface.h"

static struct RotaTestAccount numbers;
static char last_name[1024];
static uint32_t answer;
static uint32_t wait_ms;  // for each test that begins

void stand_in_allocate(uint64_t bytes) {
  numbers.used_bytes += bytes;
  if (numbers.used_bytes > numbers.peak_bytes) numbers.peak_bytes = numbers.used_bytes;
  ++numbers.allocations;
  ++numbers.live;
}
void stand_in_free(uint64_t bytes) {
  numbers.used_bytes -= bytes;
  --numbers.live;
}
void stand_in_launch(uint64_t busy_ns, uint64_t waited_ns) {
  ++numbers.launches;
  numbers.busy_ns += busy_ns;
  numbers.waited_ns += waited_ns;
}
void stand_in_answer(uint32_t code) {
  answer = code;
}
void stand_in_wait(uint32_t milliseconds) {
  wait_ms = milliseconds;
}
const char* stand_in_last_name(void) {
  return last_name;
}

int rota_core_test(uint32_t version, uint32_t what, const char* name, struct RotaTestAccount* account) {
  if (version != kRotaTestVersion) return 2;
  if (answer != 0) return (int)answer;
  if (what == kRotaTestBegins) {
    numbers.peak_bytes = numbers.used_bytes;
    const struct timespec wait = {wait_ms / 1000, (long)(wait_ms % 1000) * 1000000};
    nanosleep(&wait, NULL);
  }
  strncpy(last_name, name, sizeof last_name - 1);
  *account = numbers;
  return 0;
}
