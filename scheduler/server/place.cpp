// A daemon may lose the place at which it listens while it runs: a program that cleans /tmp removes the socket, or the
// folder with all that is in it. The daemon creates both again, as they were. If another rotad has the place by then,
// that one wins, since programs find it: this one gives its GPUs up and exits.
#include "scheduler/server/place.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <asio/post.hpp>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "scheduler/server/client.h"
#include "scheduler/server/log.h"

namespace rota::server {

namespace {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

bool is_at(const std::string& path, const FileId& file) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode) && info.st_dev == file.device &&
         info.st_ino == file.inode;
}

FileId id_of(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return {};
  return {info.st_dev, info.st_ino};
}

FolderSafety safety_of_folder(const std::string& path) {
  struct stat info;
  if (lstat(folder_of(path).c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return {};
  return {info.st_uid, static_cast<mode_t>(info.st_mode & (S_IWGRP | S_IWOTH))};
}

void Server::keep_place() {
  if (place_lost_ || (is_at(options_.socket, socket_id_) && is_at(options_.control, control_id_))) return;
  // The simulated machine that this rotad serves has ended, and the folder was removed with it (`rota sim`).
  if (const char* machine = getenv("ROTA_SIM_STATE");  // NOLINT(concurrency-mt-unsafe)
      machine != nullptr && *machine != '\0' && access(machine, F_OK) != 0 && errno == ENOENT) {
    log::info("exiting: {} is gone", machine);
    place_lost_ = true;
    return asio::post(io_, [this] {
      stop();
      io_.stop();
    });
  }
  const auto failed = [&](const std::string& why) {
    if (std::exchange(place_problem_, why) != why) {
      log::warn("programs do not find this rotad, since its socket {} is gone: {}", options_.socket, why);
    }
  };
  if (inherited_) return failed("whoever made it, such as rotad.socket and rotad-control.socket, has to make it again");
  if (const auto made = make_folder_of(options_.socket); !made) return failed(made.error().text);
  const FolderSafety folder = safety_of_folder(options_.socket);
  if (folder.owner != place_safety_.owner || (folder.writable_by & ~place_safety_.writable_by) != 0) {
    return failed("its folder is somebody else's now, or others can write to it");
  }
  if (!lock_.is_there()) {
    auto lock =
        LockFile::take(options_.socket + ".lock", fmt::format("rotad pid {} at {}", getpid(), options_.socket), 0600);
    if (!lock) return failed(lock.error().text);
    if (const auto* taken = std::get_if<LockFile::Taken>(&*lock)) {
      log::warn("{} serves {} now", taken->owner, options_.socket);
      place_lost_ = true;
      return claim(claims_.give_up(now()));
    }
    lock_ = std::move(std::get<LockFile>(*lock));
  }
  auto listener = listen_at(options_.socket, geteuid() == 0 ? 0666 : 0600);
  if (!listener) return failed(listener.error().text);
  if (const auto made = make_folder_of(options_.control); !made) return failed(made.error().text);
  auto control = listen_at(options_.control, geteuid() == 0 ? 0660 : 0600);
  if (!control) return failed(control.error().text);
  // Peers that have not been accepted may have sent descriptors (bare_packet.h).
  workers_.close(Descriptor(listener_.release()), std::to_string(geteuid()), [](JobOutcome) {});
  listener_.assign(listener->release());
  socket_id_ = id_of(options_.socket);
  accept();
  control_.listen_anew(std::move(*control));
  control_id_ = id_of(options_.control);
  place_problem_.clear();
  if (std::ranges::any_of(clients_, [](const auto& entry) { return !entry.second->gpus().empty(); })) note_clients();
  log::info("created the socket {} again, which had been removed", options_.socket);
}

}  // namespace rota::server
