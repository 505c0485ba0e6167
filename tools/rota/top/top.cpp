// `rota top [--delay S]`. One thread asks rotad and NVML, which may take seconds; another one has the terminal, so that
// keys and signals are answered at once.
#include "tools/rota/top/top.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>
#include <mutex>
#include <thread>

#include "scheduler/base/descriptor.h"
#include "tools/rota/run/output.h"
#include "tools/rota/run/signals.h"
#include "tools/rota/status/look.h"
#include "tools/rota/status/status.h"
#include "tools/rota/top/terminal.h"

namespace rota::tool {
namespace {

using top::After;
using top::Finding;

// After this pause an escape is a key, and not the beginning of one.
constexpr int kEscapePauseMs = 50;

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH};

// What the asking thread leaves for the other one. The asking thread may run longer, inside NVML.
struct Mailbox {
  std::mutex mutex;
  std::optional<Finding> latest;
  Descriptor filled{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

void ask_again_and_again(const std::shared_ptr<Mailbox>& mailbox, double every) {
  while (true) {
    Looked looked = look_at_rotad();
    {
      const std::lock_guard lock(mailbox->mutex);
      mailbox->latest = Finding{std::move(looked.status), std::move(looked.machine), std::move(looked.messages)};
    }
    eventfd_write(mailbox->filled.get(), 1);
    std::this_thread::sleep_for(std::chrono::duration<double>(every));
  }
}

class LiveView {
 public:
  LiveView(std::shared_ptr<Mailbox> mailbox, int signals) : mailbox_(std::move(mailbox)), signals_(signals) {}

  // Until a key or a signal ends it; returns how the command is to end.
  int run() {
    view_.daemon.clear();
    view_.problem = "asking rotad";
    while (!ending_) {
      if (!draw()) return 1;
      std::array<pollfd, 4> ready = {{{STDIN_FILENO, POLLIN, 0},
                                      {signals_, POLLIN, 0},
                                      {mailbox_->filled.get(), POLLIN, 0},
                                      {terminal_.taking(), POLLOUT, 0}}};
      const int count = poll(ready.data(), ready.size(), keys_.waits() ? kEscapePauseMs : -1);
      if (count < 0 && errno != EINTR) return 1;
      if (count == 0) press_all(keys_.pause());
      if (ready[1].revents != 0) take_signal();
      if (ready[2].revents != 0) take_finding();
      if (ready[0].revents != 0 && !ending_) read_keys();
    }
    return *ending_;
  }

 private:
  bool draw() {
    top::Frame frame = lay_out(view_, choices_, terminal_.screen());
    choices_ = std::move(frame.choices);
    return terminal_.show(frame.lines);
  }

  void press_all(const std::vector<top::Pressed>& keys) {
    for (const top::Pressed& key : keys) {
      const After after = press(choices_, key);
      if (after == After::kEnd) ending_ = 0;
      if (after == After::kRedraw) terminal_.take();
      choices_ = lay_out(view_, choices_, terminal_.screen()).choices;
    }
  }

  void read_keys() {
    std::array<char, 256> bytes{};
    const ssize_t length = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (length > 0) return press_all(keys_.read({bytes.data(), static_cast<std::size_t>(length)}));
    if (length == 0 || (errno != EINTR && errno != EAGAIN)) ending_ = 1;  // the terminal has gone
  }

  void take_signal() {
    signalfd_siginfo signal{};
    if (read(signals_, &signal, sizeof signal) != static_cast<ssize_t>(sizeof signal)) return;
    switch (signal.ssi_signo) {
      case SIGTSTP:
        terminal_.stop();
        break;
      case SIGCONT:  // after a SIGSTOP
        terminal_.take();
        break;
      case SIGWINCH:
        terminal_.forget();
        break;
      case SIGINT:
        ending_ = 0;
        break;
      default:
        ending_ = ended_by(static_cast<int>(signal.ssi_signo));
    }
  }

  void take_finding() {
    eventfd_t count = 0;
    eventfd_read(mailbox_->filled.get(), &count);
    std::optional<Finding> finding;
    {
      const std::lock_guard lock(mailbox_->mutex);
      std::swap(finding, mailbox_->latest);
    }
    if (finding && !choices_.paused) view_ = viewer_.view(*finding, std::chrono::steady_clock::now());
  }

  const std::shared_ptr<Mailbox> mailbox_;
  const int signals_;
  top::Terminal terminal_;
  top::KeyReader keys_;
  top::Viewer viewer_;
  top::View view_;
  top::Choices choices_;
  std::optional<int> ending_;
};

int show_live(double every) {
  // Blocked in all threads from here on, and read one by one.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kSignals) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const Descriptor taken(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  const auto mailbox = std::make_shared<Mailbox>();
  if (!taken || !mailbox->filled) {
    write_message("rota top: too many files are open\n");
    return 1;
  }
  std::thread([mailbox, every] { ask_again_and_again(mailbox, every); }).detach();
  return LiveView(mailbox, taken.get()).run();
}

}  // namespace

void register_top(CLI::App& app) {
  auto every = std::make_shared<double>(2);
  CLI::App* command = app.add_subcommand(
      "top",
      "watch GPUs and programs in a live view: F1 shows the keys; without a capable terminal, as rota status --watch");
  add_seconds_option(*command, "-d,--delay", *every, "seconds between two updates (default 2)");
  command->callback(
      [every] { throw CLI::RuntimeError(top::is_capable_terminal() ? show_live(*every) : watch_status(*every)); });
}

}  // namespace rota::tool
