#include "tools/rota/status/holders.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "scheduler/address/socket_path.h"
#include "scheduler/address/unresponsive.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/base/uuid.h"
#include "scheduler/protocol/lock_door.h"
#include "scheduler/protocol/packet.h"

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

// The locks' names at which somebody listens or is connected, with the inodes of the sockets. `process` ("self" or a
// pid) selects the network namespace.
std::map<std::string, std::set<std::string>> sockets_at_names(const std::string& process) {
  std::map<std::string, std::set<std::string>> all;
  std::ifstream table(fmt::format("/proc/{}/net/unix", process));
  const std::string mark = std::string("@") + protocol::kLockNamePrefix;
  for (std::string line; std::getline(table, line);) {
    const std::size_t at = line.find(mark);
    if (at == std::string::npos) continue;
    std::istringstream words(line);  // "0000000000000000: 00000002 00000000 00010000 0005 01 12345 @rota-lock-…"
    std::string inode;
    for (int word = 0; word < 7; ++word) words >> inode;
    all[line.substr(at + 1)].insert(inode);
  }
  return all;
}

std::set<std::string> names() {
  std::set<std::string> all;
  for (const auto& [name, sockets] : sockets_at_names("self")) all.insert(name);
  return all;
}

// Whether the process has one of these sockets open; nothing: its descriptors are not visible.
std::optional<bool> has_open(const std::string& process, const std::set<std::string>& inodes) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::directory_iterator descriptor("/proc/" + process + "/fd", error);
  if (error) return std::nullopt;
  for (const fs::directory_iterator end; !error && descriptor != end; descriptor.increment(error)) {
    std::error_code gone;
    const std::string open = fs::read_symlink(descriptor->path(), gone);
    if (gone == std::errc::permission_denied) return std::nullopt;
    if (open.starts_with("socket:[") && inodes.contains(open.substr(8, open.size() - 9))) return true;
  }
  return false;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The rotads of other network namespaces that have locks' names there, with or without files: a container may have its
// own lock folder. Only processes that are visible here; 0: one of several.
std::map<std::string, pid_t> names_elsewhere() {
  namespace fs = std::filesystem;
  std::map<std::string, pid_t> certain;
  std::map<std::string, pid_t> all;
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end; process.increment(error)) {
    const std::string pid = process->path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos || first_line(process->path() / "comm") != "rotad") {
      continue;
    }
    for (const auto& [name, inodes] : sockets_at_names(pid)) {
      const std::optional<bool> has = has_open(pid, inodes);
      const auto number = static_cast<pid_t>(std::stol(pid));
      if (has == true) certain[name] = number;
      if (!has && !all.emplace(name, number).second) all[name] = 0;
    }
  }
  certain.merge(all);
  return certain;
}

// A connection to the process that listens at a lock's name, with its pid and user from the kernel. A stopped process
// whose queue is full is not even connected to.
struct Asked {
  std::string name;
  Descriptor door;
  ucred who{};
};

std::string user_of(uid_t uid) {
  const passwd* const user = getpwuid(uid);
  return user != nullptr ? user->pw_name : fmt::format("uid {}", uid);
}

// The UUIDs of the GPUs that may have a lock: those of the folder's files and of the kernel's driver.
std::set<std::string> gpus_known(const std::string& folder) {
  namespace fs = std::filesystem;
  std::set<std::string> all;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".lock" && parse_uuid(entry->path().stem().native())) {
      all.insert(entry->path().stem());
    }
  }
  const char* const driver = "/proc/driver/nvidia/gpus";
  for (fs::directory_iterator entry(driver, error), end; !error && entry != end; entry.increment(error)) {
    std::ifstream information(entry->path() / "information");
    for (std::string line; std::getline(information, line);) {
      const std::size_t at = line.find("GPU-");
      if (line.starts_with("GPU UUID") && at != std::string::npos) all.insert(line.substr(at));
    }
  }
  return all;
}

// Whether a process has locked the file. This takes a shared lock for a moment, as every check does. A rotad that wants
// the lock at that moment tries once more.
bool is_locked(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  return file && flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

// The process that has locked the file, by the kernel's list; 0: it is not visible here.
pid_t locker_of(const std::string& path) {
  struct stat file;
  if (lstat(path.c_str(), &file) != 0) return 0;
  const std::string wanted = fmt::format("{:02x}:{:02x}:{}", major(file.st_dev), minor(file.st_dev), file.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);  // "1: FLOCK ADVISORY WRITE 12 fd:01:34 0 EOF"
    std::string number, kind, advisory, access, where;
    long pid = 0;
    if (words >> number >> kind >> advisory >> access >> pid >> where && kind == "FLOCK" && where == wanted && pid > 0)
      return static_cast<pid_t>(pid);
  }
  return 0;
}

void note_process(GpuHolder& holder, pid_t pid, uid_t uid) {
  holder.pid = pid;
  holder.uid = uid;
  holder.user = user_of(uid);
  holder.stopped = protocol::stopped_state(pid);
}

// The process that has locked a GPU's file without having the lock's name in this network namespace.
std::optional<GpuHolder> file_holder(const std::string& gpu, const std::string& path) {
  if (!is_locked(path)) return std::nullopt;
  GpuHolder holder{.gpu = gpu, .how = Holding::kForeign, .file = path};
  const pid_t pid = locker_of(path);
  const std::string folder = fmt::format("/proc/{}", pid);
  struct stat process;
  const bool seen = pid != 0 && stat(folder.c_str(), &process) == 0;
  if (seen) note_process(holder, pid, process.st_uid);
  // If the process is not visible (in another container), what a rotad writes into the file.
  if (seen ? first_line(folder + "/comm") == "rotad" : first_line(path).starts_with("rotad pid ")) {
    holder.how = Holding::kElsewhere;
  }
  return holder;
}

std::optional<Asked> ask(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Asked asked{.name = name, .door = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
  socklen_t size = sizeof asked.who;
  if (!asked.door) return std::nullopt;
  if (connect(asked.door.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno != EAGAIN) return std::nullopt;
    asked.door = {};
    return asked;
  }
  if (getsockopt(asked.door.get(), SOL_SOCKET, SO_PEERCRED, &asked.who, &size) != 0) return std::nullopt;
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
  GpuHolder holder{.gpu = uuid_text(said.holder.uuid),
                   .name = said.holder.name,
                   .socket = said.holder.socket,
                   .programs = said.holder.programs,
                   .machine = said.holder.machine != 0 && asked.who.uid == 0};
  note_process(holder, asked.who.pid, asked.who.uid);
  // Locks of another folder do not concern this machine's GPUs.
  if (protocol::lock_name(fmt::format("{}/{}.lock", folder, holder.gpu)) != asked.name) return std::nullopt;
  // That rotad may have put any bytes there, and they are shown on a terminal.
  for (std::string* text : {&holder.name, &holder.socket}) {
    std::ranges::replace_if(*text, [](char letter) { return letter < ' ' || letter > '~'; }, '?');
  }
  return holder;
}

}  // namespace

std::vector<GpuHolder> find_holders(const std::vector<std::string>& known) {
  std::vector<GpuHolder> holders;
  const std::string folder = lock_folder();
  const auto until = Clock::now() + kPatience;
  const std::set<std::string> all = names();
  std::vector<Asked> open;
  std::vector<Asked> silent;
  for (const std::string& name : all) {
    auto asked = ask(name);
    if (asked) (asked->door ? open : silent).push_back(std::move(*asked));
  }
  // All at once: some may be stopped, or of an older release, and not answer.
  while (!open.empty()) {
    std::vector<pollfd> ready;
    for (const Asked& asked : open) ready.push_back({asked.door.get(), POLLIN, 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (poll(ready.data(), ready.size(), std::max(0, static_cast<int>(left.count()))) <= 0) break;
    std::vector<Asked> waiting;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (ready[i].revents == 0) {
        waiting.push_back(std::move(open[i]));
      } else if (auto holder = answer(open[i], folder)) {
        holders.push_back(std::move(*holder));
      }
    }
    open = std::move(waiting);
  }
  std::ranges::move(open, std::back_inserter(silent));
  std::set<std::string> gpus = gpus_known(folder);
  gpus.insert(known.begin(), known.end());
  const std::map<std::string, pid_t> elsewhere = names_elsewhere();
  for (const std::string& gpu : gpus) {
    const std::string path = fmt::format("{}/{}.lock", folder, gpu);
    const std::string name = protocol::lock_name(path);
    if (const auto asked = std::ranges::find(silent, name, &Asked::name); asked != silent.end()) {
      holders.push_back({.gpu = gpu, .how = Holding::kSilent, .file = path});
      note_process(holders.back(), asked->who.pid, asked->who.uid);
    } else if (!all.contains(name)) {
      if (auto holder = file_holder(gpu, path)) {
        holders.push_back(std::move(*holder));
      } else if (const auto far = elsewhere.find(name); far != elsewhere.end()) {
        struct stat process{};
        const bool one = far->second != 0;
        if (one && stat(fmt::format("/proc/{}", far->second).c_str(), &process) != 0) continue;
        holders.push_back({.gpu = gpu, .how = Holding::kElsewhere});
        if (one) note_process(holders.back(), far->second, process.st_uid);
      }
    }
  }
  std::ranges::sort(holders, {}, &GpuHolder::gpu);
  return holders;
}

void leave_out(std::vector<GpuHolder>& holders, std::uint64_t pid, const std::string& socket,
               const std::vector<std::string>& gpus) {
  std::erase_if(holders, [&](const GpuHolder& holder) {
    return (holder.pid != 0 && static_cast<std::uint64_t>(holder.pid) == pid) || holder.socket == socket ||
           (holder.how != Holding::kAnswers && std::ranges::find(gpus, holder.gpu) != gpus.end());
  });
}

std::vector<std::string> missing_locks(const std::vector<std::string>& gpus) {
  const std::string folder = lock_folder();
  // Without the machine's folder there are only names.
  const auto is_there = [](const std::string& path) { return access(path.c_str(), F_OK) == 0; };
  if (folder == protocol::default_lock_folder() && !is_there(folder)) return {};
  const auto missing = [&] {
    std::vector<std::string> gone;
    const std::set<std::string> all = names();
    for (const std::string& gpu : gpus) {
      const std::string path = fmt::format("{}/{}.lock", folder, gpu);
      if (all.contains(protocol::lock_name(path)) && !is_there(path)) gone.push_back(path);
    }
    return gone;
  };
  std::vector<std::string> gone = missing();
  for (int wait = 0; wait < 12 && !gone.empty(); ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    gone = missing();
  }
  return gone;
}

SilentText silent_text(const GpuHolder& holder) {
  const std::string who =
      holder.pid == 0 ? "a process that is not seen here" : fmt::format("pid {} of {}", holder.pid, holder.user);
  const bool own = geteuid() == 0 || geteuid() == holder.uid;
  const std::string whose = own || holder.pid == 0 ? "" : fmt::format(" (ask {} or root)", holder.user);
  const std::string end = holder.pid == 0 ? "end it" : fmt::format("`kill -KILL {}` ends it", holder.pid);
  std::string what;
  std::string remedy = end + whose;
  if (holder.stopped == 'T') remedy = fmt::format("`kill -CONT {}` lets it go on, {}", holder.pid, remedy);
  switch (holder.how) {
    case Holding::kAnswers:
      break;
    case Holding::kSilent:
      what = fmt::format("{} has it and does not answer", who);
      break;
    case Holding::kElsewhere:
      what = fmt::format("{} has it, a rotad in another network namespace, perhaps a container{}",
                         holder.pid == 0 && holder.file.empty() ? "one of several processes" : who,
                         holder.file.empty() ? ", and no lock file here tells other rotads so" : "");
      remedy = fmt::format(
          "one rotad for all serves programs there and here: root starts `rotad --socket {}`, and containers mount the "
          "folder of its socket",
          protocol::kSystemSocket);
      break;
    case Holding::kForeign:
      what = fmt::format("{} has locked {}, and is no rotad", who, holder.file);
      if (holder.pid == 0) what = fmt::format("a process that is not seen here has locked {}", holder.file);
      break;
  }
  if (holder.stopped == 'T') what += ", since it is stopped";
  if (holder.stopped == 't') what += ", since a debugger has stopped it";
  return {what, remedy};
}

std::string holder_text(const GpuHolder& holder) {
  if (holder.how != Holding::kAnswers) {
    const auto [what, remedy] = silent_text(holder);
    return fmt::format("{}: {}; {}", holder.gpu, what, remedy);
  }
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
