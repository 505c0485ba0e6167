#include "runtime/memory/swap/exports.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/core/own_thread.h"
#include "runtime/driver/capture_mode.h"
#include "scheduler/protocol/packet.h"

namespace rota::memory {

namespace {

// Processes that have memory of this one open at the same time, each of which takes a descriptor. A judgment.
constexpr std::size_t kMostOpeners = 256;

// So few bytes come at once.
bool fill_randomly(std::uint64_t (&words)[2]) {
  ssize_t came = 0;
  do {
    came = getrandom(words, sizeof words, 0);
  } while (came < 0 && errno == EINTR);
  return came == static_cast<ssize_t>(sizeof words);
}

}  // namespace

// --- the books

std::optional<api::CUipcMemHandle> Exports::handle_of(std::uint64_t address, std::uint64_t bytes, std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (const auto known = exported_.find(address); known != exported_.end()) {
    if (known->second.id == id) return handle_bytes(known->second.handle);
    by_serial_.erase(known->second.handle.serial);  // what was there has been freed
    exported_.erase(known);
  }
  if (number_ == protocol::ProcessNumber{} && !fill_randomly(number_.words)) return std::nullopt;
  Exported entry{.handle = {}, .address = address, .bytes = bytes, .id = id};
  if (!fill_randomly(entry.handle.key)) return std::nullopt;
  std::copy(std::begin(number_.words), std::end(number_.words), entry.handle.process);
  entry.handle.serial = ++last_serial_;
  by_serial_[entry.handle.serial] = address;
  exported_[address] = entry;
  return handle_bytes(entry.handle);
}

protocol::ProcessNumber Exports::number() {
  const std::lock_guard lock(mutex_);
  return number_;
}

bool Exports::is_own(const ExportedHandle& handle) {
  const std::lock_guard lock(mutex_);
  return std::equal(std::begin(number_.words), std::end(number_.words), handle.process) &&
         number_ != protocol::ProcessNumber{};
}

std::optional<std::uint64_t> Exports::ends(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = exported_.find(address);
  if (found == exported_.end()) return std::nullopt;
  const std::uint64_t serial = found->second.handle.serial;
  by_serial_.erase(serial);
  exported_.erase(found);
  const auto open = open_.find(serial);
  if (open == open_.end()) return std::nullopt;
  open->second.ended = true;
  return serial;
}

// What the question is about, which the opener has open from now on.
std::optional<Exports::Exported> Exports::open(const exports::Question& question, Opener& opener) {
  const std::lock_guard lock(mutex_);
  const auto found = by_serial_.find(question.serial);
  if (found == by_serial_.end()) return std::nullopt;
  const Exported& exported = exported_.at(found->second);
  if (!std::equal(std::begin(question.key), std::end(question.key), exported.handle.key)) return std::nullopt;
  if (opener.open.insert(question.serial).second) ++open_[question.serial].openers;
  return exported;
}

void Exports::close(std::uint64_t serial, Opener& opener) {
  if (opener.open.erase(serial) == 0) return;
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    Open& open = open_.at(serial);
    if (--open.openers != 0) return;
    ended = open.ended;
    open_.erase(serial);
  }
  if (ended) contents_->closed_by_others(serial);
}

// --- the answers

Exports::Told Exports::told(const exports::Question& question, const Exported& exported) {
  Told told;
  const std::uint64_t address = exported.address;
  if (!contents_->lives(address, exported.id)) return told;
  const std::lock_guard answering(answering_);
  if (stopped_.load()) return told;
  // Held during the driver's call, so that the memory is not released meanwhile, and its handle becomes another's.
  const Regions::Lock lock = regions_.lock();
  const Range* const range = regions_.range_at(address);
  if (range == nullptr || !range->pinned || range->failed || range->ending) return told;
  const auto reaches = [&](const Extent& extent) {
    return extent.address < address + exported.bytes && address < extent.address + extent.bytes;
  };
  const auto first = std::ranges::find_if(range->extents, reaches);
  const auto end = std::find_if_not(first, range->extents.end(), reaches);
  const auto count = static_cast<std::uint64_t>(end - first);
  if (question.index >= count || !std::all_of(first, end, [](const Extent& each) { return each.in_place(); })) {
    return told;
  }
  const Extent& extent = first[static_cast<std::ptrdiff_t>(question.index)];
  if (extent.piece.memory) {
    told.shared = extent.piece.memory;
  } else {
    int number = -1;
    const api::CUresult result = real::cuMemExportToShareableHandle(&number, extent.piece.handle,
                                                                    api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != api::CUDA_SUCCESS) {
      log::debug("exported memory cannot be given to another process: error {}", static_cast<int>(result));
      return told;
    }
    told.made = Descriptor(number);
  }
  told.answer.known = 1;
  told.answer.extents = count;
  told.answer.extent_bytes = extent.bytes;
  told.answer.offset = address - first->address;
  told.answer.bytes = exported.bytes;
  return told;
}

// Whether there may be more questions.
bool Exports::answer(Opener& opener) {
  exports::Question question;
  const int socket = opener.socket.get();
  const ssize_t length = protocol::read_packet(socket, &question, sizeof question, {}, MSG_DONTWAIT);
  if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
  if (length != sizeof question || question.magic != exports::kMagic) return false;
  if (question.index == exports::kCloses) {
    close(question.serial, opener);
    return true;
  }
  Told told;
  if (const auto exported = open(question, opener)) {
    told = this->told(question, *exported);
    if (told.answer.known == 0) close(question.serial, opener);
  }
  told.answer.number = question.number;
  const int descriptor = told.descriptor();
  const std::span<const int> descriptors(&descriptor, descriptor >= 0 ? 1 : 0);
  return protocol::write_packet(socket, &told.answer, sizeof told.answer, descriptors, MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof told.answer);
}

void* Exports::run(void* self) {
  driver::relax_this_thread();
  static_cast<Exports*>(self)->answer_all();
  return nullptr;
}

void Exports::answer_all() {
  std::vector<Opener> openers;
  while (!stopped_.load()) {
    std::vector<pollfd> ready;
    ready.push_back({.fd = bell_.get(), .events = POLLIN, .revents = 0});
    for (const Opener& each : openers) ready.push_back({.fd = each.socket.get(), .events = POLLIN, .revents = 0});
    if (poll(ready.data(), ready.size(), -1) < 0) continue;
    for (std::size_t index = openers.size(); index-- > 0;) {
      Opener& opener = openers[index];
      if (ready[index + 1].revents == 0 || answer(opener)) continue;
      for (const std::uint64_t serial : std::set(opener.open)) close(serial, opener);
      openers.erase(openers.begin() + static_cast<std::ptrdiff_t>(index));
    }
    std::uint64_t rung = 0;
    if (ready[0].revents != 0 && read(bell_.get(), &rung, sizeof rung) < 0) continue;
    const std::lock_guard lock(mutex_);
    for (Descriptor& socket : std::exchange(arrived_, {})) {
      if (openers.size() < kMostOpeners) openers.push_back({.socket = std::move(socket), .open = {}});
    }
  }
}

void Exports::serve(Descriptor&& socket) {
  const std::lock_guard lock(mutex_);
  if (stopped_.load()) return;
  if (!bell_) {
    bell_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    pthread_t thread{};
    if (!bell_ || create_own_thread(&thread, &run, this) != 0) {
      bell_ = Descriptor();
      return;
    }
    pthread_detach(thread);
  }
  arrived_.push_back(std::move(socket));
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t rung = write(bell_.get(), &one, sizeof one);
}

void Exports::stop() {
  stopped_.store(true);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (!answering_.try_lock()) {
    if (std::chrono::steady_clock::now() >= until) return;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  answering_.unlock();
}

}  // namespace rota::memory
