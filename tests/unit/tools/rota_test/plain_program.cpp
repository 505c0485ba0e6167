// Calls begin and end as its arguments say: begin NAME, end NAME, allocate MIB, free MIB, answer CODE, fork, kill,
// wait.
#include <signal.h>
#include <sys/wait.h>

#include "gpu.h"
#include "runtime/account/test_interface.h"
#include "tools/rota_test/rota_test.h"

// What the header has of the interface is the interface's.
static_assert(sizeof(rota::test::detail::Account) == sizeof(RotaTestAccount), "");
#define SAME(field) \
  static_assert(offsetof(rota::test::detail::Account, field) == offsetof(RotaTestAccount, field), #field)
SAME(used_bytes);
SAME(peak_bytes);
SAME(allocations);
SAME(live);
SAME(launches);
SAME(copies);
SAME(copied_bytes);
SAME(synchronizations);
SAME(calls);
SAME(errors);
SAME(waited_ns);
SAME(busy_ns);
static_assert(static_cast<int>(rota::test::detail::kVersion) == static_cast<int>(kRotaTestVersion), "");
static_assert(static_cast<int>(rota::test::detail::kBegins) == static_cast<int>(kRotaTestBegins), "");
static_assert(static_cast<int>(rota::test::detail::kEnds) == static_cast<int>(kRotaTestEnds), "");

int main(int count, char** words) {
  for (int at = 1; at < count; ++at) {
    const std::string word = words[at];
    if (word == "fork") {
      if (fork() != 0) {
        wait(nullptr);
        return 0;
      }
    } else if (word == "kill") {
      raise(SIGKILL);
    } else if (++at >= count) {
      return 2;
    } else if (word == "begin") {
      rota::test::begin(words[at]);
    } else if (word == "end") {
      rota::test::end(words[at], rota::test::Outcome::kError, "a message");
    } else if (word == "allocate") {
      gpu::allocate(strtoull(words[at], nullptr, 10));
    } else if (word == "free") {
      gpu::release(strtoull(words[at], nullptr, 10));
    } else if (word == "answer") {
      gpu::answer(static_cast<uint32_t>(atoi(words[at])));
    }
  }
  return 0;
}
