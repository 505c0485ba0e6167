#include "runtime/client/connection.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <utility>

#include "runtime/client/inherited_socket.h"
#include "runtime/client/spare_descriptors.h"
#include "scheduler/base/above_standard.h"
#include "scheduler/protocol/packet.h"

namespace rota::client {

namespace {

using protocol::Kind;
using protocol::Message;

// How often it is checked whether a rotad that does not answer is stopped, and how often in a row it has to be: a
// debugger stops a process for moments.
constexpr std::chrono::milliseconds kBetweenChecks{50};
constexpr int kStoppedInARow = 4;
// After a longer time between two checks of what rotad has not read, this process may itself have been stopped.
constexpr std::chrono::seconds kLongestBetweenChecks{3};
// Messages that rotad has not read, beyond the two hundred or so that the socket holds: far more than a program sends
// while rotad is merely slow. A judgment.
constexpr std::size_t kMostUnsent = 1024;

// This process's connection, for a forked child to close.
constinit InheritedSocket open_socket;

// For the next connection: its socket, and the pages until they are mapped. While there is none, one more stands in for
// the socket of the last.
constexpr std::size_t kPages = protocol::kMostDescriptors;
constexpr std::size_t kForConnection = 1 + kPages;
static_assert(kForConnection + 1 == SpareDescriptors::kMost);
constinit SpareDescriptors spare_descriptors;

bool none_is_left() {
  const Descriptor another(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  return !another && errno == EMFILE;
}

// The caller zeroes the message before receiving, so that fields which a rotad of another version omits are zero.
bool valid(const Message& message, ssize_t bytes) {
  return bytes >= static_cast<ssize_t>(protocol::kHeaderBytes) && message.magic == protocol::kMagic;
}

bool is_known(Kind kind) {
  return kind == Kind::kGpuAdded || kind == Kind::kRefused || kind == Kind::kReserved || kind == Kind::kTighten ||
         kind == Kind::kExtent || kind == Kind::kIntroduced || kind == Kind::kTryAgain;
}

template <typename Visit>
void for_each(turn::GpuMask gpus, Visit visit) {
  for (; gpus != 0; gpus &= gpus - 1) visit(std::countr_zero(gpus));
}

turn::Time time_of(const std::atomic<std::uint64_t>& nanoseconds) {
  return turn::Time(static_cast<std::int64_t>(std::min<std::uint64_t>(nanoseconds.load(), INT64_MAX)));
}

std::string error_text(int error) {
  char buffer[128];
  return strerror_r(error, buffer, sizeof buffer);
}

// Maps a page that came with the welcome, or null. It must be sealed against shrinking, or a later access could raise
// SIGBUS.
void* map_page(int descriptor, int protection) {
  struct stat info{};
  if (fstat(descriptor, &info) != 0 || info.st_size < static_cast<off_t>(protocol::kPageBytes)) return nullptr;
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return nullptr;
  void* page = mmap(nullptr, protocol::kPageBytes, protection, MAP_SHARED, descriptor, 0);
  if (page == MAP_FAILED) return nullptr;
  madvise(page, protocol::kPageBytes, MADV_DONTFORK);  // a child is a separate client
  return page;
}

}  // namespace

Connection::Attempt Connection::open(std::chrono::milliseconds patience, bool returns,
                                     const protocol::SocketCandidates& places) {
  spare_descriptors.release(1);
  const protocol::SocketSearch search = protocol::search_rotad(places);
  if (search.descriptor < 0) {
    if (returns) spare_descriptors.fill(SpareDescriptors::kMost);
    if (search.error == EMFILE) return {nullptr, nullptr, kNoDescriptor};
    if (protocol::nobody_there(search.error)) {
      if (search.skipped_count == 0) return {};
      return {nullptr, nullptr,
              fmt::format("no rotad found, and the folder of {} was skipped because another user owns it or can "
                          "write to it: remove it",
                          search.skipped[0].path)};
    }
    const char* path = search.candidate.path;
    // So many connections wait to be accepted that the kernel takes no more.
    if (search.error == ETIMEDOUT) return {nullptr, nullptr, protocol::unresponsive_text(path, {})};
    return {nullptr, nullptr, fmt::format("{}: {}", *path != '\0' ? path : "ROTA_SOCKET", error_text(search.error))};
  }
  std::unique_ptr<Connection> made(new Connection(above_standard(search.descriptor), search.candidate.path, returns));
  std::string reason;
  if (!made->say_hello()) {
    reason = "rotad closed the connection";
  } else if (!made->hears_within(patience)) {
    reason = protocol::unresponsive_text(made->socket(), made->rotad());
    return {nullptr, std::move(made), std::move(reason)};
  } else {
    reason = made->read_welcome();
  }
  if (reason == kNoDescriptor) return {nullptr, nullptr, kNoDescriptor};
  if (!reason.empty()) return {nullptr, nullptr, fmt::format("{}: {}", search.candidate.path, reason)};
  return {std::move(made), nullptr, {}};
}

Connection::Connection(int descriptor, std::string socket, bool returns)
    : descriptor_(descriptor), socket_(std::move(socket)), returns_(returns) {
  open_socket.keep(descriptor);
}

Connection::~Connection() {
  open_socket.forget(descriptor_.get());
  Descriptor(std::move(descriptor_));  // first: a spare one takes its place
  if (lease_ != nullptr || returns_) spare_descriptors.fill(SpareDescriptors::kMost);
}

void Connection::expect_no_other() {
  spare_descriptors.close_all();
}

void Connection::close_inherited() {
  open_socket.close();
  spare_descriptors.close_all();
}

bool Connection::say_hello() {
  Message hello;
  hello.kind = Kind::kHello;
  hello.body.hello.newest_version = protocol::kVersion;
  std::strncpy(hello.body.hello.name, program_invocation_short_name, protocol::kNameLength - 1);
  hello.body.hello.returns = returns_ ? 1 : 0;
  return send(hello);
}

bool Connection::hears_within(std::chrono::milliseconds patience) const {
  const auto until = std::chrono::steady_clock::now() + patience;
  const pid_t listener = rotad().pid;
  for (int stopped = 0; stopped < kStoppedInARow;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd ready{descriptor_.get(), POLLIN, 0};
    const auto pause = std::clamp<std::chrono::milliseconds>(left, std::chrono::milliseconds(0), kBetweenChecks);
    if (poll(&ready, 1, static_cast<int>(pause.count())) > 0) return true;
    if (left <= std::chrono::milliseconds(0)) return false;
    stopped = protocol::stopped_state(listener) != 0 ? stopped + 1 : 0;
  }
  return false;
}

Connection::Welcome Connection::welcome(std::string& reason) {
  if (!hears_within(std::chrono::milliseconds(0))) return Welcome::kNotYet;
  reason = read_welcome();
  return reason.empty() ? Welcome::kYes : Welcome::kNo;
}

std::string Connection::read_welcome() {
  Message answer;
  Descriptor pages[kPages];
  spare_descriptors.release(kPages);
  const ssize_t bytes = protocol::read_packet(descriptor_.get(), &answer, sizeof answer, pages, MSG_DONTWAIT);
  std::string reason;
  if (bytes == 0) {
    reason = "rotad closed the connection";
  } else if (!valid(answer, bytes)) {
    reason = "the process that listens there is not rotad";
  } else if (answer.kind == Kind::kRefused) {
    answer.body.refused.text[protocol::kTextLength - 1] = '\0';
    reason = answer.body.refused.text;
  } else if (answer.kind != Kind::kWelcome || answer.version < protocol::kOldestVersion ||
             answer.version > protocol::kVersion) {
    reason = fmt::format("this rotad speaks version {} of the protocol, not {} to {}: install the same version of rota",
                         answer.version, protocol::kOldestVersion, protocol::kVersion);
  } else if (!pages[kPages - 1] && none_is_left()) {
    return kNoDescriptor;
  } else {
    lease_ = static_cast<protocol::LeasePage*>(map_page(pages[0].get(), PROT_READ));
    usage_ = static_cast<protocol::UsagePage*>(map_page(pages[1].get(), PROT_READ | PROT_WRITE));
    welcome_ = answer.body.welcome;
    version_ = answer.version;
    if (lease_ == nullptr || usage_ == nullptr || lease_->magic != protocol::kMagic) {
      reason = "rotad's shared pages cannot be used";
    }
  }
  for (Descriptor& page : pages) Descriptor(std::move(page));
  if (reason.empty()) spare_descriptors.fill(kForConnection);
  return reason;
}

std::chrono::nanoseconds Connection::unread_for(turn::Time now) {
  int bytes = 0;
  // The bytes that the peer has not read, for a Unix socket. Where the kernel does not say, rotad counts as reading.
  if (ioctl(descriptor_.get(), SIOCOUTQ, &bytes) != 0) bytes = 0;
  // A rotad that is merely behind reads something whenever something is written. The time begins when something is
  // first seen unread.
  const bool takes = bytes < unread_bytes_ || (bytes == unread_bytes_ && written_);
  const bool reads = takes || bytes == 0 || unread_bytes_ == 0;
  if (reads || now - checked_at_ > kLongestBetweenChecks) unread_since_ = now;
  unread_bytes_ = bytes;
  written_ = false;
  checked_at_ = now;
  return now - unread_since_;
}

Connection::Sent Connection::write(const Message& message, int descriptor) {
  const std::span<const int> descriptors(&descriptor, descriptor >= 0 ? 1 : 0);
  const std::size_t bytes = protocol::bytes_of(message.kind);
  if (protocol::write_packet(descriptor_.get(), &message, bytes, descriptors, MSG_DONTWAIT) ==
      static_cast<ssize_t>(bytes)) {
    written_ = true;
    return Sent::kYes;
  }
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ? Sent::kNotNow : Sent::kGone;
}

bool Connection::flush() {
  while (!unsent_.empty()) {
    const Sent sent = write(unsent_.front(), -1);
    if (sent != Sent::kYes) return sent == Sent::kNotNow && unsent_.size() <= kMostUnsent;
    unsent_.pop_front();
  }
  return true;
}

bool Connection::send(Message message, int descriptor) {
  message.version = version_;
  if (!flush()) return false;
  const Sent sent = unsent_.empty() ? write(message, descriptor) : Sent::kNotNow;
  if (sent != Sent::kNotNow) return sent == Sent::kYes;
  // rotad reads the usage page when it reads such a message, however old that is.
  const auto says_usage = [](const Message& each) { return each.kind == Kind::kUsage; };
  const bool said = says_usage(message) && std::any_of(unsent_.begin(), unsent_.end(), says_usage);
  if (descriptor < 0 && !said) unsent_.push_back(message);
  return true;
}

Connection::Received Connection::receive_new(Message& message) {
  for (;;) {
    message = Message();
    Descriptor sent;
    const ssize_t bytes = protocol::read_packet(descriptor_.get(), &message, sizeof message, {&sent, 1}, MSG_DONTWAIT);
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Received::kNothing;
    if (bytes <= 0) return Received::kGone;
    if (!valid(message, bytes) || !is_known(message.kind)) continue;
    if (message.kind == Kind::kGpuAdded && message.body.gpu_added.index < protocol::kMaxGpus) {
      served_ |= turn::GpuMask{1} << message.body.gpu_added.index;
    }
    if (message.kind == Kind::kIntroduced) sockets_.push_back(std::move(sent));
    if (message.kind != Kind::kExtent) return Received::kMessage;
    const protocol::Extent& extent = message.body.extent;
    auto kept = std::make_shared<const driver::MemoryDescriptor>(std::move(sent));
    if (*kept) extents_.push_back({static_cast<int>(extent.gpu), {extent.bytes, std::move(kept)}});
  }
}

Connection::Received Connection::receive(Message& message) {
  Received received = Received::kMessage;
  if (unread_.empty()) {
    received = receive_new(message);
  } else {
    message = unread_.front();
    unread_.pop_front();
  }
  if (received == Received::kMessage && message.kind == Kind::kIntroduced) {
    socket_received_ = std::move(sockets_.front());
    sockets_.pop_front();
  }
  return received;
}

std::optional<driver::Handed> Connection::take_extent(int index) {
  Message other;
  while (receive_new(other) == Received::kMessage) unread_.push_back(other);  // a closed connection is noticed later
  const auto found =
      std::find_if(extents_.begin(), extents_.end(), [index](const Extent& each) { return each.index == index; });
  if (found == extents_.end()) return std::nullopt;
  driver::Handed handed = std::move(found->handed);
  extents_.erase(found);
  return handed;
}

void Connection::wait_for_message(int milliseconds) const {
  pollfd ready{descriptor_.get(), POLLIN, 0};
  poll(&ready, 1, milliseconds);
}

turn::Lease Connection::lease(turn::GpuMask task) const {
  // rotad writes a handful of words; one that has been killed in between never ends.
  constexpr int kMostTries = 1000;
  turn::Lease seen;
  for (int tries = 0; tries < kMostTries; ++tries) {
    const std::uint32_t before = lease_->grants_change.load();
    seen = {};
    for_each(served_ & task, [&](int index) {
      const std::uint32_t grant = gpu(index).grant.load();
      if (grant == 0 || (seen.grant != 0 && grant != seen.grant)) return;
      seen.grant = grant;
      seen.held |= turn::GpuMask{1} << index;
      // These are the same on all GPUs of the task, unless rotad is about to change them: then the gang drains.
      seen.gang = std::max(seen.gang, gpu(index).gang.load());
      seen.step = std::max(seen.step, gpu(index).gang_step.load());
      seen.ends |= gpu(index).gang_ends.load() == grant;
    });
    if ((before & 1) == 0 && lease_->grants_change.load() == before) break;
  }
  for_each(served_ & task, [&](int index) {
    const protocol::GpuLease& gpu = this->gpu(index);
    seen.waiters = std::max(seen.waiters, gpu.waiters.load());
    seen.drain_at = std::max(seen.drain_at, time_of(gpu.drain_at_ns));
    seen.give_back_by = std::max(seen.give_back_by, time_of(gpu.give_back_by_ns));
    // Without the lease only swap memory is requested: what a holder was told remains until rotad has received its
    // give-back.
    const bool holds = (seen.held >> index & 1) != 0;
    const bool asked = holds ? gpu.waiters.load() != 0 : gpu.clear_from_bytes.load() != 0;
    if (asked && to_clear(index) != 0) seen.in_the_way |= turn::GpuMask{1} << index;
  });
  return seen;
}

std::uint64_t Connection::to_clear(int index) const {
  const protocol::GpuLease& gpu = this->gpu(index);
  std::uint64_t bytes = 0;
  std::uint64_t from = 0;
  do {
    bytes = gpu.clear_bytes.load();
    if (bytes == 0) return 0;
    from = gpu.clear_from_bytes.load();
  } while (bytes != gpu.clear_bytes.load());
  const std::uint64_t resident = usage_->gpus[index].resident_bytes.load();
  const std::uint64_t gone = from > resident ? from - resident : 0;
  return bytes > gone ? bytes - gone : 0;
}

std::uint32_t Connection::watch(turn::GpuMask gpus) const {
  std::uint32_t watch = 0;
  for_each(served_ & gpus, [&](int index) { watch |= gpu(index).watch.load(std::memory_order_relaxed); });
  return watch;
}

turn::Time Connection::latest(std::atomic<std::uint64_t> protocol::GpuLease::* time, turn::GpuMask gpus) const {
  turn::Time latest{0};
  for_each(served_ & gpus, [&](int index) { latest = std::max(latest, time_of(gpu(index).*time)); });
  return latest;
}

}  // namespace rota::client
