// A client's tasks: each GPU by itself, or several that it has coupled.
#include "scheduler/server/tasks.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>

#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

using protocol::GpuLease;
using protocol::Kind;
using protocol::LeasePage;
using server::GpuSet;
using server::Tasks;

constexpr std::uint64_t kGpuBytes = std::uint64_t{1} << 30;

// In exclusive mode, or with memory that does not fit together with anybody else's.
std::vector<std::string> options_of(bool exclusive) {
  return {"--mode", exclusive ? "exclusive" : "automatic", "--quantum", "50ms"};
}

// A client of two GPUs, whose indices are 0 and 1 where it comes first. It reports nothing that makes it run
// concurrently with others.
struct TwoGpus : Client {
  explicit TwoGpus(const std::string& socket, const std::string& name = "two") : Client(socket, name, false) {
    for (std::uint32_t gpu : {0, 1}) {
      std::uint32_t index = 99;
      REQUIRE_FALSE(add_gpu(static_cast<std::uint8_t>(gpu + 1), &index, kGpuBytes));
      REQUIRE(index == gpu);
      use(gpu, kGpuBytes * 3 / 4);
    }
  }
  std::uint32_t grant(std::uint32_t gpu) const { return lease->gpus[gpu].grant; }
  bool wait_for_grant_on(std::uint32_t gpu) const {
    return wait_for([&](const LeasePage& page) { return page.gpus[gpu].grant != 0; });
  }
  bool wait_for_end_on(std::uint32_t gpu) const {
    return wait_for([&](const LeasePage& page) { return page.gpus[gpu].grant == 0; });
  }
  bool wait_for_waiters_on(std::uint32_t gpu) const {
    return wait_for([&](const LeasePage& page) { return page.gpus[gpu].waiters != 0; });
  }
  // Waits until rotad has handled everything that this client has sent.
  void catch_up() { REQUIRE_FALSE(add_gpu(1)); }
  void give_back_on(std::uint32_t gpu) {
    give_back(grant(gpu), gpu);
    REQUIRE(wait_for_end_on(gpu));
  }
};

const protocol::TaskRow* task_of(const protocol::Snapshot& all, const Client& client, std::uint32_t gpu) {
  const protocol::TaskRow* const row = all.task(client.number, gpu);
  REQUIRE(row != nullptr);
  return row;
}

TEST_CASE("a client holds one of its GPUs while another client holds the other") {
  const bool exclusive = GENERATE(false, true);
  Daemon daemon(options_of(exclusive));
  TwoGpus two(daemon.socket());
  TwoGpus other(daemon.socket(), "other");
  two.want(1);
  REQUIRE(two.wait_for_grant_on(0));
  other.want(2);
  REQUIRE(other.wait_for_grant_on(1));
  other.want(1);
  REQUIRE(two.wait_for_waiters_on(0));
  two.want(2);
  REQUIRE(other.wait_for_waiters_on(1));
  CHECK(two.grant(0) != 0);
  CHECK(two.grant(1) == 0);
  // Each waits for what the other holds, and neither for the other's sake on what it holds itself.
  CHECK(two.lease->gpus[1].waiters == 0);
  CHECK(two.lease->gpus[1].drain_at_ns == 0);
  REQUIRE(two.wait_for([](const LeasePage& page) { return page.gpus[1].next_turn_ns != 0; }));
  CHECK(two.lease->gpus[0].next_turn_ns == 0);
  const protocol::Snapshot all = status(daemon.socket());
  CHECK(task_of(all, two, 0)->holds != 0);
  CHECK(task_of(all, two, 0)->waits == 0);
  CHECK(task_of(all, two, 1)->holds == 0);
  CHECK(task_of(all, two, 1)->waits != 0);
  CHECK(task_of(all, two, 1)->gpus == 2);
  two.give_back_on(0);
  REQUIRE(other.wait_for_grant_on(0));
  CHECK(other.grant(1) != 0);
  other.give_back_on(1);
  REQUIRE(two.wait_for_grant_on(1));
  CHECK(other.grant(0) != 0);
}

TEST_CASE("a lease goes back on the GPU that is named, whatever number the others have") {
  Daemon daemon(options_of(true));
  TwoGpus two(daemon.socket());
  two.want(1);
  two.want(2);
  REQUIRE(two.wait_for_grant_on(0));
  REQUIRE(two.wait_for_grant_on(1));
  REQUIRE(two.grant(0) == two.grant(1));
  two.give_back_on(1);
  CHECK(two.grant(0) != 0);
  two.give_back(two.grant(0), 64);  // a GPU that nobody has
  two.give_back(two.grant(0), 1);
  two.catch_up();
  CHECK(two.grant(0) != 0);
}

TEST_CASE("GPUs that a client couples are granted and taken back together") {
  const bool exclusive = GENERATE(false, true);
  Daemon daemon(options_of(exclusive));
  TwoGpus two(daemon.socket());
  TwoGpus other(daemon.socket(), "other");
  two.want(1);
  two.want(2);
  REQUIRE(two.wait_for_grant_on(0));
  REQUIRE(two.wait_for_grant_on(1));
  const std::uint32_t before = two.grant(1);
  two.give_back_on(0);
  two.want(3, false, 3);  // one of them is still held
  two.catch_up();
  CHECK(two.grant(0) == 0);
  CHECK(task_of(status(daemon.socket()), two, 0)->gpus == 1);
  two.give_back_on(1);
  two.want(3, false, 3);
  other.want(1);
  REQUIRE(two.wait_for_waiters_on(0));
  CHECK(two.grant(0) != 0);
  CHECK(two.grant(0) == two.grant(1));
  CHECK(two.grant(1) != before);  // never the same number twice in a row
  CHECK(two.lease->gpus[1].waiters == two.lease->gpus[0].waiters);
  CHECK(two.lease->gpus[1].drain_at_ns == two.lease->gpus[0].drain_at_ns);
  CHECK(other.grant(0) == 0);
  CHECK(task_of(status(daemon.socket()), two, 1)->gpus == 3);
  // Either names both.
  two.give_back(two.grant(1), 1);
  REQUIRE(other.wait_for_grant_on(0));
  CHECK(two.grant(0) == 0);
  CHECK(two.grant(1) == 0);
}

TEST_CASE(
    "GPUs that are no longer coupled take turns by themselves again, and no grant has its number twice in a row") {
  Daemon daemon(options_of(true));
  TwoGpus two(daemon.socket());
  TwoGpus other(daemon.socket(), "other");
  std::uint32_t last = 0;
  for (int turn = 0; turn < 20; ++turn) {
    two.want(3, false, 3);
    REQUIRE(two.wait_for_grant_on(0));
    REQUIRE(two.grant(0) == two.grant(1));
    CHECK(two.grant(0) != last);
    last = two.grant(0);
    two.want(1, false, 1);  // ignored, while it holds both
    two.catch_up();
    CHECK(task_of(status(daemon.socket()), two, 0)->gpus == 3);
    two.give_back_on(0);
    two.want(1, false, 1);
    REQUIRE(two.wait_for_grant_on(0));
    CHECK(two.grant(0) != last);
    CHECK(two.grant(1) == 0);
    other.want(2);
    REQUIRE(other.wait_for_grant_on(1));
    other.give_back_on(1);
    last = two.grant(0);
    two.give_back_on(0);
  }
}

TEST_CASE("a want that is withdrawn is that of the tasks it names, or of all") {
  Daemon daemon(options_of(true));
  TwoGpus other(daemon.socket(), "other");
  TwoGpus two(daemon.socket());
  other.want(1);
  other.want(2);
  REQUIRE(other.wait_for_grant_on(0));
  REQUIRE(other.wait_for_grant_on(1));
  const auto wanted = [&] {
    const protocol::Snapshot all = status(daemon.socket());
    return (task_of(all, two, 0)->waits != 0 ? 1 : 0) | (task_of(all, two, 1)->waits != 0 ? 2 : 0);
  };
  two.want(1);
  two.want(2);
  two.catch_up();
  CHECK(wanted() == 3);
  two.want(0, false, 1);
  two.catch_up();
  CHECK(wanted() == 2);
  two.want(0, false, std::uint64_t{1} << 63);  // of a GPU that it does not have
  two.catch_up();
  CHECK(wanted() == 2);
  two.want(1);
  two.want(0);
  two.catch_up();
  CHECK(wanted() == 0);
  // Those of tasks that end when their GPUs are coupled otherwise end with them.
  two.want(3, false, 3);
  two.want(2, false, 2);
  two.catch_up();
  CHECK(wanted() == 2);
  other.give_back_on(0);
  two.catch_up();
  CHECK(two.grant(0) == 0);
}

TEST_CASE("a process that dies gives up all of its tasks") {
  Daemon daemon(options_of(true));
  int pipes[2];
  REQUIRE(pipe(pipes) == 0);
  const pid_t child = fork();
  if (child == 0) {
    Client holder(daemon.socket(), "holder");
    for (std::uint8_t number : {1, 2, 3}) holder.add_gpu(number);
    holder.want(1);
    holder.want(6, false, 6);
    const bool all =
        holder.wait_for([](const LeasePage& page) { return page.gpus[0].grant != 0 && page.gpus[2].grant != 0; });
    if (!all || write(pipes[1], "x", 1) != 1) _exit(1);
    while (true) pause();
  }
  close(pipes[1]);
  char byte = 0;
  REQUIRE(read(pipes[0], &byte, 1) == 1);
  close(pipes[0]);
  Client waiter(daemon.socket());
  for (std::uint8_t number : {1, 2, 3}) REQUIRE_FALSE(waiter.add_gpu(number));
  waiter.want(7, false, 7);
  REQUIRE(eventually([&] { return status(daemon.socket()).gpus.at(2).waiters == 1; }));
  CHECK(waiter.lease->gpus[0].grant == 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(waiter.wait_for([](const LeasePage& page) { return page.gpus[0].grant != 0 && page.gpus[2].grant != 0; }));
}

TEST_CASE("what a client has there stays in the accounting when its GPUs are coupled, also for others in between") {
  Daemon daemon({"--mode", "automatic", "--quantum", "50ms"});
  TwoGpus two(daemon.socket());
  TwoGpus other(daemon.socket(), "other");
  for (const std::uint32_t gpu : {0U, 1U}) two.usage->gpus[gpu].fixed_bytes = kGpuBytes / 2;
  two.want(3, false, 3);
  REQUIRE(two.wait_for_grant_on(0));
  const auto used = [&] { return status(daemon.socket()).gpus.at(1).used_bytes; };
  other.want(3, false, 3);
  REQUIRE(two.wait_for_waiters_on(0));
  const std::uint64_t all = used();
  const std::uint64_t contexts = task_of(status(daemon.socket()), two, 1)->context_bytes;
  CHECK(all == kGpuBytes / 2 * 3);
  other.want(0);
  two.give_back_on(0);
  for (const std::uint64_t task : {1, 3, 2, 3}) {
    two.want(task, false, task);
    REQUIRE(two.wait_for([&](const LeasePage& page) { return page.gpus[task == 1 ? 0 : 1].grant != 0; }));
    CHECK(used() == all);
    const protocol::Snapshot now = status(daemon.socket());
    CHECK(task_of(now, two, 0)->fixed_bytes == kGpuBytes / 2);
    CHECK(task_of(now, two, 1)->context_bytes == contexts);
    CHECK(task_of(now, two, 1)->promised_bytes == (task == 1 ? 0 : kGpuBytes * 3 / 4));
    two.give_back_on(task == 1 ? 0 : 1);
  }
}

TEST_CASE("no client is admitted next to memory that cannot be evicted while its owner couples its GPUs") {
  Daemon daemon({"--mode", "automatic", "--quantum", "20s"});
  TwoGpus two(daemon.socket());
  for (const std::uint32_t gpu : {0U, 1U}) two.usage->gpus[gpu].fixed_bytes = kGpuBytes / 2;
  for (const std::uint32_t gpu : {0U, 1U}) two.use(gpu, kGpuBytes / 2);
  two.want(1);
  REQUIRE(two.wait_for_grant_on(0));
  two.give_back_on(0);
  Client holder(daemon.socket(), "holder", false);
  Client waiter(daemon.socket(), "waiter", false);
  for (Client* client : {&holder, &waiter}) {
    REQUIRE_FALSE(client->add_gpu(1, nullptr, kGpuBytes));
    client->use(0, kGpuBytes / 16 * 5);
    client->want(1);
    REQUIRE_FALSE(client->add_gpu(1, nullptr, kGpuBytes));  // answered, so the want has been read
  }
  REQUIRE(holder.wait_for_grant());
  REQUIRE(holder.wait_for([](const LeasePage& page) { return page.gpus[0].waiters != 0; }));
  for (const std::uint64_t task : {3, 1, 3, 2}) {
    two.want(task, false, task);
    two.want(0);
    two.catch_up();
    CHECK(waiter.lease->gpus[0].grant == 0);
    CHECK(holder.lease->gpus[0].grant != 0);
  }
  two.want(2);
  REQUIRE(two.wait_for_grant_on(1));
  CHECK(waiter.lease->gpus[0].grant == 0);
}

TEST_CASE("masks of GPUs that a client does not have, and coupling again and again, hurt nobody else") {
  const TemporaryFolder folder;
  const std::string log = folder / "events";
  std::string joins;
  {
    Daemon daemon({"--mode", "exclusive", "--event-log", log});
    TwoGpus two(daemon.socket());
    for (const std::uint64_t task : {~std::uint64_t{0}, ~std::uint64_t{0} << 1, std::uint64_t{1} << 63}) {
      for (const std::uint64_t gpus : {std::uint64_t{0}, std::uint64_t{2}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
        two.want(gpus, false, task);
        two.give_back(1, 0xffffffff);
        two.ask(0xffffffff, 1);
        two.catch_up();
        for (const std::uint32_t gpu : {0U, 1U}) {
          if (two.grant(gpu) != 0) two.give_back_on(gpu);
        }
      }
    }
    two.want(0);
    for (int turn = 0; turn < 200; ++turn) {
      const std::uint64_t task = turn % 2 == 0 ? 3 : 1;
      two.want(task, false, task);
      REQUIRE(two.wait_for_grant_on(0));
      two.give_back_on(0);
    }
    two.want(2);
    REQUIRE(two.wait_for_grant_on(1));
    Client other(daemon.socket());
    REQUIRE_FALSE(other.add_gpu(1));
    other.want(1);
    CHECK(other.wait_for_grant());
    CHECK(other.number < 30);  // that client has not used up all numbers
    daemon.end(SIGTERM);
  }
  const Outcome again = run({.arguments = {ROTAD, "--replay", log}, .environment = {}});
  INFO(again.errors);
  CHECK(again.code() == 0);
  const std::string text = read_file(log);
  CHECK(text.find(" grants ") != std::string::npos);
  CHECK(text.find(" pid " + std::to_string(getpid()) + "\n") != std::string::npos);
}

// ---- which GPUs are which task, without a rotad

struct Book {
  Tasks tasks;
  scheduler::ClientId last = 100;
  Tasks::Change couple(scheduler::GpuMask gpus) {
    return tasks.couple(gpus, [this] { return ++last; });
  }
  std::vector<std::uint64_t> masks() const {
    std::vector<std::uint64_t> all;
    for (const server::Task& task : tasks) all.push_back(task.gpus);
    return all;
  }
};

TEST_CASE("a task that only grows keeps its number, unless another had more grants") {
  Book book;
  for (scheduler::GpuIndex gpu = 0; gpu < 4; ++gpu) book.tasks.add(gpu + 1, gpu).last_grant = gpu == 2 ? 9 : gpu;
  const Tasks::Change change = book.couple(6);
  CHECK(change.grown == 3);
  CHECK(change.came == 2);
  REQUIRE(change.ended.size() == 1);
  CHECK(change.ended[0].id == 2);
  CHECK(change.begun.empty());
  CHECK(book.tasks.id_on(1) == 3);
  CHECK(book.masks() == std::vector<std::uint64_t>{1, 8, 6});
  // It has GPUs that are not meant: so it ends.
  const Tasks::Change split = book.couple(3);
  CHECK(split.grown == 0);
  CHECK(split.ended.size() == 2);
  REQUIRE(split.begun.size() == 2);
  CHECK(split.begun[0].gpus == 3);
  CHECK(split.begun[0].last_grant == 9);
  CHECK(split.begun[1].gpus == 4);
  CHECK(split.begun[1].last_grant == 9);
  CHECK(book.masks() == std::vector<std::uint64_t>{8, 3, 4});
  CHECK(book.tasks.gpus().mask() == 15);
  CHECK(book.tasks.of(3)->id == split.begun[0].id);
  CHECK(book.tasks.of(7) == nullptr);
  CHECK(book.tasks.id_on(77) == 0);
}

TEST_CASE("each GPU stays in exactly one task, and numbers are used again but never twice at a time") {
  Book book;
  for (scheduler::GpuIndex gpu = 0; gpu < protocol::kMaxGpus; ++gpu) book.tasks.add(gpu + 1, gpu);
  std::uint64_t random = 1;
  for (int turn = 0; turn < 2000; ++turn) {
    random = random * 6364136223846793005 + 1442695040888963407;
    const std::uint64_t mask = turn % 7 == 0 ? ~std::uint64_t{0} : random ^ random >> 31;
    if (mask == 0 || book.tasks.of(mask) != nullptr) continue;
    const Tasks::Change change = book.couple(mask);
    std::uint64_t seen = 0;
    std::vector<scheduler::ClientId> numbers;
    for (const server::Task& task : book.tasks) {
      CHECK((seen & task.gpus) == 0);
      CHECK(task.gpus != 0);
      seen |= task.gpus;
      numbers.push_back(task.id);
    }
    // While those that have ended still count in the core.
    for (const server::Task& task : change.ended) numbers.push_back(task.id);
    CHECK(seen == ~std::uint64_t{0});
    std::ranges::sort(numbers);
    CHECK(std::ranges::adjacent_find(numbers) == numbers.end());
    REQUIRE(book.tasks.of(mask) != nullptr);
  }
  CHECK(book.last <= 100 + protocol::kMaxGpus + 1);
}

}  // namespace
}  // namespace rota::test
