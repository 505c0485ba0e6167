#include "runtime/client/admission.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "generated/driver_real.h"
#include "runtime/account/account.h"
#include "runtime/client/inherited_socket.h"
#include "runtime/client/waiting.h"
#include "scheduler/base/above_standard.h"
#include "scheduler/base/unix_address.h"

namespace rota::client {

using namespace std::chrono_literals;

namespace {

// `rota ci` answers within 60 s.
constexpr auto kPatience = 70s;

// This process's connection, for a forked child to close.
constinit InheritedSocket open_admission;

std::chrono::nanoseconds since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::steady_clock::now() - begin;
}

AdmissionRequest::Gpu describe(int device) {
  AdmissionRequest::Gpu gpu{};
  api::CUuuid uuid{};
  if (real::cuDeviceGetUuid_v2(&uuid, device) != api::CUDA_SUCCESS) real::cuDeviceGetUuid(&uuid, device);
  static_assert(sizeof uuid == sizeof gpu.uuid);
  std::memcpy(gpu.uuid, &uuid, sizeof uuid);
  std::size_t total = 0;
  if (real::cuDeviceTotalMem_v2(&total, device) == api::CUDA_SUCCESS) gpu.total_bytes = total;
  return gpu;
}

AdmissionRequest first_on(int device) {
  AdmissionRequest request{};
  request.what = AdmissionRequest::What::kFirst;
  int count = 0;
  if (real::cuDeviceGetCount(&count) != api::CUDA_SUCCESS) count = 0;
  count = std::min(count, static_cast<int>(AdmissionRequest::kMostGpus));
  // Handles of devices are their ordinals.
  if (device < count) {
    for (int each = 0; each < count; ++each) request.gpus[each] = describe(each);
    request.gpu_count = static_cast<std::uint32_t>(count);
    request.first = static_cast<std::uint32_t>(std::max(device, 0));
  } else {
    request.gpus[0] = describe(device);
    request.gpu_count = 1;
  }
  return request;
}

bool is_value(const char* variable, const char* text) {
  // Set to an empty value it hides all GPUs.
  return variable == nullptr ? *text == '\0' : *variable != '\0' && std::strcmp(variable, text) == 0;
}

}  // namespace

void Admission::forget_in_child() noexcept {
  open_admission.close();
}

void Admission::connect() noexcept {
  const char* const path = std::getenv("ROTA_ADMISSION");  // NOLINT(concurrency-mt-unsafe)
  if (path == nullptr || *path == '\0') return;
  Descriptor made(above_standard(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)));
  if (!made || connect_at(made.get(), path) != 0) return;
  open_admission.keep(made.get());
  connection_ = std::move(made);
}

bool Admission::send(const AdmissionRequest& request) const noexcept {
  return open_admission.is(connection_.get()) &&
         ::send(connection_.get(), &request, sizeof request, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof request);
}

// Another file may have the descriptor's number by now.
void Admission::hang_up() noexcept {
  const int descriptor = connection_.release();
  open_admission.forget(descriptor);
  if (open_admission.is(descriptor)) ::close(descriptor);
}

// Nothing: there will be no answer.
std::string Admission::ask(const AdmissionRequest& request) {
  if (!send(request)) return {};
  const bool for_gpus = request.what == AdmissionRequest::What::kGpus;
  Waiting lines(
      [for_gpus] {
        return std::string(for_gpus ? "rota ci to say which GPUs are this test's"
                                    : "GPU memory that this test is known to need, next to the other tests of rota ci");
      },
      for_gpus ? "; it sees all of them after 70 s at the latest" : "; it begins after a minute at the latest");
  const auto begin = std::chrono::steady_clock::now();
  if (!for_gpus) account::waited(std::nullopt);
  std::string answer;
  for (std::optional<std::chrono::nanoseconds> next = lines.stands(0ns); since(begin) < kPatience;) {
    pollfd one{connection_.get(), POLLIN, 0};
    const auto pause = std::min<std::chrono::nanoseconds>(next.value_or(kPatience), kPatience) - since(begin);
    const int ready = ::poll(&one, 1, static_cast<int>(std::max<std::int64_t>(pause / 1ms + 1, 1)));
    if (ready < 0 && errno != EINTR) break;
    if (ready > 0) {
      char text[AdmissionRequest::kMostText];
      const ssize_t got = ::recv(connection_.get(), text, sizeof text, MSG_DONTWAIT);
      if (got > 0) answer.assign(text, static_cast<std::size_t>(got));
      break;
    }
    next = lines.stands(since(begin));
  }
  if (!for_gpus) account::waited(since(begin));
  return answer;
}

void Admission::ask_first(int device) noexcept {
  const std::lock_guard lock(mutex_);
  if (entered_.load(std::memory_order_relaxed)) return;
  try {
    if (!connection_) connect();
    if (connection_ && ask(first_on(device)).empty()) hang_up();
  } catch (...) {  // no memory for a line
  }
  entered_.store(true, std::memory_order_release);
}

// Other threads may read the environment meanwhile: the first cuInit is early in most programs, and the C library keeps
// what is replaced.
void Admission::ask_for_gpus(bool own) noexcept {
  const std::lock_guard lock(mutex_);
  if (chosen_.load(std::memory_order_relaxed)) return;
  try {
    const char* const known = std::getenv("ROTA_CI_GPUS");                           // NOLINT(concurrency-mt-unsafe)
    if (known != nullptr && is_value(std::getenv("CUDA_VISIBLE_DEVICES"), known)) {  // NOLINT(concurrency-mt-unsafe)
      if (!connection_) connect();
      AdmissionRequest request{};
      request.what = AdmissionRequest::What::kGpus;
      if (!own) std::strncpy(request.inherited, known, sizeof request.inherited - 1);
      const std::string given = connection_ ? ask(request) : "";
      if (connection_ && given.empty()) hang_up();
      if (!given.empty()) {
        setenv("CUDA_VISIBLE_DEVICES", given.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
        setenv("ROTA_CI_GPUS", given.c_str(), 1);          // NOLINT(concurrency-mt-unsafe)
      }
    }
  } catch (...) {  // no memory: the process sees what it saw before
  }
  chosen_.store(true, std::memory_order_release);
}

void Admission::next() noexcept {
  const std::lock_guard lock(mutex_);
  if (!connection_ || !entered_.load(std::memory_order_relaxed)) return;
  try {
    AdmissionRequest request{};
    request.what = AdmissionRequest::What::kNext;
    if (ask(request).empty()) hang_up();
  } catch (...) {  // no memory for a line
  }
}

void Admission::done() noexcept {
  const std::lock_guard lock(mutex_);
  if (!connection_ || !entered_.load(std::memory_order_relaxed)) return;
  AdmissionRequest request{};
  request.what = AdmissionRequest::What::kDone;
  if (!send(request)) hang_up();
}

}  // namespace rota::client
