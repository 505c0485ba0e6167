// The messages at the name of a GPU's lock. The name is an abstract socket at which the rotad listens that has the GPU
// (scheduler/server/lock_file.h). A process that connects learns from the kernel which process and user that is, and
// from its first packet where it listens for clients; the connection ends when it lets the GPU go, however that
// happens. The machine's rotad can ask for the GPU, and so can a rotad that listens at the holder's address by now.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "scheduler/protocol/protocol.h"

namespace rota::protocol {

// The beginning of all locks' names, which end in 16 hexadecimal digits.
inline constexpr const char* kLockNamePrefix = "rota-lock-";
inline constexpr std::uint32_t kDoorMagic = 0x524f4c4b;
inline constexpr std::uint16_t kDoorVersion = 1;
inline constexpr std::size_t kMostMovers = 128;

// The name of the lock whose file is `path`, without the NUL in front of it.
inline std::string lock_name(const std::string& path) {
  // FNV-1a: paths may be longer than an address. A collision is practically impossible, and would only make one daemon
  // believe that the other has its GPU.
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char character : path) hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3;
  std::string name = kLockNamePrefix;
  for (int digit = 60; digit >= 0; digit -= 4) name += "0123456789abcdef"[hash >> digit & 15];
  return name;
}

// The folder that this machine's locks are named after, whoever asks and whether or not it exists.
inline std::string default_lock_folder() {
  // By a property of the machine, not of the user: all daemons must use the same folder.
  struct stat info;
  const bool shared = stat("/run/lock", &info) == 0 && S_ISDIR(info.st_mode) && (info.st_mode & S_IWOTH) != 0;
  char* real = realpath(shared ? "/run/lock" : "/tmp", nullptr);
  const std::string folder = real != nullptr ? real : shared ? "/run/lock" : "/tmp";
  free(real);
  return folder + (shared ? "/rota" : "/rota-locks");
}

enum class DoorKind : std::uint16_t {
  kHolder = 1,  // holder → anyone: first packet
  kYield = 2,   // the machine's rotad → holder: give me your GPUs; from root, or a rotad at the same address
  kYielded = 3  // holder → the machine's rotad: they are free in a moment
};

struct DoorHolder {
  std::uint32_t machine;   // 1: the machine's rotad
  std::uint32_t programs;  // that it serves on this GPU
  Uuid uuid;
  char name[kNameLength];  // the GPU's
  char socket[kSocketPathLength];
};

struct DoorYielded {
  std::uint32_t gpu_count;
  std::uint32_t mover_count;
  Uuid gpus[kMaxGpus];               // that go together
  std::int32_t movers[kMostMovers];  // the processes that were served there, as many as fit
};

struct DoorMessage {
  std::uint32_t magic = kDoorMagic;
  std::uint16_t version = kDoorVersion;
  DoorKind kind{};
  union {
    DoorHolder holder;
    DoorYielded yielded{};
  };
};

}  // namespace rota::protocol
