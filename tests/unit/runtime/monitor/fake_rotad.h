// A rotad for unit tests: answers hello and add_gpu, keeps all other messages, and writes what the test says into the
// lease page.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/protocol/packet.h"
#include "scheduler/protocol/pages.h"
#include "scheduler/protocol/protocol.h"

namespace rota::test {

class FakeRotad {
 public:
  explicit FakeRotad(bool refuse = false) : refuse_(refuse) {
    char folder[] = "/tmp/rota-client-test.XXXXXX";
    REQUIRE(mkdtemp(folder) != nullptr);
    folder_ = folder;
    path_ = folder_ + "/sock";
    setenv("ROTA_SOCKET", path_.c_str(), 1);
    lease_ = page<protocol::LeasePage>(lease_descriptor_);
    limit(protocol::kUnlimited, protocol::kUnlimited);
    usage_ = page<protocol::UsagePage>(usage_descriptor_);
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    REQUIRE(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(listen(listener_, 4) == 0);
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeRotad() {
    die();
    unlink(path_.c_str());
    rmdir(folder_.c_str());
    unsetenv("ROTA_SOCKET");
  }

  // Hangs up and stops listening.
  void die() {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
  }

  // From now on the test answers what its program reserves, and promises room. Until then everything is granted, and
  // every grant promises all memory.
  void keep_limits() {
    keeps_limits_ = true;
    promise_room();
  }
  // The same only for room (protocol::Room).
  void promise_room() { promises_room_ = true; }

  // `promised`: on every GPU of the grant.
  void grant(std::uint32_t number, std::uint64_t gpus = 1, std::uint64_t promised = 0) {
    if (!promises_room_.load()) promised = protocol::kMaxGpuBytes;
    ++lease_->grants_change;
    for (unsigned gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
      const bool held = (gpus >> gpu & 1) != 0;
      lease_->gpus[gpu].promised_bytes = held ? promised : 0;
      lease_->gpus[gpu].grant = held ? number : 0;
    }
    ++lease_->grants_change;
    changed();
  }
  // On this GPU only; 0: no grant is in force any more.
  void grant_on(unsigned gpu, std::uint32_t number) {
    ++lease_->grants_change;
    lease_->gpus[gpu].promised_bytes = number != 0 ? protocol::kMaxGpuBytes : 0;
    lease_->gpus[gpu].grant = number;
    ++lease_->grants_change;
    changed();
  }
  void somebody_waits_on(unsigned gpu, std::uint32_t waiters) {
    lease_->gpus[gpu].waiters = waiters;
    changed();
  }
  void promise(std::uint64_t bytes, unsigned gpu = 0) {
    lease_->gpus[gpu].promised_bytes = bytes;
    changed();
  }
  // The grant of a gang that drains in this step, and that ends with grant `ends`.
  void gang(std::uint32_t number, std::uint32_t step = 0, std::uint32_t ends = 0) {
    ++lease_->grants_change;
    on_all(&protocol::GpuLease::gang, number);
    on_all(&protocol::GpuLease::gang_step, step);
    on_all(&protocol::GpuLease::gang_ends, ends);
    ++lease_->grants_change;
    changed();
  }
  // How much must be evicted before the lease is given back, and by when that must happen.
  void clear(std::uint64_t bytes, std::uint64_t by_ns = 0, unsigned gpu = 0) {
    lease_->gpus[gpu].clear_bytes = bytes;
    on_all(&protocol::GpuLease::give_back_by_ns, by_ns);
  }
  // Asks a client that does not hold the GPU to evict this much of its memory there.
  void ask_for(std::uint64_t bytes, unsigned gpu = 0) {
    lease_->gpus[gpu].clear_from_bytes = usage_->gpus[gpu].resident_bytes.load();
    lease_->gpus[gpu].clear_bytes = bytes;
    changed();
  }
  std::uint64_t promised(unsigned gpu = 0) const { return lease_->gpus[gpu].promised_bytes; }
  void somebody_waits(std::uint32_t waiters, std::uint64_t drain_at_ns = 0) {
    on_all(&protocol::GpuLease::waiters, waiters);
    on_all(&protocol::GpuLease::drain_at_ns, drain_at_ns);
    changed();
  }

  // Sent to the latest client, which is notified.
  void say(protocol::Message message) {
    message.version = protocol::kVersion;
    send(client_.load(), &message, sizeof message, MSG_NOSIGNAL);
    changed();
  }
  // On every GPU. How often the client named a GPU that it had named before; and whether the next ones are answered.
  int named_again() const { return named_again_.load(); }
  void answer_gpus(bool answers) { answers_gpus_ = answers; }

  void limit(std::uint64_t bytes, std::uint64_t left) {
    lease_->limit_bytes = bytes;
    on_all(&protocol::GpuLease::left_bytes, left);
  }

  // What rotad asks the client to watch or lets it do; and until when the client has exclusive use of its GPUs.
  void watch(std::uint32_t what) {
    on_all(&protocol::GpuLease::watch, what);
    changed();
  }
  // The GPUs on which others have memory that is pinned temporarily, and those on which they have memory that can be
  // evicted. Wakes nobody.
  void others_have(std::uint64_t fixed_for_now, std::uint64_t movable) {
    for (unsigned gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
      lease_->gpus[gpu].movable = (movable >> gpu & 1) != 0;
      lease_->gpus[gpu].fixed_for_now = (fixed_for_now >> gpu & 1) != 0;
    }
  }
  // Others are evicting memory on these GPUs. Wakes nobody.
  void others_clear(std::uint64_t gpus) {
    for (unsigned gpu = 0; gpu < protocol::kMaxGpus; ++gpu) lease_->gpus[gpu].clearing = (gpus >> gpu & 1) != 0;
  }
  // How much of the host's memory the client may use.
  void share_host(std::uint64_t most, std::uint64_t spare) {
    lease_->host_spare_most_bytes = spare;
    lease_->host_most_bytes = most;
    lease_->host_limited = 1;
    changed();
  }
  void lift_host_limit() {
    lease_->host_limited = 0;
    changed();
  }
  void alone(std::uint64_t until_ns) {
    on_all(&protocol::GpuLease::alone_until_ns, until_ns);
    changed();
  }

  // The next message that is neither hello nor add_gpu; fails the test after 20 s.
  protocol::Message next() {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, std::chrono::seconds(20), [&] { return !messages_.empty(); })) {
      FAIL("no message came");
    }
    const protocol::Message message = messages_.front();
    messages_.pop_front();
    return message;
  }
  bool quiet() {
    const std::lock_guard lock(mutex_);
    return messages_.empty();
  }
  protocol::UsagePage& usage() { return *usage_; }
  // Hangs up on every client at its first want, and takes the next one.
  void hang_up_on_wants(bool hangs_up = true) { hang_up_on_wants_.store(hangs_up); }
  int clients() const { return clients_.load(); }
  // Whether it reads what clients send. While it does not, the socket fills up.
  void read(bool reads) { reads_.store(reads); }
  // Does not serve this many of the GPUs named next.
  void refuse_gpus(int count) { refuse_gpus_.store(count); }

 private:
  template <typename Page>
  Page* page(int& descriptor) {
    descriptor = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(ftruncate(descriptor, protocol::kPageBytes) == 0);
    void* mapped = mmap(nullptr, protocol::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    REQUIRE(fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    auto* fresh = static_cast<Page*>(mapped);
    fresh->magic = protocol::kMagic;
    fresh->version = protocol::kPageVersion;
    return fresh;
  }

  template <typename Number>
  void on_all(std::atomic<Number> protocol::GpuLease::* field, Number value) {
    for (protocol::GpuLease& gpu : lease_->gpus) gpu.*field = value;
  }

  void changed() {
    lease_->event.fetch_add(1);
    syscall(SYS_futex, &lease_->event, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
  }

  void welcome(int client) {
    protocol::Message answer;
    if (refuse_) {
      answer.kind = protocol::Kind::kRefused;
      std::strcpy(answer.body.refused.text, "no room for another client");
      send(client, &answer, sizeof answer, MSG_NOSIGNAL);
      return;
    }
    answer.kind = protocol::Kind::kWelcome;
    answer.version = protocol::kVersion;
    answer.body.welcome = {.client = 1, .mode = protocol::Mode::kExclusive, .daemon_pid = 1, .quantum_ns = 1};
    const int pages[] = {lease_descriptor_, usage_descriptor_};
    protocol::write_packet(client, &answer, sizeof answer, pages, 0);
  }

  // A GPU that the same client names again keeps its index.
  std::uint32_t index_of(const Uuid& uuid) {
    const auto same = [&](const Named& each) { return each.client == clients_.load() && each.uuid == uuid; };
    const auto found = std::find_if(named_.begin(), named_.end(), same);
    if (found != named_.end()) {
      ++named_again_;
      return found->index;
    }
    named_.push_back({clients_.load(), uuid, added_});
    return added_++;
  }

  void serve() {
    int client = -1;
    while (!stop_.load()) {
      pollfd wait[2] = {{listener_, POLLIN, 0}, {client, POLLIN, 0}};
      poll(wait, client < 0 ? 1 : 2, 10);
      if (client < 0 && (wait[0].revents & POLLIN) != 0) {
        client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (client >= 0) ++clients_;
        client_.store(client);
      }
      if (client < 0) continue;
      if (!reads_.load()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      protocol::Message message;
      const ssize_t length = recv(client, &message, sizeof message, MSG_DONTWAIT);
      if (length < static_cast<ssize_t>(protocol::kHeaderBytes)) continue;
      if (message.kind == protocol::Kind::kHello) {
        welcome(client);
      } else if (message.kind == protocol::Kind::kAddGpu) {
        protocol::Message answer;
        if (refuse_gpus_.load() > 0) {
          --refuse_gpus_;
          answer.kind = protocol::Kind::kRefused;
          std::strcpy(answer.body.refused.text, "another rotad has this GPU");
        } else {
          answer.kind = protocol::Kind::kGpuAdded;
          answer.body.gpu_added = {message.body.add_gpu.uuid, index_of(message.body.add_gpu.uuid),
                                   message.body.add_gpu.number};
        }
        if (answers_gpus_.load()) send(client, &answer, sizeof answer, MSG_NOSIGNAL);
      } else if (message.kind == protocol::Kind::kAwaitRoom) {
        protocol::Message answer{.version = protocol::kVersion, .kind = protocol::Kind::kTryAgain};
        answer.body.try_again = {
            .gpu = message.body.await_room.gpu, .number = message.body.await_room.number, .answer = {}, .padding = 0};
        send(client, &answer, sizeof answer, MSG_NOSIGNAL);
        changed();
      } else if (message.kind == protocol::Kind::kReserve && !keeps_limits_.load()) {
        protocol::Message answer{.version = protocol::kVersion, .kind = protocol::Kind::kReserved};
        answer.body.reserved = {.gpu = message.body.reserve.gpu,
                                .number = message.body.reserve.number,
                                .device_bytes = protocol::kUnlimited,
                                .movable_bytes = protocol::kUnlimited,
                                .granted = 1,
                                .text = {},
                                .full = 0,
                                .fixed_bytes = protocol::kUnlimited,
                                .swapped_bytes = protocol::kUnlimited};
        send(client, &answer, sizeof answer, MSG_NOSIGNAL);
        changed();
      } else if (message.kind == protocol::Kind::kState && !keeps_limits_.load()) {
        continue;
      } else if (message.kind == protocol::Kind::kWant && hang_up_on_wants_.load()) {
        close(client);
        client = -1;
      } else {
        const std::lock_guard lock(mutex_);
        messages_.push_back(message);
        arrived_.notify_all();
      }
    }
    if (client >= 0) close(client);
    close(listener_);
    unlink(path_.c_str());
  }

  bool refuse_;
  std::string folder_;
  std::string path_;
  int lease_descriptor_ = -1;
  int usage_descriptor_ = -1;
  protocol::LeasePage* lease_ = nullptr;
  protocol::UsagePage* usage_ = nullptr;
  int listener_ = -1;
  std::uint32_t added_ = 0;
  struct Named {
    int client;
    Uuid uuid;
    std::uint32_t index;
  };
  std::vector<Named> named_;
  std::atomic<int> named_again_{0};
  std::atomic<bool> answers_gpus_{true};
  std::atomic<int> refuse_gpus_{0};
  std::atomic<bool> keeps_limits_{false};
  std::atomic<bool> promises_room_{false};
  std::atomic<bool> hang_up_on_wants_{false};
  std::atomic<bool> reads_{true};
  std::atomic<int> clients_{0};
  std::atomic<int> client_{-1};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<protocol::Message> messages_;
  std::thread thread_;
};

}  // namespace rota::test
