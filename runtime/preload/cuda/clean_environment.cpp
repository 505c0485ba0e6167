#include "runtime/preload/cuda/clean_environment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

namespace rota::thin {
namespace {

// The variables stay here: the environment refers to them.
char lines[16384];

}  // namespace

void restore_environment() noexcept {
  if (getenv("ROTA_SESSION") != nullptr || getauxval(AT_SECURE) != 0) return;
  const int saved = errno;
  const int file = open(ROTA_SESSION_FILE, O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    size_t length = 0;
    for (ssize_t got = 1; got > 0 && length < sizeof lines - 1;) {
      got = read(file, lines + length, sizeof lines - 1 - length);
      if (got < 0 && errno == EINTR)
        got = 1;
      else if (got > 0)
        length += static_cast<size_t>(got);
    }
    close(file);
    lines[length] = '\0';
    for (char* line = lines; *line != '\0';) {
      char* const end = strchr(line, '\n');
      if (end == nullptr) break;  // cut off
      *end = '\0';
      char* const equals = strchr(line, '=');
      if (equals != nullptr) {
        *equals = '\0';
        const bool there = getenv(line) != nullptr;
        *equals = '=';
        // What a runner has set itself stays.
        if (!there) putenv(line);
      }
      line = end + 1;
    }
  }
  errno = saved;
}

}  // namespace rota::thin
