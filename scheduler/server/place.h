// What a daemon's sockets are in the file system; private to the server's own files.
#pragma once

#include <sys/types.h>

#include <string>

#include "scheduler/base/descriptor.h"
#include "scheduler/base/result.h"

namespace rota::server {

// Makes the folder of a socket unless it is there.
Result<bool> make_folder_of(const std::string& socket);
// Listens at `path`, whose lock this process holds. `mode`: the socket's.
Result<Descriptor> listen_at(const std::string& path, mode_t mode);
// A socket to accept from. An inherited one also belongs to another process: it is neither shut down nor is its file
// removed.
struct Listener {
  Descriptor socket;
  bool inherited = false;
};
// The inherited one, or one at `path`, in a folder that is made unless it is there.
Result<Listener> listen_or_inherit(Descriptor inherited, const std::string& path, mode_t mode);

struct FileId {
  dev_t device = 0;
  ino_t inode = 0;
};
FileId id_of(const std::string& path);
// Whether the socket at the path is that one.
bool is_at(const std::string& path, const FileId& file);

// Whose the folder of a path is, and who else can write to it.
struct FolderSafety {
  uid_t owner = static_cast<uid_t>(-1);
  mode_t writable_by = 0;  // S_IWGRP, S_IWOTH
};
FolderSafety safety_of_folder(const std::string& path);

}  // namespace rota::server
