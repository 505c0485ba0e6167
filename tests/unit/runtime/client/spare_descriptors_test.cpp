// What a process has left for its next connection when it may open nothing more.
#include "runtime/client/spare_descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <vector>

#include "scheduler/base/descriptor.h"

using rota::Descriptor;
using rota::client::SpareDescriptors;

namespace {

// The limit on this process's descriptors, until the end of the test.
class Limit {
 public:
  explicit Limit(rlim_t most) {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    set(most);
  }
  ~Limit() { setrlimit(RLIMIT_NOFILE, &before_); }
  void set(rlim_t most) {
    const rlimit lower{most, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &lower) == 0);
  }

 private:
  rlimit before_{};
};

Descriptor another() {
  return Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

// Opens as many as there are left.
std::vector<Descriptor> all_others() {
  std::vector<Descriptor> all;
  for (Descriptor one = another(); one; one = another()) all.push_back(std::move(one));
  return all;
}

struct Spares : SpareDescriptors {
  ~Spares() { close_all(); }
};

}  // namespace

TEST_CASE("a process that has used up its descriptors has those that were kept for it") {
  const Limit limit(128);
  Spares spares;
  spares.fill(3);
  const std::vector<Descriptor> others = all_others();
  REQUIRE_FALSE(another());
  CHECK(spares.count() == 3);
  {
    spares.release(1);
    const Descriptor socket = another();
    CHECK(socket);
    CHECK_FALSE(another());
    spares.release(2);
    CHECK(another());
  }
  spares.fill(SpareDescriptors::kMost);
  CHECK(spares.count() == 3);
  CHECK_FALSE(another());
  spares.fill(1);
  CHECK(spares.count() == 1);
}

TEST_CASE("spare descriptors have high numbers and are closed in what the program executes") {
  const Limit limit(128);
  Spares spares;
  const int next = another().get();
  spares.fill(SpareDescriptors::kMost);
  CHECK(another().get() == next);
  for (int number = 124; number < 128; ++number) CHECK(fcntl(number, F_GETFD) == FD_CLOEXEC);
}

TEST_CASE("a spare descriptor that the program has closed is not closed again, and is replaced") {
  const Limit limit(128);
  Spares spares;
  spares.fill(SpareDescriptors::kMost);
  for (int number = 124; number < 128; ++number) close(number);
  const Descriptor some = another();
  const Descriptor own(fcntl(some.get(), F_DUPFD_CLOEXEC, 124));
  REQUIRE(own.get() == 124);
  CHECK(spares.count() == 0);
  spares.release(SpareDescriptors::kMost);
  CHECK(fcntl(own.get(), F_GETFD) >= 0);
  spares.fill(2);
  CHECK(spares.count() == 2);
  CHECK(fcntl(own.get(), F_GETFD) >= 0);
}

TEST_CASE("a lower limit is kept to, and a program with few descriptors keeps them all") {
  Limit limit(128);
  Spares spares;
  spares.fill(2);
  limit.set(100);
  spares.fill(2);
  CHECK(fcntl(124, F_GETFD) < 0);
  CHECK(fcntl(96, F_GETFD) >= 0);
  limit.set(SpareDescriptors::kLeastLimit - 1);
  spares.fill(2);
  CHECK(spares.count() == 0);
}
