// While this object exists, files that this process writes may grow: a program's `ulimit -f` is not meant for the few
// files that rota writes before the program starts. Where the limit cannot be raised, a write fails with EFBIG and
// raises no signal. The program gets the limit, and the signal's disposition, as they were.
#pragma once

#include <sys/resource.h>

#include <csignal>

namespace rota::tool {

class GrowingFiles {
 public:
  GrowingFiles() {
    if (getrlimit(RLIMIT_FSIZE, &before_) != 0 || before_.rlim_cur == RLIM_INFINITY) return;
    is_limited_ = true;
    // Only root may have more than the hard limit.
    const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
    const rlimit most{before_.rlim_max, before_.rlim_max};
    if (setrlimit(RLIMIT_FSIZE, &none) != 0) setrlimit(RLIMIT_FSIZE, &most);
    struct sigaction ignore{};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &ignore, &disposition_);
  }
  ~GrowingFiles() {
    if (!is_limited_) return;
    setrlimit(RLIMIT_FSIZE, &before_);
    sigaction(SIGXFSZ, &disposition_, nullptr);
  }
  GrowingFiles(const GrowingFiles&) = delete;
  GrowingFiles& operator=(const GrowingFiles&) = delete;

 private:
  rlimit before_{};
  struct sigaction disposition_{};
  bool is_limited_ = false;
};

}  // namespace rota::tool
