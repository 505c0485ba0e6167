// Listeners that the process which starts rotad has made for it, as systemd does for socket units (sd_listen_fds(3)).
// They outlive this process: programs that connect between two rotads wait for the second.
#pragma once

#include <string>

#include "scheduler/base/descriptor.h"
#include "scheduler/base/result.h"

namespace rota::server {

struct Inherited {
  struct Listener {
    Descriptor socket;  // empty: there is none
    std::string path;
  };
  Listener clients;  // FileDescriptorName=clients
  Listener control;  // FileDescriptorName=control
};

// Takes them from LISTEN_FDS, LISTEN_PID and LISTEN_FDNAMES, which programs that this one starts do not inherit. The
// error names what is no listener of rotad's.
Result<Inherited> take_inherited();

}  // namespace rota::server
