// Which GPUs of a client make up which of its tasks (protocol.h). The core knows nothing of processes: each task is one
// of its clients, by a number of its own. Limits, pages and connections are the process's.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "scheduler/core/event.h"

namespace rota::server {

// The GPUs of a mask, for range-based loops.
class GpuSet {
 public:
  class Iterator {
   public:
    explicit Iterator(scheduler::GpuMask rest) : rest_(rest) {}
    scheduler::GpuIndex operator*() const { return static_cast<scheduler::GpuIndex>(std::countr_zero(rest_)); }
    Iterator& operator++() {
      rest_ &= rest_ - 1;
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    scheduler::GpuMask rest_;
  };

  explicit GpuSet(scheduler::GpuMask mask) : mask_(mask) {}
  Iterator begin() const { return Iterator(mask_); }
  Iterator end() const { return Iterator(0); }
  bool empty() const { return mask_ == 0; }
  bool contains(scheduler::GpuIndex gpu) const { return gpu < protocol::kMaxGpus && scheduler::has(mask_, gpu); }
  scheduler::GpuMask mask() const { return mask_; }

 private:
  scheduler::GpuMask mask_;
};

// Set for as long as it exists, however that ends; also within another one.
class Within {
 public:
  explicit Within(bool& set) : set_(set), before_(std::exchange(set, true)) {}
  ~Within() { set_ = before_; }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;

 private:
  bool& set_;
  bool before_;
};

// What the core was told last of a client's activity: calls, samples, switches, shares.
using LastActivity = std::array<std::uint64_t, 4>;

struct Task {
  scheduler::ClientId id = 0;  // the core's client
  scheduler::GpuMask gpus = 0;
  std::uint32_t last_grant = 0;  // the highest number of a grant that one of these GPUs has had
  scheduler::Time next_turn{};   // as it was last told
  LastActivity activity{};
  bool withdrawn = false;  // it was told to give back at once what it holds, so that it can join its gang
  bool overdue = false;    // it holds what it should have given back for another rotad
  // Of a member of a gang, whose client in the core is the gang's.
  std::uint32_t gang = 0;         // 0: of none
  bool wants = false;             // it has asked for the gang's next turn,
  scheduler::Time wants_since{};  // which was then, modelled
  bool gave_back = false;         // its part of the gang's grant
  // What it has on each GPU, of which the core knows the sums over all members.
  struct Part {
    scheduler::event::Usage usage{};
    scheduler::Bytes context = 0;
    scheduler::Bytes asked = 0;
  };
  std::map<scheduler::GpuIndex, Part> parts{};
};

class Tasks {
 public:
  // Each GPU that the client has added is in exactly one task.
  GpuSet gpus() const;
  // Null: the client has not added this GPU. Valid until the tasks change.
  Task* on(scheduler::GpuIndex gpu);
  const Task* on(scheduler::GpuIndex gpu) const;
  // The core's number of that task; 0, which no task has: the client has not added this GPU.
  scheduler::ClientId id_on(scheduler::GpuIndex gpu) const;
  // The task of exactly these GPUs; null: there is none.
  Task* of(scheduler::GpuMask gpus);
  Task* with_id(scheduler::ClientId id);
  std::vector<Task>::iterator begin() { return tasks_.begin(); }
  std::vector<Task>::iterator end() { return tasks_.end(); }
  std::vector<Task>::const_iterator begin() const { return tasks_.begin(); }
  std::vector<Task>::const_iterator end() const { return tasks_.end(); }

  // Adds a task with a GPU that the client has not added before.
  Task& add(scheduler::ClientId id, scheduler::GpuIndex gpu);
  void forget(scheduler::GpuIndex gpu);

  struct Change {
    std::vector<Task> ended;
    scheduler::ClientId grown = 0;  // a task that has got more GPUs; 0: none
    scheduler::GpuMask came = 0;    // to that one
    std::vector<Task> begun;
  };
  // Makes one task of these GPUs, all of which the client has added. Every other GPU of a task that has lost some is a
  // task by itself afterwards. A task keeps its number, and with it its history in the core, if it only grows: the
  // core's clients cannot lose a GPU. It has to be the one with the highest grant, since no GPU has a number twice in a
  // row.
  Change couple(scheduler::GpuMask gpus, const std::function<scheduler::ClientId()>& new_number);

 private:
  std::vector<Task> tasks_;
  // Numbers of tasks that have ended, for new tasks: a client that couples its GPUs again and again does not use up the
  // numbers.
  std::vector<scheduler::ClientId> numbers_;
};

}  // namespace rota::server
