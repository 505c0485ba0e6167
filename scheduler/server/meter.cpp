#include "scheduler/server/meter.h"
#include "scheduler/server/left_behind.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

namespace rota::server {

using namespace std::chrono_literals;

namespace {

constexpr auto kLastAnswer = 2s;
constexpr auto kTellAgain = 100ms;

Meter::Answer try_to_read(const Meter::Read& read, const std::vector<Uuid>& gpus) {
  try {
    return read(gpus);
  } catch (const std::exception& problem) {  // no memory
    return {{}, problem.what()};
  }
}

bool told(const Meter::Answered& answered, const Meter::Answer& answer) {
  try {
    answered(answer);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

struct Meter::Shared {
  Read read;
  Answered answered;
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<std::vector<Uuid>> question;
  bool runs = false;
  bool closing = false;
  bool stopping = false;
};

Meter::Meter(Read read, Answered answered) : shared_(std::make_shared<Shared>()) {
  shared_->read = std::move(read);
  shared_->answered = std::move(answered);
}

Meter::~Meter() {
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_for(lock, kLastAnswer, [this] { return !shared_->runs; });
  lock.unlock();
  join_or_leave_behind(thread_, ended);
}

bool Meter::ask(std::vector<Uuid> gpus) {
  const std::lock_guard lock(shared_->mutex);
  shared_->question = std::move(gpus);
  if (shared_->runs) {
    shared_->changed.notify_all();
    return true;
  }
  // Signals are the server's.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([shared = shared_] { run(shared); });
    shared_->runs = true;
  } catch (const std::system_error&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return shared_->runs;
}

bool Meter::close(std::chrono::milliseconds patience) {
  std::unique_lock lock(shared_->mutex);
  shared_->question.reset();
  if (!shared_->runs) return true;
  shared_->closing = true;
  shared_->changed.notify_all();
  return shared_->changed.wait_for(lock, patience, [this] { return !shared_->closing || !shared_->runs; });
}

void Meter::run(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->changed.wait(lock, [&] { return shared->stopping || shared->closing || shared->question; });
    if (shared->stopping) break;
    if (shared->closing) {
      lock.unlock();
      shared->read({});
      lock.lock();
      shared->closing = false;
      shared->changed.notify_all();
      continue;
    }
    const std::vector<Uuid> gpus = *std::exchange(shared->question, std::nullopt);
    lock.unlock();
    const Answer answer = try_to_read(shared->read, gpus);
    lock.lock();
    // The server waits for an answer before it asks again.
    while (!shared->stopping && !told(shared->answered, answer)) shared->changed.wait_for(lock, kTellAgain);
  }
  lock.unlock();
  shared->read({});
  lock.lock();
  shared->runs = false;
  shared->changed.notify_all();
}

Meter::Read Meter::by_nvml() {
  return [nvml = std::shared_ptr<Nvml>()](const std::vector<Uuid>& gpus) mutable -> Answer {
    if (gpus.empty()) {
      nvml.reset();
      return {};
    }
    if (nvml == nullptr) {
      auto opened = Nvml::open();
      if (!opened) return {{}, opened.error().text};
      nvml = std::move(*opened);
    }
    Answer answer;
    for (const Uuid& gpu : gpus) {
      if (auto reading = nvml->read(gpu)) answer.gpus.push_back(std::move(*reading));
    }
    return answer;
  };
}

Meter::Read Meter::gpus_by_nvml() {
  return [](const std::vector<Uuid>& asked) -> Answer {
    if (asked.empty()) return {};
    const auto opened = Nvml::open();
    if (!opened) return {{}, opened.error().text};
    Answer answer;
    for (const Uuid& uuid : (*opened)->gpus()) answer.gpus.push_back({.uuid = uuid, .processes = {}, .number = {}});
    return answer;
  };
}

}  // namespace rota::server
