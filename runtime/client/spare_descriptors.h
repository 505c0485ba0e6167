// Descriptors that this process keeps for its next connection to rotad. When rotad is restarted, a program that has
// used up all that it may have (`ulimit -n`) could not reach the next one, and its evicted memory could not be
// restored.
//
// Each is a socket that is not connected, and so has an inode of its own: one that the program has closed (daemons
// close all descriptors), and whose number is a file of the program's now, is not closed here.
#pragma once

#include <array>
#include <cstddef>

#include "runtime/client/inherited_socket.h"

namespace rota::client {

class SpareDescriptors {
 public:
  static constexpr std::size_t kMost = 4;
  // A program that may have fewer in all has none to spare. A judgment.
  static constexpr std::size_t kLeastLimit = 64;
  // From here on, if they are free: programs rely on the low numbers being given out in order, and a table of
  // descriptors grows with its highest number.
  static constexpr int kFirst = 252;

  // Keeps so many, at most kMost, or as many as there are left.
  void fill(std::size_t count) noexcept;
  // Closes so many of them, for somebody who needs them now.
  void release(std::size_t count) noexcept;
  // How many there are that the program has not closed.
  std::size_t count() const noexcept;
  // In the child of a fork, too: touches no memory but this object's.
  void close_all() noexcept { release(kMost); }

 private:
  std::array<InheritedSocket, kMost> all_;
};

}  // namespace rota::client
