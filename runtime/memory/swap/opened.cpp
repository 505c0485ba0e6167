#include "runtime/memory/swap/opened.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <ranges>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/core/own_thread.h"
#include "runtime/core/undo.h"
#include "runtime/memory/swap/access.h"
#include "runtime/memory/swap/exports.h"
#include "scheduler/protocol/packet.h"

namespace rota::memory {

namespace {

using Clock = Opened::Clock;

// How long the exporter and rotad have for their answers, and how long rotad is asked again for a process that it does
// not know: an exporter that has just met a new rotad may not have told it yet. Judgments.
constexpr std::chrono::seconds kAnswersWithin{5};
constexpr std::chrono::seconds kKnownWithin{1};
constexpr std::chrono::milliseconds kAsksAgain{20};
// Between two attempts to unmap what the driver has refused to. A judgment.
constexpr int kOffersAgainMs = 250;

// More than any GPU's memory has, in extents of 2 MiB.
constexpr std::uint64_t kMostExtents = std::uint64_t{1} << 20;

struct Received {
  exports::Answer answer;
  Descriptor memory;
};

exports::Question about(const ExportedHandle& handle, std::uint64_t index) {
  exports::Question question;
  question.serial = handle.serial;
  std::copy(std::begin(handle.key), std::end(handle.key), question.key);
  question.index = index;
  return question;
}

// Asks a question and waits for the answer. Late answers to earlier questions are skipped. While the exporter says that
// it is restoring the memory, this waits longer.
std::optional<Received> asked(int socket, const exports::Question& question, Clock::time_point& until) {
  if (protocol::write_packet(socket, &question, sizeof question, {}, MSG_DONTWAIT) != sizeof question) return {};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd ready{.fd = socket, .events = POLLIN, .revents = 0};
    const int came = poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (came < 0 && errno == EINTR) continue;
    if (came <= 0) return {};
    Received received;
    const ssize_t length =
        protocol::read_packet(socket, &received.answer, sizeof received.answer, {&received.memory, 1}, MSG_DONTWAIT);
    if (length != sizeof received.answer || received.answer.magic != exports::kMagic) return {};
    if (received.answer.number == question.number) return received;
    if (received.answer.number == 0) until = std::max(until, Clock::now() + kAnswersWithin);
  }
}

// If the driver refuses to take something back, it is asked once more at once. Returns whether it has taken it.
template <typename Call>
bool give_back(const Call& call) {
  return call() == api::CUDA_SUCCESS || call() == api::CUDA_SUCCESS;
}

// The handle of GPU memory, and the GPU as this process numbers it; 0: the descriptor is not of GPU memory.
PhysicalHandle physical_of(const Descriptor& memory, int* device) {
  PhysicalHandle handle = 0;
  void* const number = reinterpret_cast<void*>(static_cast<std::intptr_t>(memory.get()));
  if (real::cuMemImportFromShareableHandle(&handle, number, api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) !=
      api::CUDA_SUCCESS) {
    return 0;
  }
  api::CUmemAllocationProp properties{};
  if (real::cuMemGetAllocationPropertiesFromHandle(&properties, handle) == api::CUDA_SUCCESS &&
      properties.location.type == api::CU_MEM_LOCATION_TYPE_DEVICE) {
    *device = properties.location.id;
    return handle;
  }
  give_back([&] { return real::cuMemRelease(handle); });
  return 0;
}

bool is_of(const ExportedHandle& handle, const std::uint64_t (&process)[2]) {
  return std::equal(std::begin(process), std::end(process), handle.process);
}

bool has_hung_up(int socket) {
  pollfd state{.fd = socket, .events = 0, .revents = 0};
  return poll(&state, 1, 0) > 0 && (state.revents & (POLLHUP | POLLERR)) != 0;
}

// Released at the end: mappings keep the memory.
struct Handles {
  ~Handles() {
    for (const PhysicalHandle each : all) give_back([&] { return real::cuMemRelease(each); });
  }
  std::vector<PhysicalHandle> all;
};

}  // namespace

std::uint64_t Opened::Memory::all_bytes() const {
  return std::accumulate(extents.begin(), extents.end(), std::uint64_t{0});
}

std::optional<Opened::Memory> Opened::import(const ExportedHandle& handle, const Place& place, int socket,
                                             Clock::time_point until, bool* answered) {
  Memory memory;
  memory.handle = handle;
  memory.place = place;
  Handles handles;
  int device = -1;
  for (std::uint64_t index = 0, count = 1; index < count; ++index) {
    exports::Question question = about(handle, index);
    question.number = questions_.fetch_add(1) + 1;
    const std::optional<Received> received = asked(socket, question, until);
    if (index == 0) *answered = received.has_value();
    if (!received || received->answer.known == 0 || !received->memory) return std::nullopt;
    const exports::Answer& answer = received->answer;
    if (index == 0) {
      count = answer.extents;
      memory.bytes = answer.bytes;
      memory.address = answer.offset;
    }
    const bool sound = count != 0 && count <= kMostExtents && answer.extents == count &&
                       answer.extent_bytes <= protocol::kMaxGpuBytes && answer.bytes <= protocol::kMaxGpuBytes &&
                       answer.offset <= protocol::kMaxGpuBytes;
    int owner = -1;
    const PhysicalHandle physical = sound ? physical_of(received->memory, &owner) : 0;
    if (physical == 0) return std::nullopt;
    handles.all.push_back(physical);
    memory.extents.push_back(answer.extent_bytes);
    if (index != 0 && owner != device) return std::nullopt;
    device = memory.device = owner;
  }
  const std::uint64_t all = memory.all_bytes();
  if (all > protocol::kMaxGpuBytes || memory.address + memory.bytes > all) return std::nullopt;
  api::CUdeviceptr mapped = 0;
  if (real::cuMemAddressReserve(&mapped, all, 0, 0, 0) != api::CUDA_SUCCESS) return std::nullopt;
  memory.mapped = mapped;
  memory.address += mapped;
  memory.reserved = all;
  Rollback opened([&] { end(memory); });
  std::uint64_t next = mapped;
  for (std::size_t index = 0; index < handles.all.size(); ++index) {
    if (real::cuMemMap(next, memory.extents[index], 0, handles.all[index], 0) != api::CUDA_SUCCESS) {
      memory.extents.resize(index);
      break;
    }
    next += memory.extents[index];
  }
  Access access;
  if (place.device != device) access[place.device] = api::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (next - mapped != all || give_access(mapped, all, device, access) != api::CUDA_SUCCESS) return std::nullopt;
  opened.commit();
  return memory;
}

bool Opened::unmap(Memory& memory) {
  memory.unmapped.resize(memory.extents.size());
  std::uint64_t next = memory.mapped;
  bool all = true;
  for (std::size_t index = 0; index < memory.extents.size(); ++index) {
    const std::uint64_t bytes = memory.extents[index];
    const std::uint64_t here = std::exchange(next, next + bytes);
    if (!memory.unmapped[index]) memory.unmapped[index] = give_back([&] { return real::cuMemUnmap(here, bytes); });
    all = all && memory.unmapped[index];
  }
  return all && give_back([&] { return real::cuMemAddressFree(memory.mapped, memory.reserved); });
}

api::CUresult Opened::open(const ExportedHandle& handle, const Place& place, const Introduce& introduce,
                           api::CUdeviceptr* address) {
  {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] {
      return std::ranges::none_of(coming_, [&](const auto& each) { return is_of(each, handle.process); });
    });
    const auto same = std::ranges::find_if(all_, [&](const auto& each) { return each.second.handle == handle; });
    if (same != all_.end()) {
      // Measured on an H200: the driver opens no memory in two contexts.
      if (same->second.place.context != place.context) return api::CUDA_ERROR_INVALID_HANDLE;
      ++same->second.opens;
      *address = same->second.address;
      return api::CUDA_SUCCESS;
    }
    coming_.push_back(handle);
  }
  struct Coming {
    ~Coming() {
      const std::lock_guard lock(opened.mutex_);
      came();
    }
    void came() {  // with the lock held
      if (std::exchange(over, true)) return;
      std::erase(opened.coming_, handle);
      opened.came_.notify_all();
    }
    Opened& opened;
    const ExportedHandle& handle;
    bool over = false;
  } coming{*this, handle};
  const Clock::time_point begun = Clock::now();
  std::optional<Memory> memory;
  bool answered = false;
  Socket socket = peer(handle);
  if (socket) memory = import(handle, place, socket->get(), begun + kAnswersWithin, &answered);
  // An exporter that has closed its socket may be the same process with another rotad, or none.
  if (!socket || (!answered && has_hung_up(socket->get()))) {
    Descriptor made;
    for (;;) {
      auto introduced = introduce(begun + kAnswersWithin);
      if (introduced) made = std::move(*introduced);
      if (made || !introduced || Clock::now() + kAsksAgain >= begun + kKnownWithin) break;
      poll(nullptr, 0, static_cast<int>(kAsksAgain.count()));
    }
    socket = made ? std::make_shared<const driver::MemoryDescriptor>(std::move(made)) : nullptr;
    if (socket && !*socket) socket = nullptr;  // few descriptors are left
    if (socket) {
      remember(handle, socket);
      memory = import(handle, place, socket->get(), begun + kAnswersWithin, &answered);
    }
  }
  if (!memory) {
    {
      const std::lock_guard lock(mutex_);
      coming.came();
      closed(handle);
    }
    log::warn(
        "memory that another program has exported cannot be opened: {}. With `--memory native` the driver's own IPC "
        "serves all programs",
        !socket    ? "no program of that handle is served by the rotad of this one, for the same user and in the same "
                     "container"
        : answered ? "that program has freed it, or this one cannot map it"
                   : "that program does not answer");
    return api::CUDA_ERROR_MAP_FAILED;
  }
  const std::lock_guard lock(mutex_);
  coming.came();
  any_.store(true, std::memory_order_relaxed);
  memory->buffer_id = ++last_id_;
  *address = memory->address;
  all_.emplace(memory->mapped, std::move(*memory));
  tell(handle, true);
  watch();
  return api::CUDA_SUCCESS;
}

Opened::Socket Opened::peer(const ExportedHandle& handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(peers_, [&](const Peer& each) { return is_of(handle, each.process); });
  return found != peers_.end() ? found->socket : nullptr;
}

void Opened::remember(const ExportedHandle& handle, const Socket& socket) {
  const std::lock_guard lock(mutex_);
  std::erase_if(peers_, [&](const Peer& each) { return is_of(handle, each.process); });
  Peer& peer = peers_.emplace_back();
  std::copy(std::begin(handle.process), std::end(handle.process), peer.process);
  peer.socket = socket;
}

// With the lock held. Tells the exporter that this process no longer has the memory open, unless it has. An exporter
// that does not read for long counts it as open until the socket is closed.
void Opened::closed(const ExportedHandle& handle) {
  const auto peer = std::ranges::find_if(peers_, [&](const Peer& each) { return is_of(handle, each.process); });
  if (peer == peers_.end()) return;
  const auto is_any = [&](const auto& wanted) {
    const auto is_one = [&](const Memory& memory) { return wanted(memory.handle); };
    return std::ranges::any_of(coming_, wanted) || std::ranges::any_of(all_ | std::views::values, is_one) ||
           std::ranges::any_of(ending_, [&](const Memory* memory) { return is_one(*memory); }) ||
           std::ranges::any_of(unreturned_, is_one);
  };
  if (is_any([&](const ExportedHandle& each) { return each == handle; })) return;
  const exports::Question question = about(handle, exports::kCloses);
  protocol::write_packet(peer->socket->get(), &question, sizeof question, {}, MSG_DONTWAIT);
  if (is_any([&](const ExportedHandle& each) { return is_of(each, handle.process); })) return;
  shutdown(peer->socket->get(), SHUT_RDWR);  // a forked child may have it, too
  peers_.erase(peer);
  tell(handle, false);
}

void Opened::tell(const ExportedHandle& handle, bool open) const {
  if (tell_ == nullptr) return;
  protocol::ProcessNumber process;
  std::copy(std::begin(handle.process), std::end(handle.process), process.words);
  tell_(process, open);
}

// With the lock held.
const Opened::Memory* Opened::at(api::CUdeviceptr address) const {
  const auto next = all_.upper_bound(address);
  if (next == all_.begin()) return nullptr;
  const Memory& memory = std::prev(next)->second;
  return address - memory.mapped < memory.all_bytes() ? &memory : nullptr;
}

std::optional<api::CUresult> Opened::close(api::CUdeviceptr address, FunctionRef<api::CUresult(api::CUcontext)> wait) {
  if (!any()) return std::nullopt;
  api::CUcontext context = nullptr;
  std::uint64_t key = 0;
  {
    const std::lock_guard lock(mutex_);
    const Memory* const memory = at(address);
    if (memory == nullptr) return std::nullopt;
    if (memory->address != address) return api::CUDA_ERROR_INVALID_VALUE;
    key = memory->mapped;
    context = memory->place.context;
    if (memory->opens > 1) {
      --all_.at(key).opens;
      return api::CUDA_SUCCESS;
    }
  }
  if (const api::CUresult result = wait(context); result != api::CUDA_SUCCESS) return result;
  std::map<std::uint64_t, Memory>::node_type gone;
  {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(key);
    if (found == all_.end()) return api::CUDA_SUCCESS;         // gone with its context
    if (--found->second.opens != 0) return api::CUDA_SUCCESS;  // opened again meanwhile
    gone = all_.extract(found);
    ending_.push_back(&gone.mapped());
  }
  end(gone.mapped());
  return api::CUDA_SUCCESS;
}

void Opened::context_ended(api::CUcontext context) {
  if (!any()) return;
  std::vector<Memory> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto next = all_.begin(); next != all_.end();) {
      const auto each = next++;
      if (each->second.place.context == context) gone.push_back(std::move(all_.extract(each).mapped()));
    }
    for (Memory& memory : gone) ending_.push_back(&memory);
  }
  for (Memory& memory : gone) end(memory);
}

// The memory is no longer in all_. What the driver does not unmap stays open and charged, and a thread asks again.
void Opened::end(Memory& memory) {
  const bool unmapped = unmap(memory);
  bool charged = false;
  {
    const std::lock_guard lock(mutex_);
    std::erase(ending_, &memory);
    if (!unmapped) {
      unreturned_.push_back(std::move(memory));
      return watch();
    }
    charged = memory.charged;
    closed(memory.handle);
  }
  if (!charged) return;
  ledger_.release(memory.device, memory.all_bytes(), Kind::kPhysical);
  changed_(memory.device);
}

// --- exporters that end

// With the lock held: there is a new peer, or more memory of one.
void Opened::watch() {
  if (create_own_thread(bell_, &run, this)) ring(bell_);
}

void* Opened::run(void* self) {
  static_cast<Opened*>(self)->watch_all();
  return nullptr;
}

void Opened::watch_all() {
  for (;;) {
    std::vector<Socket> sockets;  // which stay open meanwhile
    std::vector<pollfd> heard;
    int waits = -1;
    {
      const std::lock_guard lock(mutex_);
      heard.push_back({.fd = bell_.get(), .events = POLLIN, .revents = 0});
      for (const Peer& peer : peers_) {
        if (peer.gone) continue;
        sockets.push_back(peer.socket);
        heard.push_back({.fd = peer.socket->get(), .events = 0, .revents = 0});
      }
      waits = unreturned_.empty() ? -1 : kOffersAgainMs;
    }
    const int came = poll(heard.data(), heard.size(), waits);
    if (came < 0) continue;
    std::uint64_t rung = 0;
    if (heard[0].revents != 0 && read(heard[0].fd, &rung, sizeof rung) < 0) continue;
    adopt();
    if (came != 0) continue;
    std::vector<Memory> unreturned;
    {
      const std::lock_guard lock(mutex_);
      unreturned.swap(unreturned_);
      for (Memory& memory : unreturned) ending_.push_back(&memory);
    }
    for (Memory& memory : unreturned) end(memory);
  }
}

// Charges memory of exporters that have ended to this process. That is never refused, as with memory that graphs
// reserve: the driver has given it already.
void Opened::adopt() {
  std::vector<int> changed;
  {
    const std::lock_guard lock(mutex_);
    for (Peer& peer : peers_) {
      peer.gone = peer.gone || has_hung_up(peer.socket->get());
      if (!peer.gone) continue;
      const auto charge = [&](Memory& memory) {
        if (memory.charged || !is_of(memory.handle, peer.process)) return;
        memory.charged = true;
        ledger_.charge(memory.device, memory.all_bytes(), Kind::kPhysical);
        changed.push_back(memory.device);
      };
      std::ranges::for_each(all_ | std::views::values, charge);
      std::ranges::for_each(ending_, [&](Memory* memory) { charge(*memory); });
      std::ranges::for_each(unreturned_, charge);
    }
  }
  for (const int device : changed) changed_(device);
}

std::optional<Opened::Found> Opened::find(api::CUdeviceptr address) const {
  if (!any()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const Memory* const memory = at(address);
  if (memory == nullptr) return std::nullopt;
  return Found{.inside = address - memory->address < memory->bytes,
               .address = memory->address,
               .bytes = memory->bytes,
               .buffer_id = memory->buffer_id,
               .place = memory->place};
}

}  // namespace rota::memory
