// The environment is read once, by a constructor, because later a program may change it at any moment from any thread,
// and getenv would race with that. A process of a session without a report pays one look at ROTA_REPORT.
#include "runtime/preload/cuda/running_test.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/preload/cuda/clean_environment.h"

namespace rota::thin {
namespace {

char kept[kRunningTestBytes];

// Appends as much as fits.
class Text {
 public:
  void add(const char* text, size_t bytes) noexcept {
    const size_t room = sizeof kept - 1 - used_;
    if (bytes > room) bytes = room;
    memcpy(kept + used_, text, bytes);
    used_ += bytes;
  }
  void add(const char* text) noexcept { add(text, strlen(text)); }
  // " WORD VALUE", if the variable is set.
  void add_variable(const char* word, const char* name) noexcept {
    const char* const value = getenv(name);
    if (value == nullptr || *value == '\0') return;
    add(word);
    add(value);
  }
  bool empty() const noexcept { return used_ == 0; }

 private:
  size_t used_ = 0;
};

// PYTEST_CURRENT_TEST is the test and, in brackets, its phase.
size_t without_phase(const char* test) noexcept {
  const size_t length = strlen(test);
  if (length == 0 || test[length - 1] != ')') return length;
  for (size_t at = length; at-- > 1;) {
    if (test[at] == '(' && test[at - 1] == ' ') return at - 1;
  }
  return length;
}

__attribute__((constructor)) void keep_running_test() noexcept {
  restore_environment();
  const char* const report = secure_getenv("ROTA_REPORT");
  if (report == nullptr || *report == '\0') return;
  Text text;
  const char* const target = getenv("TEST_TARGET");
  if (target != nullptr && *target != '\0') {
    text.add("bazel ");
    text.add(target);
    text.add_variable(" shard ", "TEST_SHARD_INDEX");
    text.add_variable(" of ", "TEST_TOTAL_SHARDS");
    text.add_variable(" attempt ", "TEST_RUN_NUMBER");
  }
  const char* const test = getenv("PYTEST_CURRENT_TEST");
  if (test != nullptr && *test != '\0') {
    text.add(text.empty() ? "pytest " : "\npytest ");
    text.add(test, without_phase(test));
  }
}

}  // namespace

const char* running_test() noexcept {
  return kept;
}

}  // namespace rota::thin
