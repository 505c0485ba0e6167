#include "runtime/monitor/monitor.h"

#include <sys/prctl.h>

#include <bit>
#include <cstdlib>
#include <cstring>

#include "generated/driver_real.h"
#include "runtime/account/account.h"
#include "runtime/core/log.h"
#include "runtime/core/undo.h"
#include "runtime/driver/gpu_number.h"
#include "runtime/driver/stream.h"
#include "runtime/gate/reach_check.h"

namespace rota::monitor {

using namespace std::chrono_literals;
using protocol::Kind;
using protocol::Message;

namespace {

// How long a thread that the open gate has woken may take to run, since others may use the CPUs. A thread in a signal
// handler may take for ever. A judgment.
constexpr turn::Time kWakes = 50ms;

// The largest GPU that rotad accepts (scheduler/server/decode.cpp).
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 48;

// The name that people know the process by: the notebook whose kernel it is, or the Slurm job.
std::string name_from_environment() {
  // NOLINTBEGIN(concurrency-mt-unsafe)
  if (const char* notebook = std::getenv("JPY_SESSION_NAME")) return protocol::as_session_name(notebook);
  if (const char* job = std::getenv("SLURM_JOB_ID")) return protocol::as_session_name(std::string("Slurm job ") + job);
  // NOLINTEND(concurrency-mt-unsafe)
  return {};
}

// Read once: the program may change its environment.
std::vector<protocol::SessionEntry> sessions_from_environment() {
  const char* text = std::getenv("ROTA_SESSION");  // NOLINT(concurrency-mt-unsafe)
  if (text == nullptr) return {};
  if (auto sessions = protocol::parse_sessions(text)) {
    if (!sessions->empty() && sessions->back().name.empty()) sessions->back().name = name_from_environment();
    return *sessions;
  }
  log::warn(
      "ROTA_SESSION is '{}', which is not a value that `rota run` sets: its limits cannot be read, so every allocation "
      "is refused; unset it",
      text);
  return {{.id = "unknown", .device_bytes = 0, .host_bytes = 0}};
}

bool wants_to_wait() {
  const char* value = std::getenv("ROTA_WAIT");  // NOLINT(concurrency-mt-unsafe)
  return value != nullptr && std::strcmp(value, "1") == 0;
}

}  // namespace

Monitor::Monitor(gate::Gate& gate, driver::Contexts& contexts, memory::Residency& memory,
                 std::chrono::nanoseconds for_now_patience)
    : gate_(gate),
      contexts_(contexts),
      memory_(memory),
      sessions_(sessions_from_environment()),
      service_(wants_to_wait()),
      places_(memory),
      reached_(places_, contexts),
      graphs_(reached_),
      gang_(sessions_.empty() ? std::string() : sessions_.back().id),
      usage_(memory, bell_),
      budget_(memory, bell_),
      out_of_memory_(gate, contexts, memory, budget_, published_, rooms_, usage_, bell_, {served_, stopping_},
                     for_now_patience) {
  tasks_.push_back(std::make_unique<Task>(gate, contexts));
  gate_.set_attendant(this);
  keeper_.close();
  memory_.set_turns(&memory_turns_);
}

// --- the program's threads

void Monitor::context_made(api::CUcontext context, int device, bool primary) {
  const bool is_new = contexts_.add(context, device, primary);
  touch(device);
  if (is_new && device >= 0 && device < memory::kMaxDevices) budget_.context_made(device);
}

// The first call makes the GPU one that this process takes turns on.
void Monitor::touch(int device) {
  if (device < 0 || device >= memory::kMaxDevices) return;
  const std::uint64_t bit = std::uint64_t{1} << device;
  if ((devices_seen_.fetch_or(bit, std::memory_order_acq_rel) & bit) == 0) {
    client::Conversation::Gpu gpu;
    gpu.device = device;
    api::CUuuid uuid{};
    if (real::cuDeviceGetUuid_v2(&uuid, device) != api::CUDA_SUCCESS) real::cuDeviceGetUuid(&uuid, device);
    static_assert(sizeof uuid == sizeof gpu.description.uuid);
    std::memcpy(&gpu.description.uuid, &uuid, sizeof uuid);
    gpu.description.number = driver::find_gpu_number(device);
    std::size_t total = 0;
    if (real::cuDeviceTotalMem_v2(&total, device) != api::CUDA_SUCCESS) total = 0;
    gpu.unusable = total == 0 || total > kMostBytes;
    if (gpu.unusable) {
      unusable_devices_.fetch_or(bit, std::memory_order_acq_rel);
      log::warn("no turns on GPU {}: the driver reports {} bytes of memory for it; programs on it run without rotad",
                driver::gpu_number(device), total);
    }
    gpu.description.total_bytes = total;
    real::cuDeviceGetName(gpu.description.name, static_cast<int>(protocol::kNameLength), device);
    usage_.set_total(device, total);
    account::touches(device, &uuid, gpu.description.name, total);
    published_.set_total(device, total);
    const std::lock_guard lock(new_gpus_mutex_);
    new_gpus_.push_back(gpu);
  }
  gate_.count(gate::bit_of(device));
  if (gate::checks_reached_calls() && several()) gate_.set_sorted(true);
  start();
  if ((unusable_devices_.load(std::memory_order_acquire) & bit) == 0) budget_.limit(device);
  bell_.ring();
}

void Monitor::wait_until_served_is_known(int device) {
  if (device < 0 || device >= memory::kMaxDevices || !served()) return;
  const std::uint64_t bit = std::uint64_t{1} << device;
  const bool asked = (devices_seen_.load(std::memory_order_acquire) & bit) != 0;
  if (!asked || (unusable_devices_.load(std::memory_order_acquire) & bit) != 0) return;
  service_.wait_until_known(device, waiting_);
}

// The first context on a GPU, for which the driver has no memory.
void Monitor::make_room_for_context(int device, FunctionRef<bool()> again) {
  if (device < 0 || device >= memory::kMaxDevices || gate::may_not_wait() || contexts_.captures() != 0) return;
  touch(device);
  wait_until_served_is_known(device);  // until then others are not asked to evict memory
  out_of_memory_.retry_context(device, again);
}

void Monitor::make_room(FunctionRef<bool()> again) {
  api::CUdevice device = -1;
  if (real::cuCtxGetDevice(&device) == api::CUDA_SUCCESS) out_of_memory_.retry_call(device, again);
}

std::string Monitor::awaited() const {
  if (!service_.waits()) return client::who_holds();
  const std::string why = service_.reason();
  return "a rotad that serves the GPU (ROTA_WAIT=1)" + (why.empty() ? ": start one, or use `rota run`" : ": " + why);
}

void Monitor::arrived() {
  bell_.ring();
}

void Monitor::interrupted(int device) {
  const gate::Devices bit = gate::bit_of(device);
  if ((interrupted_.fetch_or(bit) & bit) == 0) bell_.ring();
}

// A context that rota did not see is noticed here at the latest.
gate::Devices Monitor::reached(const driver::Call& call) {
  const gate::Reached::Answer answer = reached_.by(call);
  if (answer.context != nullptr && !touches(answer.device)) context_made(answer.context, answer.device, false);
  if (call.reaches == driver::Reaches::kGraph) return with_memory(answer.devices | graphs_.of_executable(call.first));
  const bool copies = call.reaches != driver::Reaches::kNoOther && call.has_stream && contexts_.captures() != 0;
  if (copies && driver::captures(call.stream, call.per_thread)) graphs_.copies(answer.works, answer.memory);
  return with_memory(answer.devices);
}

gate::Devices Monitor::reached_at_once(const driver::Call& call) {
  const bool noted = call.reaches != driver::Reaches::kNoOther && contexts_.captures() != 0;
  return noted ? 0 : reached_.at_once(call);
}

// Work of these GPUs also waits for memory of other GPUs that it may use and that is out of place (others_closed()
// cannot always wait).
gate::Devices Monitor::with_memory(gate::Devices devices) const {
  const gate::Devices out = gate::out_of_place.load() & ~devices;
  return out == 0 ? devices : devices | (out & memory_.reachable(devices));
}

void Monitor::couples(gate::Devices devices) {
  if (couplings_->ask(devices & touched(), turn::Couplings::When::kAnyway, now())) bell_.ring();
}

bool Monitor::may_submit(const driver::Call& call) {
  // A mark recorded in a capture would become part of it.
  return contexts_.captures() != 0 || (timing_.inside() ? gate::count(call) : meter_.enter(call, now));
}

void Monitor::shares(std::uint32_t what) {
  if ((shares_.fetch_or(what) & what) != what) usage_.tell();
}

bool Monitor::submits_nothing(const driver::Call& call) {
  // The call goes into a capture, but with addresses that the driver checks: memory allocated since may not be on the
  // GPU yet.
  if (contexts_.submits_nothing(call)) return contexts_.captures() == 0 || gate::out_of_place.load() == 0;
  // The first context, if rota did not see its creation (a library that bypasses it), is noticed here at the latest.
  // The driver refuses a call without a context: there is nothing to wait for.
  const bool known = started_.load(std::memory_order_acquire) && devices_seen_.load(std::memory_order_relaxed) != 0;
  return !known && !make_known(call);
}

bool Monitor::make_known(const driver::Call& call) {
  api::CUcontext current = nullptr;
  if (real::cuCtxGetCurrent(&current) != api::CUDA_SUCCESS) return false;
  api::CUcontext context = current;
  if (context == nullptr &&
      (!call.has_stream || real::cuStreamGetCtx(call.stream, &context) != api::CUDA_SUCCESS || context == nullptr)) {
    return false;
  }
  const bool pushed = current == nullptr;
  if (pushed && real::cuCtxPushCurrent_v2(context) != api::CUDA_SUCCESS) return false;
  api::CUdevice device = -1;
  const bool found = real::cuCtxGetDevice(&device) == api::CUDA_SUCCESS;
  if (pushed) real::cuCtxPopCurrent_v2(&current);
  if (!found || device < 0 || device >= memory::kMaxDevices) return false;
  context_made(context, device, false);
  return true;
}

// --- the monitor's thread

void Monitor::run() {
  gate::exempt_this_thread();
  // Measured: a query from a thread that is not in RELAXED mode invalidates a global capture.
  api::CUstreamCaptureMode mode = api::CU_STREAM_CAPTURE_MODE_RELAXED;
  real::cuThreadExchangeStreamCaptureMode(&mode);
  // Hand-overs wait for this thread, and by default the kernel may wake it 50 us late.
  prctl(PR_SET_TIMERSLACK, 1000UL);
  while (!stopping()) {
    const std::uint32_t heard = bell_.heard();
    // Read before the page: a change in the meantime then wakes the monitor at once.
    const std::uint32_t event_seen = rotad_ ? rotad_->event().load() : 0;
    rotad_.look_for_welcome();
    if (rotad_) rotad_.read_messages();
    if (rotad_) {
      const auto waits = [](const auto& task) { return task->machine.phase() == turn::Phase::kWaiting; };
      rotad_.hang_up_if_unread(now(), std::ranges::any_of(tasks_, waits));
    }
    // Memory that arrived although this process already had what it needs.
    const bool lacks = std::ranges::any_of(
        tasks_, [this](const auto& task) { return task->machine.grant() != 0 && !memory_.in_place(task->devices); });
    if (rotad_ && !lacks) rotad_->drop_extents();
    add_gpus();
    if (rotad_) rotad_.announce_gpus();
    if (rotad_) rotad_.send_asks();
    if (rotad_) rotad_.send_introductions();
    if (rotad_) rotad_.send_room_requests();
    recouple();
    tell_gpus();
    look_outside();
    look_at_tasks();
    sort_calls();
    answer_account();
    meter();
    if (exits_.load() && stops_at_exit()) return;
    const bool holds = std::ranges::any_of(tasks_, [](const auto& task) { return task->holds(); });
    const bool runs = std::ranges::any_of(tasks_, [](const auto& task) { return task->runs(); });
    const bool watches = std::ranges::any_of(tasks_, [](const auto& task) { return task->machine.watches_gpu(); });
    // Nobody waits, so nothing drains; but memory may have to be evicted.
    const bool undisturbed = holds && !watches && !timing_.in_flight();
    // What the program freed before it paused no longer belongs to it.
    if (undisturbed && chores_.sweep.due(now())) memory_.sweep_deferred();
    undo_what_was_left();
    keep_to_host_share();
    const auto has_unneeded = [this] { return memory_.has_deferred() || has_unneeded_host(); };
    const bool collects = (undisturbed && has_unneeded()) || (runs && host_pauses_.presses(now()));
    if (collects && host_pauses_.due(now())) collect_if_idle();
    if (all_still() && memory_.kept_host_bytes() != 0) give_host_back_if_low();
    if (!stopping() && !prepare_host()) sleep(heard, event_seen);
  }
  gate_.set_metered(false);
  keeper_.open_for_good();
}

void Monitor::look_at_tasks() {
  for (const auto& task : tasks_) {
    feed(*task, look(*task));
    look_at_activity(*task);
  }
}

// Steps a task's machine with an event and with the events that its actions cause.
void Monitor::feed(Task& task, const turn::Event& event) {
  task.due.push_back(event);
  while (!task.due.empty()) {
    const turn::Event next = task.due.front();
    task.due.pop_front();
    task.actions = task.machine.step(next, now());
    publish_room();
    publish_pins(task);
    task.sampler.granted(task.machine.grant(), now());
    for (const turn::Action& action : task.actions) carry_out(task, action);
  }
}

// Calls that waited for memory, and that their threads have left without returning.
void Monitor::undo_what_was_left() {
  if (!chores_.undo.due(now())) return;
  if (!undo_left_calls()) return;
  for (gate::Devices rest = touched(); rest != 0; rest &= rest - 1) usage_.changed(std::countr_zero(rest));
  budget_.changed();
}

// For what concerns all tasks: each learns of it at its next poll.
void Monitor::to_all(const turn::Event& event) {
  for (const auto& task : tasks_) task->due.push_back(event);
}

void Monitor::carry_out(Task& task, const turn::Action& action) {
  Message message;
  switch (action.act) {
    case turn::Act::kOpen:
      // Otherwise an allocation has just ended up out of place.
      if (!open(task)) {
        task.due.push_back(look(task));
      } else {
        task.opened_at = now();
        task.sampler.opened(task.opened_at);
      }
      break;
    case turn::Act::kClose:
      keeper_.close(task.devices);
      task.sampler.closed(now());
      break;
    case turn::Act::kWant:
      message.kind = Kind::kWant;
      message.body.want = {.gpus = action.gpus,
                           .running = action.running ? 1U : 0U,
                           .padding = 0,
                           .urgent = action.urgent ? 1U : 0U,
                           .alone = action.alone ? 1U : 0U,
                           .task = task.served};
      rotad_.send(message);
      break;
    case turn::Act::kGiveBack:
      task.sampler.count_calls(now());
      message.kind = Kind::kGiveBack;
      message.body.give_back = {
          .grant = action.grant, .gpu = static_cast<std::uint32_t>(std::countr_zero(task.served)), .task = task.served};
      rotad_.send(message);
      break;
    case turn::Act::kConnect:
      rotad_.connect();
      break;
    case turn::Act::kHangUp:
      rotad_.hang_up();
      break;
    case turn::Act::kMark:
      switch (contexts_.mark(task.devices)) {
        case driver::Contexts::Mark::kMarked:
          task.due.push_back(turn::event::MarkMade{turn::Marked::kYes});
          break;
        case driver::Contexts::Mark::kCapturing:
          task.due.push_back(turn::event::MarkMade{turn::Marked::kCapturing});
          break;
        case driver::Contexts::Mark::kBusy:
          task.due.push_back(turn::event::MarkMade{turn::Marked::kBusy});
          break;
        case driver::Contexts::Mark::kUnknown:
          task.due.push_back(turn::event::MarkMade{turn::Marked::kUnknown});
          break;
      }
      break;
    case turn::Act::kAskRoom:
      rotad_.ask_room(action.gpus, task.machine.grant());
      break;
    case turn::Act::kBringBack:
      task.due.push_back(bring_memory_back(task));
      break;
    case turn::Act::kMoveOut:
      move_out_of_the_way(task, action.gpus);
      break;
    case turn::Act::kReport:
      for (const client::Conversation::Gpu& gpu : rotad_.gpus()) {
        if (task.has(gpu.device)) usage_.set_gang_rest(gpu.device, action.word);
      }
      rotad_.send_news();  // the other members wait for it
      break;
    case turn::Act::kAdmit:
      keeper_.admit(task.devices);
      break;
    case turn::Act::kDismiss:
      gate_.withdraw(task.devices);
      break;
    case turn::Act::kCollect:
      memory_.sweep_deferred();
      if (all_still() && (memory_.has_deferred() || has_unneeded_host())) collect();
      break;
    case turn::Act::kSay:
      say(task, action);
      break;
  }
}

// While the monitor waits for memory to move, other processes need to know what this one needs, and its threads what
// they may have.
bool Monitor::stops_waiting() {
  if (rotad_) rotad_.read_messages();
  rotad_.send_news();
  if (rotad_) rotad_.send_asks();
  return stopping();
}

turn::event::Look Monitor::look(Task& task) {
  turn::event::Look seen;
  const turn::Machine& machine = task.machine;
  if (rotad_) seen.lease = rotad_->lease(task.served);
  // Notices threads that died inside; does not wait.
  const bool drains = machine.phase() == turn::Phase::kDraining || machine.finishes();
  if (drains) gate_.wait_until_empty(std::chrono::steady_clock::now(), task.devices);
  publish_room();
  seen.lacking = rotad_.lacking(task.devices);
  seen.unasked = rotad_.unasked(task.devices, task.machine.grant());
  // Its work may use memory of other GPUs.
  const memory::Devices reachable = memory_.reachable(task.devices);
  seen.resident = memory_.in_place(reachable);
  if (!seen.resident && memory_.in_place(task.devices))
    couplings_->ask(reachable, turn::Couplings::When::kAtOnce, now());
  // Read before the traffic: a thread that continues from there is inside.
  const bool wakes = machine.gate_open() && now() - task.opened_at < kWakes;
  seen.about_to_call = gate_.held_up(task.devices) + (wakes ? gate_.standing(task.devices) : 0);
  const gate::Gate::Traffic traffic = gate_.traffic(task.devices);
  seen.calls = traffic.calls;
  seen.inside = traffic.inside;
  seen.not_at_gate = machine.grant() != 0 ? budget_.waiting() : 0;
  seen.standing = gate_.standing(task.devices) + seen.not_at_gate;
  seen.stand_elsewhere = tasks_.size() > 1 && gate_.standing(~task.devices) != 0;
  seen.interrupted = (interrupted_.load() & task.devices) != 0;
  if (&task == tasks_.front().get()) measured_ = look_at_timing();
  seen.measures = measured_.measures;
  seen.alone = measured_.alone;
  seen.sharer_waits = rotad_ && (rotad_->watch(task.served) & protocol::kWatchSharers) != 0;
  // Whatever accesses that memory is in effect waiting for it.
  if ((reached_from_outside_ || kept()) && !seen.resident) {
    ++seen.standing;
    ++seen.not_at_gate;
  }
  if (machine.watches_gpu()) {
    const driver::Contexts::Progress progress = contexts_.progress(task.devices);
    seen.looked = progress.looked;
    seen.done = progress.done;
    seen.reached = progress.reached;
  }
  return seen;
}

}  // namespace rota::monitor
