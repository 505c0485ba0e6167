#include "tools/rota/ci/broker.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <vector>

#include "runtime/client/admission.h"
#include "scheduler/base/unix_address.h"
#include "scheduler/base/uuid.h"
#include "tools/rota/ci/thread.h"

namespace rota::ci {

using namespace std::chrono_literals;

namespace {

// While a test waits, what others have and what is free is polled this often.
constexpr Time kPollInterval = 50ms;

Time now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

}  // namespace

Result<std::unique_ptr<Broker>> Broker::start(Knowledge knowledge, Spread spread) {
  std::unique_ptr<Broker> made(new Broker);
  made->knowledge_ = std::move(knowledge);
  made->spread_ = std::move(spread);
  std::vector<std::string> gpus;
  for (const VisibleGpu& gpu : made->spread_.gpus) gpus.push_back(gpu.uuid);
  if (made->spread_.each != 0) made->admissions_.spread(std::move(gpus), made->spread_.each);
  const auto failed = [&](const char* what) {
    return Error{fmt::format("cannot {} {}: {}", what, made->socket_, std::strerror(errno))};
  };
  if (!made->folder_.problem().empty()) return Error{made->folder_.problem()};
  made->socket_ = made->folder_.path() + "/admission";
  made->listening_ = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  made->stop_ = Descriptor(eventfd(0, EFD_CLOEXEC));
  if (!made->listening_ || !made->stop_) return failed("make the socket");
  errno = bind_at(made->listening_.get(), made->socket_.c_str());
  if (errno != 0 || ::listen(made->listening_.get(), SOMAXCONN) != 0) return failed("listen at");
  auto started = without_signals([broker = made.get()] { broker->run(); });
  if (!started) return started.error();
  made->thread_ = std::move(*started);
  return made;
}

Broker::~Broker() {
  if (thread_.joinable()) finish();
}

std::vector<std::string> Broker::finish() {
  if (thread_.joinable()) {
    const std::uint64_t one = 1;
    // Cannot fail: the counter is far from full.
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
    thread_.join();
  }
  connections_.clear();
  std::vector<std::string> overcommitted;
  for (const auto& [tree, waited] : admissions_.waited()) {
    if (!waited.gave_up) continue;
    const auto name = names_.find(tree);
    overcommitted.push_back(name != names_.end() ? name->second : tree);
  }
  return overcommitted;
}

void Broker::accept_one() {
  Descriptor connection(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  out_of_descriptors_ = !connection && (errno == EMFILE || errno == ENFILE);
  if (!connection) return;
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return;
  const int who = connection.get();
  connections_.emplace(who, Connection{std::move(connection), peer.pid, {}});
}

void Broker::hear(int who) {
  const auto found = connections_.find(who);
  if (found == connections_.end()) return;
  client::AdmissionRequest request{};
  const ssize_t got = ::recv(who, &request, sizeof request, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  using What = client::AdmissionRequest::What;
  const bool known = request.what >= What::kFirst && request.what <= What::kGpus;
  if (got != static_cast<ssize_t>(sizeof request) || !known ||
      request.gpu_count > client::AdmissionRequest::kMostGpus) {
    admissions_.ended(who);
    connections_.erase(found);
    return;
  }
  if (request.what == What::kDone) return admissions_.done(who);
  Connection& connection = found->second;
  if (request.what == What::kFirst) {
    connection.gpus.clear();
    for (std::uint32_t index = 0; index < request.gpu_count; ++index) {
      const client::AdmissionRequest::Gpu& gpu = request.gpus[index];
      Uuid uuid{};
      static_assert(sizeof uuid.bytes == sizeof gpu.uuid);
      std::memcpy(uuid.bytes, gpu.uuid, sizeof uuid.bytes);
      connection.gpus.push_back(uuid_text(uuid));
      if (gpu.total_bytes != 0) knowledge_.gpu_of(connection.gpus.back(), gpu.total_bytes);
    }
    connection.first = request.first;
  }
  const Knowledge::Test test = knowledge_.test_of(connection.process);
  if (!test.name.empty()) names_[test.tree] = test.name;
  if (request.what == What::kGpus) {
    request.inherited[sizeof request.inherited - 1] = '\0';
    return give_gpus(who, test, request.inherited);
  }
  std::optional<Load> needs;
  if (!connection.gpus.empty()) needs = on_gpus(test.needs.value_or(Needs{0}), connection.gpus, connection.first);
  admissions_.ask(who, test.tree, std::move(needs), now(), test.added);
}

void Broker::refresh() {
  room_ = knowledge_.room();
  for (auto& [tree, used] : knowledge_.used()) admissions_.uses(tree, used.bytes, used.staying);
}

void Broker::give_gpus(int who, const Knowledge::Test& test, const std::string& inherited) {
  const auto by_name = [&](const std::string& name) {
    return std::ranges::find(spread_.gpus, name, &VisibleGpu::name);
  };
  std::vector<std::string> taken_over;
  std::istringstream names(inherited);
  for (std::string name; std::getline(names, name, ',');) {
    if (const auto gpu = by_name(name); gpu != spread_.gpus.end()) taken_over.push_back(gpu->uuid);
  }
  // A process that is no test may work for the test that started it, and uses that test's GPUs. A test that was started
  // by a runner with GPUs of its own gets other ones.
  if (test.name.empty() && taken_over.size() == spread_.each) {
    admissions_.take_over(who, test.tree, std::move(taken_over));
  } else {
    refresh();
  }
  std::string answer;
  for (const std::string& uuid : admissions_.give(who, test.tree, test.needs.value_or(Needs{}), room_)) {
    const auto gpu = std::ranges::find(spread_.gpus, uuid, &VisibleGpu::uuid);
    if (gpu != spread_.gpus.end()) answer += (answer.empty() ? "" : ",") + gpu->name;
  }
  // The answer is never empty. If sending fails, the end of the connection is noticed next.
  [[maybe_unused]] const ssize_t sent = ::send(who, answer.data(), answer.size(), MSG_NOSIGNAL);
}

void Broker::decide() {
  if (admissions_.waiting() != 0) refresh();
  for (const int who : admissions_.step(room_, now())) {
    const char answer = client::kAdmissionGranted;
    // If that fails, the end of the connection is noticed next.
    [[maybe_unused]] const ssize_t sent = ::send(who, &answer, 1, MSG_NOSIGNAL);
  }
}

void Broker::run() {
  for (;;) {
    // While no descriptor is free, a process that connects waits until another connection has ended.
    std::vector<pollfd> all = {{stop_.get(), POLLIN, 0}, {out_of_descriptors_ ? -1 : listening_.get(), POLLIN, 0}};
    for (const auto& [who, connection] : connections_) all.push_back({who, POLLIN, 0});
    const int pause = admissions_.waiting() != 0 || out_of_descriptors_ ? static_cast<int>(kPollInterval / 1ms) : -1;
    if (::poll(all.data(), all.size(), pause) < 0 && errno != EINTR) return;
    if (all[0].revents != 0) return;
    if (all[1].revents != 0 || out_of_descriptors_) accept_one();
    for (std::size_t index = 2; index < all.size(); ++index) {
      if (all[index].revents != 0) hear(all[index].fd);
    }
    decide();
  }
}

}  // namespace rota::ci
