// Sockets to other processes by rotad's help (protocol::Kind::kIntroduce): for memory that one has exported and another
// opens. The program's threads ask; the monitor's thread talks to rotad.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "scheduler/base/descriptor.h"
#include "scheduler/protocol/protocol.h"

namespace rota::client {

class Introductions {
 public:
  using Clock = std::chrono::steady_clock;
  using Number = protocol::ProcessNumber;

  // --- the program's threads, outside the gate

  // From now on each rotad is told that this is the process's number. Returns whether this is the first call.
  bool announce(const Number& number);
  // Returns once rotad has been told, if there is one within that time.
  void wait_until_announced(Clock::time_point until);
  // Requests a socket to the process with this number. Returns the request's number.
  std::uint32_t ask(const Number& number);
  // A socket to it; nothing: rotad knows of none, or there was no answer in time. Ends the request.
  struct Answer {
    bool came = false;
    Descriptor socket;
  };
  Answer wait(std::uint32_t request, Clock::time_point until);
  // This process has memory of the one with this number open, or has it no longer: each rotad is told. With any locks
  // held. Returns whether there is anything new.
  bool opened(const Number& number, bool is);

  // --- the monitor's thread

  // What rotad has not been told yet.
  std::vector<protocol::Message> take_untold();
  // All of it has been sent.
  void told();
  void answered(std::uint32_t request, Descriptor&& socket);
  // Another rotad serves this process, and knows nothing of it.
  void connected();

 private:
  struct Request {
    Number number;
    bool told = false;
    Answer answer;
  };
  std::mutex mutex_;  // all fields
  std::condition_variable changed_;
  std::optional<Number> number_;
  bool taken_ = false;
  bool told_ = false;
  std::uint32_t last_ = 0;
  std::map<std::uint32_t, Request> requests_;
  std::map<Number, bool> opened_;  // whether rotad has been told
  std::vector<Number> closed_;     // of which rotad has been told only that they were opened
};

}  // namespace rota::client
