#include "tools/rota/status/holders.h"

#include <fmt/format.h>
#include <poll.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>

#include "scheduler/protocol/descriptor.h"
#include "scheduler/protocol/lock_door.h"
#include "scheduler/protocol/packet.h"
#include "scheduler/protocol/uuid_text.h"

namespace rota::tool {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::milliseconds(500);

std::string lock_folder() {
  const char* chosen = getenv("ROTA_LOCK_DIRECTORY");
  if (chosen == nullptr || *chosen == '\0') return protocol::default_lock_folder();
  char* real = realpath(chosen, nullptr);
  const std::string folder = real != nullptr ? real : chosen;
  free(real);
  return folder;
}

// The names that somebody listens or is connected at in this network namespace.
std::set<std::string> names() {
  std::set<std::string> all;
  std::ifstream table("/proc/net/unix");
  const std::string mark = std::string("@") + protocol::kLockNamePrefix;
  for (std::string line; std::getline(table, line);) {
    if (const std::size_t at = line.find(mark); at != std::string::npos) all.insert(line.substr(at + 1));
  }
  return all;
}

// A connection to whoever listens at a lock's name, and who that is by the kernel's word.
struct Asked {
  std::string name;
  Descriptor door;
  ucred who{};
};

std::optional<Asked> ask(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Asked asked{.name = name, .door = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
  socklen_t size = sizeof asked.who;
  if (!asked.door || connect(asked.door.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      getsockopt(asked.door.get(), SOL_SOCKET, SO_PEERCRED, &asked.who, &size) != 0) {
    return std::nullopt;
  }
  return asked;
}

std::optional<GpuHolder> answer(const Asked& asked, const std::string& folder) {
  protocol::DoorMessage said;
  if (protocol::read_packet(asked.door.get(), &said, sizeof said, {}, MSG_DONTWAIT) !=
          static_cast<ssize_t>(sizeof said) ||
      said.magic != protocol::kDoorMagic || said.kind != protocol::DoorKind::kHolder) {
    return std::nullopt;
  }
  said.holder.name[protocol::kNameLength - 1] = '\0';
  said.holder.socket[protocol::kSocketPathLength - 1] = '\0';
  GpuHolder holder{.gpu = protocol::uuid_text(said.holder.uuid),
                   .name = said.holder.name,
                   .pid = asked.who.pid,
                   .uid = asked.who.uid,
                   .user = {},
                   .socket = said.holder.socket,
                   .programs = said.holder.programs,
                   .machine = said.holder.machine != 0 && asked.who.uid == 0};
  // Locks of another folder are not about this machine's GPUs.
  if (protocol::lock_name(fmt::format("{}/{}.lock", folder, holder.gpu)) != asked.name) return std::nullopt;
  const passwd* const user = getpwuid(holder.uid);
  holder.user = user != nullptr ? user->pw_name : fmt::format("uid {}", holder.uid);
  // Whatever bytes that rotad has put there, on a terminal.
  for (std::string* text : {&holder.name, &holder.socket}) {
    std::ranges::replace_if(*text, [](char letter) { return letter < ' ' || letter > '~'; }, '?');
  }
  return holder;
}

}  // namespace

std::vector<GpuHolder> find_holders() {
  std::vector<GpuHolder> holders;
  const std::string folder = lock_folder();
  const auto until = Clock::now() + kPatience;
  std::vector<Asked> open;
  for (const std::string& name : names()) {
    if (auto asked = ask(name)) open.push_back(std::move(*asked));
  }
  // All at once: some may be stopped, or of an older release, and say nothing.
  while (!open.empty()) {
    std::vector<pollfd> ready;
    for (const Asked& asked : open) ready.push_back({asked.door.get(), POLLIN, 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (poll(ready.data(), ready.size(), std::max(0, static_cast<int>(left.count()))) <= 0) break;
    std::vector<Asked> silent;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (ready[i].revents == 0) {
        silent.push_back(std::move(open[i]));
      } else if (auto holder = answer(open[i], folder)) {
        holders.push_back(std::move(*holder));
      }
    }
    open = std::move(silent);
  }
  std::ranges::sort(holders, {}, &GpuHolder::gpu);
  return holders;
}

std::string holder_text(const GpuHolder& holder) {
  const std::string who = fmt::format("{}{}{} is another rotad's: {}of {}, at {}, which serves {} program{} there",
                                      holder.gpu, holder.name.empty() ? "" : " ", holder.name,
                                      holder.pid == 0 ? "" : fmt::format("pid {} ", holder.pid), holder.user,
                                      holder.socket, holder.programs, holder.programs == 1 ? "" : "s");
  if (holder.machine) return who + "; it is the machine's, which programs find first unless ROTA_SOCKET is set";
  if (holder.uid == geteuid()) return who + fmt::format("; ROTA_SOCKET={} makes programs use it", holder.socket);
  return who + fmt::format("; what helps is one for all users: ask for `rotad --socket {}`, which root starts",
                           protocol::kSystemSocket);
}

}  // namespace rota::tool
