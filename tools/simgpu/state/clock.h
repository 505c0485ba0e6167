// Modelled time, in nanoseconds since the machine's state was created.
//
// The real clock is CLOCK_MONOTONIC divided by the time scale (real seconds per modelled second). With a scale of 0
// nothing waits, and modelled time is real time.
//
// The virtual clock (ROTA_SIM_CLOCK=virtual, one process) is a counter, so a program's modelled times are the same in
// every run. One of the threads that it knows (the streams' own threads, and each thread of the program that has called
// the driver) has the turn; the others are blocked here until a time or a condition. A thread that blocks hands the
// turn to the one that is due first (at the same time, streams before the program's threads, then older ones first),
// and time jumps to that moment. So time advances only when no thread can run. A driver call costs its thread a little
// time; what the program does between calls costs none. The program's code can block or spin outside the driver: a
// watchdog then takes its turn away until it returns. The driver's own code and kernels keep their turn while the
// machine makes them wait, up to a minute, so a busy machine does not change modelled times.
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
  // Waits until the predicate is true. Any thread may evaluate it, under the clock's lock or often: it must be short,
  // and must use neither the clock nor state of the calling thread.
  virtual void wait(const std::function<bool()>& predicate) = 0;
  virtual bool is_virtual() const { return false; }
  // How late a thread of this machine may wake up, in modelled time: a thread that is this late has not been idle.
  virtual int64_t jitter() const { return 1000; }

  // A thread of the program calls the driver, which takes this long. Does nothing on the real clock.
  virtual void call(int64_t nanoseconds) {}
  // The call returns to the program.
  virtual void returned() {}

  // Stream threads. The starting thread calls enlist(); the new one begins with enter() and ends with leave(). So its
  // first task does not depend on how soon it runs.
  virtual uint64_t enlist() { return 0; }
  virtual void enter(uint64_t number) {}
  virtual void leave() {}
  // The condition of a thread blocked here may have become true, through a thread that the clock may not know.
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
// In a forked child no thread would ever give it the turn.
void forget_process_clock();

// A stream thread's position in modelled time. On the real clock a thread wakes up late by a random amount: its next
// operation begins where the last one ended, not when it woke up. 0: this is not a stream thread.
int64_t& thread_timeline();
// After a wait or code of the program, which take real time.
void catch_up_timeline();

// While one exists, this thread runs code of the program inside a call or a stream's task.
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
