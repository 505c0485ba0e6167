// Several copies of a program at once: started together, their output in files, waited for, or ended by a signal.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/rota/run/signals.h"

namespace rota::attempt {

// How one copy ended.
struct CopyEnd {
  int code = 0;    // as a shell says it: 128 + number if a signal ended it
  int signal = 0;  // the signal that ended it; 0: none
  double seconds = 0;
  std::string output;  // path of what it printed, on either stream
};

struct Together {
  std::vector<CopyEnd> copies;
  double seconds = 0;   // until the last one ended
  int interrupted = 0;  // the signal that came meanwhile: all have been ended. 0: none
  std::string problem;  // one line that says why not all could be started; then they have been ended
};

// While this object lives, signals wait for run_copies(). Signals that mean an end (Ctrl-C and similar ones) end the
// copies, a stop (Ctrl-Z) stops them with this process, and others are passed on to each copy. Only one at a time.
class SignalsTaken : public tool::TakenSignals {
 public:
  ~SignalsTaken() { hand_on(); }
};

// `program` becomes the program in a child process that has no input, no terminal and the signals as they were before
// they were taken; what it returns is the copy's exit code. The output goes to `stem`-1.log, -2.log, and so on.
// `started` is called once all have been forked, `ended` once none runs, unless a signal came. Processes that outlive
// their copy's first process are ended.
Together run_copies(const SignalsTaken& signals, unsigned copies, const std::string& stem,
                    const std::function<int()>& program, const std::function<void()>& started,
                    const std::function<void()>& ended);

}  // namespace rota::attempt
