// Modelled time, in nanoseconds since the machine's state was made.
//
// The real clock is CLOCK_MONOTONIC divided by the time scale (real seconds per modelled second). With a scale of 0
// nothing waits, and time is the real one.
//
// The virtual clock (ROTA_SIM_CLOCK=virtual, one process) is a counter, so a program's modelled times are the same in
// every run. Of the threads that it knows (the streams' own ones, and each thread of the program that has called the
// driver) one has the turn; the others are blocked here, until a time or until something is so. Whoever blocks hands
// the turn to the one that is due first (streams before the program's threads at the same time, older ones first), and
// time jumps to when that is. So time goes on only when nobody can go on in it. A call of the driver costs its thread a
// little time; what the program does between its calls costs none. Code of the program can block or spin outside of
// the driver: a watchdog then takes its turn away until it comes back. The driver's own code and kernels keep their
// turn while the machine lets them wait, up to a minute, so a busy machine changes no times.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace rota::sim {

class Clock {
 public:
  virtual ~Clock() = default;

  virtual int64_t now() = 0;
  virtual void sleep_until(int64_t when) = 0;
  // Until the predicate is so. It is asked under the clock's lock, or often, by any thread: it must be short, and use
  // neither the clock nor what belongs to the calling thread.
  virtual void wait(const std::function<bool()>& predicate) = 0;
  virtual bool is_virtual() const { return false; }
  // How late a thread of this machine may wake up, in modelled time: who is that late has not been idle.
  virtual int64_t jitter() const { return 1000; }

  // A thread of the program calls the driver, which takes so long. Nothing on the real clock.
  virtual void call(int64_t nanoseconds) {}
  // The call returns to the program.
  virtual void returned() {}

  // Threads of streams. The thread that starts one says so (enlist), the new one begins with enter() and ends with
  // leave(), so that its first task does not depend on how soon it runs.
  virtual uint64_t enlist() { return 0; }
  virtual void enter(uint64_t number) {}
  virtual void leave() {}
  // What a thread blocked here waits for may have become so, by a thread that the clock may not know.
  virtual void kick() {}

  // This thread runs code of the program; see ProgramCode.
  virtual void program_code(bool begins) {}
};

// Real clock: `epoch` is a CLOCK_MONOTONIC time at which modelled time was 0.
std::unique_ptr<Clock> make_real_clock(double scale, int64_t epoch);
std::unique_ptr<Clock> make_virtual_clock();

// The process's clock: the real one at scale 1 until attaching to a state decides.
Clock& process_clock();
void set_process_clock(std::unique_ptr<Clock> clock);
// In a forked child nobody would ever give it the turn.
void forget_process_clock();

// Where a stream's thread stands in modelled time. On the real clock a thread wakes up late, by chance: what it does
// next begins where the last thing ended and not when it woke up. 0: this thread is no stream's.
int64_t& thread_timeline();
// After a wait or code of the program, which take real time.
void catch_up_timeline();

// While one lives, this thread runs code of the program inside of a call or a stream's task.
class ProgramCode {
 public:
  ProgramCode() { process_clock().program_code(true); }
  ~ProgramCode() {
    process_clock().program_code(false);
    catch_up_timeline();
  }
  ProgramCode(const ProgramCode&) = delete;
  ProgramCode& operator=(const ProgramCode&) = delete;
};

int64_t monotonic_nanoseconds();

}  // namespace rota::sim
