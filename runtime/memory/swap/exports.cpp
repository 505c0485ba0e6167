#include "runtime/memory/swap/exports.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
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

// The most processes that may have memory of this one open at the same time: each takes a descriptor. A judgment.
constexpr std::size_t kMostOpeners = 256;

// How often openers hear that what they wait for is on its way: they wait five times as long for that (opened.cpp).
constexpr int kSaysAgainMs = 1000;

// getrandom() returns this few bytes in a single call.
bool fill_randomly(std::uint64_t (&words)[2]) {
  ssize_t came = 0;
  do {
    came = getrandom(words, sizeof words, 0);
  } while (came < 0 && errno == EINTR);
  return came == static_cast<ssize_t>(sizeof words);
}

// Whether a range is there whose memory has to be restored first.
bool is_out(Regions& regions, std::uint64_t address) {
  const Regions::Lock lock = regions.lock();
  const Range* const range = regions.range_at(address);
  return range != nullptr && !range->cached && !range->failed && !range->ending && !range->in_place();
}

}  // namespace

// --- what is exported, and what is open

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

// With the lock held: what the question is about; null: there is no such allocation.
const Exports::Exported* Exports::known(const exports::Question& question) const {
  const Exported* what = nullptr;
  if (const auto open = open_.find(question.serial); open != open_.end()) {
    what = &open->second.what;
  } else if (const auto found = by_serial_.find(question.serial); found != by_serial_.end()) {
    what = &exported_.at(found->second);
  }
  const bool right = what != nullptr && std::equal(std::begin(question.key), std::end(question.key), what->handle.key);
  return right ? what : nullptr;
}

bool Exports::hold(std::uint64_t address, bool waits, FunctionRef<void()> work) const {
  if (hold_ != nullptr) return hold_(address, waits, work);
  work();
  return true;
}

// Opens the allocation for the opener. kOut: it is evicted, and will be restored.
Exports::Opens Exports::open(const exports::Question& question, Opener& opener) {
  const auto opens = [&] {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(question.serial);
    if (found == open_.end() || known(question) == nullptr) return false;
    if (opener.open.insert(question.serial).second) ++found->second.openers;
    return true;
  };
  if (opens()) return Opens::kYes;
  Exported what;
  {
    const std::lock_guard lock(mutex_);
    const Exported* const found = known(question);
    if (found == nullptr || lost_.erase(question.serial) != 0) return Opens::kNo;
    what = *found;
  }
  if (!contents_->lives(what.address, what.id)) return Opens::kNo;
  const bool held = hold(what.address, false, [&] { begin(what); });
  if (opens()) return Opens::kYes;
  if (held && !is_out(regions_, what.address)) return Opens::kNo;
  restore(question.serial);
  return Opens::kOut;
}

// Called while the memory is held in place, before the first opener has it open.
void Exports::begin(const Exported& what) {
  const auto range = regions_.open_to_others(what.address);
  if (!range) return;
  const std::uint64_t serial = what.handle.serial;
  const auto opens = [&] {
    const std::lock_guard lock(mutex_);
    return by_serial_.contains(serial) &&
           open_.try_emplace(serial, Open{.what = what, .range = range->buffer_id}).second;
  }();
  if (!opens) regions_.closed_by_others(what.address, range->buffer_id);  // it has just been freed, or is open already
  if (opens) contents_->opened_by_others(what.address);
  contents_->pins_changed(range->device);
}

void Exports::close(std::uint64_t serial, Opener& opener) {
  if (opener.open.erase(serial) == 0) return;
  Open gone;
  {
    const std::lock_guard lock(mutex_);
    Open& open = open_.at(serial);
    if (--open.openers != 0) return;
    gone = open;
    open_.erase(serial);
  }
  end(serial, gone);
}

// No process has it open any more.
void Exports::end(std::uint64_t serial, const Open& open) {
  if (const auto device = regions_.closed_by_others(open.what.address, open.range)) contents_->pins_changed(*device);
  if (open.ended) contents_->closed_by_others(serial);
}

// Closes what was restored for openers that no longer ask for it.
void Exports::close_unopened(const std::vector<Opener>& openers) {
  std::vector<std::pair<std::uint64_t, Open>> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto next = open_.begin(); next != open_.end();) {
      const auto each = next++;
      const bool awaited = std::ranges::any_of(
          openers, [&](const Opener& opener) { return opener.asked && opener.asked->serial == each->first; });
      if (each->second.openers != 0 || awaited) continue;
      gone.emplace_back(each->first, each->second);
      open_.erase(each);
    }
  }
  for (const auto& [serial, open] : gone) end(serial, open);
}

// --- restoring what openers ask for

void Exports::restore(std::uint64_t serial) {
  const std::lock_guard lock(mutex_);
  to_restore_.insert(serial);
  if (restores_) return;
  pthread_t thread{};
  restores_ = create_own_thread(&thread, &run_restorer, this) == 0;
  if (restores_) pthread_detach(thread);
}

void* Exports::run_restorer(void* self) {
  static_cast<Exports*>(self)->restore_all();
  return nullptr;
}

void Exports::restore_all() {
  for (;;) {
    Exported what;
    {
      const std::lock_guard lock(mutex_);
      if (to_restore_.empty() || stopped_.load()) {
        restores_ = false;
        return;
      }
      const std::uint64_t serial = *to_restore_.begin();
      const auto found = by_serial_.find(serial);
      to_restore_.erase(serial);
      if (found == by_serial_.end()) continue;
      what = exported_.at(found->second);
    }
    if (!hold(what.address, true, [&] { begin(what); })) {
      const std::lock_guard lock(mutex_);
      lost_.insert(what.handle.serial);
    } else if (is_out(regions_, what.address)) {  // to be tried again: it was allocated a moment ago
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ring(bell_);
  }
}

// --- the answers

// The answer about memory that the opener has open.
Exports::Told Exports::told(const exports::Question& question) {
  Told told;
  Open open;
  {
    const std::lock_guard lock(mutex_);
    open = open_.at(question.serial);
  }
  const std::uint64_t address = open.what.address;
  const std::lock_guard answering(answering_);
  if (stopped_.load()) return told;
  // Held during the driver's call, so that the memory is not released meanwhile and its handle reused.
  const Regions::Lock lock = regions_.lock();
  const Range* const range = regions_.range_at(address);
  if (range == nullptr || range->id != open.range || range->failed || range->ending) return told;
  const auto reaches = [&](const Extent& extent) {
    return extent.address < address + open.what.bytes && address < extent.address + extent.bytes;
  };
  const auto first = std::ranges::find_if(range->extents, reaches);
  const auto end = std::find_if_not(first, range->extents.end(), reaches);
  const auto count = static_cast<std::uint64_t>(end - first);
  if (question.index >= count || !std::all_of(first, end, [](const Extent& each) { return each.in_place(); })) {
    return told;
  }
  const Extent& extent = first[static_cast<std::ptrdiff_t>(question.index)];
  if (extent.physical.memory) {
    told.shared = extent.physical.memory;
  } else {
    int number = -1;
    const api::CUresult result = real::cuMemExportToShareableHandle(&number, extent.physical.handle,
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
  told.answer.bytes = open.what.bytes;
  return told;
}

// Reads a question, if there is one. False: the socket is of no more use.
bool Exports::hear(Opener& opener) {
  exports::Question question;
  const ssize_t length = protocol::read_packet(opener.socket.get(), &question, sizeof question, {}, MSG_DONTWAIT);
  if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
  if (length != sizeof question || question.magic != exports::kMagic) return false;
  if (question.index != exports::kCloses) {
    opener.asked = question;
    return answer(opener);
  }
  if (opener.asked && opener.asked->serial == question.serial) opener.asked.reset();
  close(question.serial, opener);
  return true;
}

// Answers the opener's question, or tells it to wait. False: the answer could not be sent.
bool Exports::answer(Opener& opener) {
  const exports::Question question = *opener.asked;
  const Opens opens = open(question, opener);
  Told told;
  if (opens == Opens::kYes) told = this->told(question);
  if (opens != Opens::kOut) {
    opener.asked.reset();
    if (told.answer.known == 0) close(question.serial, opener);
    told.answer.number = question.number;
  }
  const int descriptor = told.descriptor();
  const std::span<const int> descriptors(&descriptor, descriptor >= 0 ? 1 : 0);
  const bool sent = protocol::write_packet(opener.socket.get(), &told.answer, sizeof told.answer, descriptors,
                                           MSG_DONTWAIT) == static_cast<ssize_t>(sizeof told.answer);
  return sent || opens == Opens::kOut;
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
    const bool waits = std::ranges::any_of(openers, [](const Opener& each) { return each.asked.has_value(); });
    const int came = poll(ready.data(), ready.size(), waits ? kSaysAgainMs : -1);
    if (came < 0) continue;
    const bool again = came == 0 || ready[0].revents != 0;
    for (std::size_t index = openers.size(); index-- > 0;) {
      Opener& opener = openers[index];
      const bool heard = ready[index + 1].revents == 0 || hear(opener);
      if (heard && (!again || !opener.asked || answer(opener))) continue;
      for (const std::uint64_t serial : std::set(opener.open)) close(serial, opener);
      openers.erase(openers.begin() + static_cast<std::ptrdiff_t>(index));
    }
    close_unopened(openers);
    std::uint64_t rung = 0;
    if (ready[0].revents != 0 && read(bell_.get(), &rung, sizeof rung) < 0) continue;
    const std::lock_guard lock(mutex_);
    for (Descriptor& socket : std::exchange(arrived_, {})) {
      if (openers.size() < kMostOpeners) openers.push_back({.socket = std::move(socket), .open = {}, .asked = {}});
    }
  }
}

void Exports::serve(Descriptor&& socket) {
  const std::lock_guard lock(mutex_);
  if (stopped_.load()) return;
  if (!create_own_thread(bell_, &run, this)) return;
  arrived_.push_back(std::move(socket));
  ring(bell_);
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
