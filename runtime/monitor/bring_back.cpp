#include "runtime/monitor/bring_back.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "generated/driver_real.h"
#include "runtime/core/devices.h"
#include "runtime/driver/context.h"

namespace rota::monitor {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

// Moves under way, one per GPU: each in its own stream, with an event behind it.
class Moves {
 public:
  explicit Moves(driver::Contexts& contexts) : contexts_(contexts) {}

  // `start(stream)` submits moves to the stream, of some context of this GPU, and returns their bytes.
  template <typename Start>
  void add(int device, Start&& start) {
    Move move{.life = contexts_.any(device)};
    contexts_.within(move.life, [&] {
      if (real::cuStreamCreate(&move.stream, api::CU_STREAM_NON_BLOCKING) != api::CUDA_SUCCESS) return;
      bytes_ += start(move.stream);
      if (real::cuEventCreate(&move.event, api::CU_EVENT_DISABLE_TIMING) == api::CUDA_SUCCESS) {
        real::cuEventRecord(move.event, move.stream);
      }
    });
    if (move.stream != nullptr) all_.push_back(move);
  }
  std::uint64_t bytes() const { return bytes_; }

  // Waits until everything is in place or the time is over. Moves still under way then continue by themselves.
  void wait(Clock::time_point until, FunctionRef<bool()> stopping) {
    for (const Move& move : all_) {
      bool waiting = move.event != nullptr;
      for (std::chrono::nanoseconds pause = 50us; waiting && !stopping() && Clock::now() < until;) {
        // Takes the lock each time: the context may end during the wait, and stream and event with it.
        const auto looked =
            contexts_.within(move.life, [&] { waiting = real::cuEventQuery(move.event) == api::CUDA_ERROR_NOT_READY; });
        using Within = driver::Contexts::Within;
        if (looked == Within::kGone || looked == Within::kRefused) break;
        if (waiting) std::this_thread::sleep_for(pause);
        pause = std::min<std::chrono::nanoseconds>(pause * 2, 1ms);
      }
      contexts_.within(move.life, [&] {
        if (move.event != nullptr) real::cuEventDestroy_v2(move.event);
        real::cuStreamDestroy_v2(move.stream);
      });
    }
  }

 private:
  struct Move {
    driver::ContextLife life;
    api::CUstream stream = nullptr;
    api::CUevent event = nullptr;
  };

  driver::Contexts& contexts_;
  std::vector<Move> all_;
  std::uint64_t bytes_ = 0;
};

// The driver may need a part of the GPU's memory for itself besides: its total over this. A judgment.
constexpr std::uint64_t kBesides = 64;

// How long a move may take; `rate` in GB/s.
std::chrono::nanoseconds time_for(std::uint64_t bytes, std::uint64_t rate) {
  return 20ms + std::chrono::nanoseconds(bytes / rate);
}

// A context of rota's own, for the lifetime of this object: memory from pools may have outlived all of the program's
// contexts there, and has to be back before work runs on any GPU.
class OwnContext {
 public:
  explicit OwnContext(int device) {
    result_ = real::cuCtxCreate_v2(&context_, 0, device);
    if (result_ != api::CUDA_SUCCESS) context_ = nullptr;
    api::CUcontext popped = nullptr;
    if (context_ != nullptr) real::cuCtxPopCurrent_v2(&popped);
  }
  ~OwnContext() {
    if (context_ != nullptr) real::cuCtxDestroy_v2(context_);
  }
  OwnContext(const OwnContext&) = delete;
  OwnContext& operator=(const OwnContext&) = delete;
  api::CUcontext get() const { return context_; }
  // Why there is no context.
  api::CUresult result() const { return result_; }

 private:
  api::CUcontext context_ = nullptr;
  api::CUresult result_ = api::CUDA_SUCCESS;
};

// Moves extents of one GPU, in a stream of one of its contexts. If that context ends meanwhile, nothing has failed: the
// remaining extents can move in a stream of another one.
template <typename Move>
memory::Moved with_stream(driver::Contexts& contexts, memory::Residency& memory, int device, const ExchangeOf& exchange,
                          FunctionRef<bool()> stopping, FunctionRef<bool()> idle, const Move& move) {
  const driver::ContextLife life = contexts.any(device);
  std::optional<OwnContext> own;
  if (!life && contexts.none(device)) own.emplace(device);
  const api::CUcontext context = own ? own->get() : life.context;
  if (context == nullptr) {
    const bool refused = own && own->result() != api::CUDA_ERROR_OUT_OF_MEMORY;
    return {.failed = true, .error = refused ? own->result() : api::CUDA_SUCCESS};
  }
  bool ended = false;
  api::CUresult refused = api::CUDA_SUCCESS;
  const auto within = [&](FunctionRef<void()> step) {
    if (own) {
      const driver::PushedContext pushed(context);
      if (pushed) step();
      return static_cast<bool>(pushed);
    }
    for (;;) {
      const auto how = contexts.within(life, step, &refused);
      ended = ended || how == driver::Contexts::Within::kGone;
      if (how != driver::Contexts::Within::kBusy) return how == driver::Contexts::Within::kRan;
      std::this_thread::sleep_for(50us);  // a context is being made or destroyed
    }
  };
  const auto while_alive = [&](FunctionRef<void()> step) {
    if (!own) return contexts.while_alive(life, step);
    step();
    return true;
  };
  api::CUstream stream = nullptr;
  api::CUresult made = api::CUDA_SUCCESS;
  within([&] { made = real::cuStreamCreate(&stream, api::CU_STREAM_NON_BLOCKING); });
  // A full GPU has no memory for a stream either, and an eviction must not need any. No work of this process runs, so
  // the legacy stream waits for nothing; but it would end a capture.
  const bool full = made == api::CUDA_ERROR_OUT_OF_MEMORY;
  if (full && contexts.captures() != 0) return {.failed = true};
  if (made == api::CUDA_SUCCESS) made = refused;  // then it was not even tried
  if (!full && stream == nullptr) return {.failed = !ended, .error = made};
  memory::Moved all = move(memory::Move{.within = within,
                                        .stopping = stopping,
                                        .idle = idle,
                                        .while_alive = while_alive,
                                        .stream = stream,
                                        .exchange = exchange(device),
                                        .context = own ? nullptr : context});
  if (stream != nullptr) within([&] { real::cuStreamDestroy_v2(stream); });
  if (own) memory.own_context_ended(context);
  if (ended) {
    all.failed = false;
    all.error = api::CUDA_SUCCESS;
  }
  if (!ended && refused != api::CUDA_SUCCESS) {
    all.failed = true;
    all.error = refused;
  }
  return all;
}

// Memory of contexts that an error has ended permanently need not be moved any more: the program sees that error. Nor
// does memory that belongs to no context, if all of the GPU's contexts have ended like that. Returns the bytes that
// were on the GPU. No context ends during that: its handle would be the next one's, whose memory is in use.
std::uint64_t release_failed(driver::Contexts& contexts, memory::Residency& memory, int device) {
  std::uint64_t bytes = 0;
  contexts.while_all_live([&] {
    const std::vector<api::CUcontext> failed = contexts.failed(device);
    for (const api::CUcontext context : failed) bytes += memory.context_failed(context, device);
    if (!failed.empty() && std::find(failed.begin(), failed.end(), contexts.any(device).context) != failed.end()) {
      bytes += memory.context_failed(nullptr, device);
    }
  });
  return bytes;
}

}  // namespace

Left swap_out(driver::Contexts& contexts, memory::Residency& memory, const Destination& from,
              const ExchangeOf& exchange, FunctionRef<bool()> stopping) {
  const std::uint64_t released = release_failed(contexts, memory, from.device);
  if (released >= from.most) return {.bytes = released};
  const auto idle = [] { return true; };
  const auto all = with_stream(contexts, memory, from.device, exchange, stopping, idle,
                               [&](const auto& one) { return memory.evict(from.device, from.most - released, one); });
  return {.bytes = released + all.bytes + all.without_copy,
          .copied = all.bytes,
          .spared = all.spared,
          .failed = all.failed,
          .lacks_host = all.lacks_host};
}

Back bring_back(driver::Contexts& contexts, memory::Residency& memory, const std::vector<Destination>& destinations,
                const ExchangeOf& exchange, FunctionRef<bool()> stopping, FunctionRef<bool()> idle) {
  Back back;
  Devices devices = 0;
  for (const auto& [device, most] : destinations) {
    devices |= bit_of(device);
    if (memory.out_bytes(device) != 0) release_failed(contexts, memory, device);
    if (memory.out_bytes(device) == 0) continue;
    std::size_t free = 0;
    std::size_t total = 0;
    const Clock::time_point begun = Clock::now();
    const auto all =
        with_stream(contexts, memory, device, exchange, stopping, idle, [&, device = device](const auto& one) {
          if (memory.host_low() && idle()) one.within([&] { memory.give_host_back(UINT64_MAX, false); });
          memory.count_copies();
          if (const std::uint64_t excess = memory.host_excess(); excess != 0 && idle()) {
            one.within([&] { memory.give_host_back(excess, true); });
          }
          const auto brought = memory.restore(device, one);
          if (brought.lacking != 0) one.within([&] { real::cuMemGetInfo_v2(&free, &total); });
          return brought;
        });
    back.bytes += all.bytes;
    back.copied.push_back({device, all.bytes, Clock::now() - begun});
    back.taken_over += all.taken_over;
    back.some = back.some || all.bytes + all.without_copy != 0;
    if (all.error != api::CUDA_SUCCESS) back.error = all.error;
    const bool enough = free >= all.lacking + total / kBesides;
    if (all.lacking != 0) back.shortages.push_back({device, all.lacking, free, enough});
  }
  back.resident = memory.in_place(devices);
  if (!back.resident) return back;
  Moves moves(contexts);
  for (const auto& [device, most] : destinations) {
    if (memory.ledger().live_bytes(device) == memory.ledger().fixed_bytes(device)) continue;
    // Without such memory the driver is not called: the gate opens at once.
    const std::vector<memory::Allocation> ranges = memory.to_bring(device, most);
    if (ranges.empty()) continue;
    moves.add(device, [&, device = device](api::CUstream stream) { return memory.bring(device, stream, ranges); });
  }
  // 20 GB/s: well below the speed of the link, well above that of faults.
  moves.wait(Clock::now() + time_for(moves.bytes(), 20), stopping);
  return back;
}

std::uint64_t move_out(driver::Contexts& contexts, memory::Residency& memory, const std::vector<Destination>& from,
                       Clock::time_point latest, FunctionRef<bool()> stopping) {
  Moves moves(contexts);
  for (const auto& [device, most] : from) {
    moves.add(device, [&, device = device, most = most](api::CUstream stream) {
      return memory.move_out(device, stream, most);
    });
  }
  moves.wait(std::min(latest, Clock::now() + time_for(moves.bytes(), 10)), stopping);
  return moves.bytes();
}

}  // namespace rota::monitor
