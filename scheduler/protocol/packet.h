// Packets on rotad's socket, and the descriptors sent with them.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>

#include "scheduler/base/descriptor.h"

namespace rota::protocol {

// The largest number of descriptors in one packet: the two pages sent with a welcome.
inline constexpr std::size_t kMostDescriptors = 2;

// Sends `bytes` at `data` as one packet, with at most kMostDescriptors descriptors, which stay the caller's. `flags`
// and the result are as for sendmsg. Never raises SIGPIPE.
inline ssize_t write_packet(int socket, const void* data, std::size_t bytes, std::span<const int> descriptors,
                            int flags) {
  if (descriptors.size() > kMostDescriptors) {
    errno = EINVAL;
    return -1;
  }
  iovec body{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &body;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(item), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &header, flags | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

// Receives one packet into `bytes` at `data`, and as many of the descriptors that came with it as `received` can hold,
// kMostDescriptors at most; the kernel closes the others. `flags` and the result are as for recvmsg.
inline ssize_t read_packet(int socket, void* data, std::size_t bytes, std::span<Descriptor> received, int flags) {
  iovec body{data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &body;
  header.msg_iovlen = 1;
  const std::size_t room = std::min(received.size(), kMostDescriptors) * sizeof(int);
  ssize_t length;
  do {
    header.msg_control = room != 0 ? control : nullptr;
    // Not CMSG_SPACE: the kernel would put one more descriptor into its padding.
    header.msg_controllen = room != 0 ? CMSG_LEN(room) : 0;
    length = recvmsg(socket, &header, flags | MSG_CMSG_CLOEXEC);
  } while (length < 0 && errno == EINTR);
  const cmsghdr* item = length >= 0 ? CMSG_FIRSTHDR(&header) : nullptr;
  if (item == nullptr || item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) return length;
  int numbers[kMostDescriptors];
  const std::size_t came = item->cmsg_len - CMSG_LEN(0);
  std::memcpy(numbers, CMSG_DATA(item), std::min(came, room));
  for (std::size_t i = 0; i < std::min(came, room) / sizeof(int); ++i) received[i] = Descriptor(numbers[i]);
  return length;
}

}  // namespace rota::protocol
