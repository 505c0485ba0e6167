#include "tools/rota/status/sharing.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "scheduler/base/byte_text.h"
#include "scheduler/base/uuid.h"
#include "scheduler/core/event.h"

namespace rota::tool {

using protocol::SharingReason;
using scheduler::Candidate;

namespace {

// The candidate applies to automatic mode.
Candidate in_force(const protocol::GpuRow& gpu) {
  if (gpu.reason == SharingReason::kMemory) return Candidate::kTurns;
  if (gpu.mode == protocol::Mode::kExclusive) return Candidate::kTurns;
  if (gpu.mode == protocol::Mode::kConcurrent) return Candidate::kTogether;
  return static_cast<Candidate>(gpu.candidate);
}

const char* candidate_name(Candidate candidate) {
  switch (candidate) {
    case Candidate::kTogether:
      return "all at once";
    case Candidate::kTurns:
      return "in turns";
    case Candidate::kLightOpen:
      return "light programs at any time, the others in turns";
  }
  return "unknown";
}

const char* reason_name(SharingReason reason) {
  switch (reason) {
    case SharingReason::kMode:
      return "mode";
    case SharingReason::kMemory:
      return "memory";
    case SharingReason::kFits:
      return "fits";
    case SharingReason::kAlone:
      return "alone";
    case SharingReason::kMeasuring:
      return "measuring";
    case SharingReason::kTrial:
      return "trial";
    case SharingReason::kFewContend:
      return "few contend";
    case SharingReason::kNoCollision:
      return "no collision";
    case SharingReason::kMemoryLately:
      return "memory lately";
    case SharingReason::kUnknown:
      break;
  }
  return nullptr;
}

std::string reason_text(const protocol::GpuRow& gpu) {
  const double trial = gpu.trial_permille / 1000.0;
  switch (gpu.reason) {
    case SharingReason::kMode:
      return fmt::format("rotad is in {} mode", gpu.mode == protocol::Mode::kExclusive ? "exclusive" : "concurrent");
    case SharingReason::kMemory:
      return "their memory does not fit together";
    case SharingReason::kFits:
      return "their memory fits, and the quantum is fixed";
    case SharingReason::kAlone:
      return "fewer than two of them have made calls lately";
    case SharingReason::kMeasuring:
      return "measuring which way is best";
    case SharingReason::kTrial:
      return in_force(gpu) == Candidate::kTurns ? fmt::format("the other way gave {:.2f} of what turns give", trial)
                                                : fmt::format("it gave {:.2f} of what turns give", trial);
    case SharingReason::kFewContend:
      return "fewer than two of them keep making calls";
    case SharingReason::kNoCollision:
      return "no two of them have kept the GPU busy at the same time so far";
    case SharingReason::kMemoryLately:
      return "a moment ago their memory did not fit together, so turns are not measured";
    case SharingReason::kUnknown:
      break;
  }
  return "";
}

bool measured(const protocol::GpuRow& gpu) {
  return gpu.reason == SharingReason::kMeasuring || gpu.reason == SharingReason::kTrial ||
         gpu.reason == SharingReason::kFewContend || gpu.reason == SharingReason::kNoCollision;
}

std::string calls_text(double a_second) {
  return fmt::format("{:.{}f} calls/s alone", a_second, a_second < 99.95 ? 1 : 0);
}

std::string turn_text(std::uint64_t ns) {
  const double seconds = static_cast<double>(ns) / 1e9;
  return seconds < 1 ? fmt::format("{:.4g} ms", seconds * 1e3) : fmt::format("{:.3g} s", seconds);
}

double milliseconds(std::uint64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

std::uint64_t pinned_as_a_whole(const protocol::TaskRow& task) {
  std::uint64_t rest = task.pinned_bytes;
  for (const std::uint64_t bytes : task.pinned_by) rest -= std::min(rest, bytes);
  return rest;
}

// In brackets: how much of it is pinned, and why. A rotad of an earlier release does not say.
std::string pins_text(const protocol::TaskRow& task) {
  std::vector<std::string> parts;
  for (std::size_t why = 0; why < protocol::kPins; ++why) {
    const std::uint64_t bytes = task.pinned_by[why];
    if (bytes != 0) parts.push_back(fmt::format("{} {}", rota::bytes_text(bytes), protocol::kPinTexts[why]));
  }
  if (const auto why = static_cast<std::size_t>(task.pinned_all); why != 0 && why <= protocol::kLastPinAll) {
    parts.push_back(fmt::format("{}: {}", rota::bytes_text(pinned_as_a_whole(task)), protocol::kPinAllTexts[why]));
  }
  return parts.empty() ? "" : fmt::format(" ({})", fmt::join(parts, "; "));
}

nlohmann::json pins_json(const protocol::TaskRow& task) {
  nlohmann::json all = nlohmann::json::object();
  for (std::size_t why = 0; why < protocol::kPins; ++why) all[protocol::kPinNames[why]] = task.pinned_by[why];
  const auto why = static_cast<std::size_t>(task.pinned_all);
  const bool known = why != 0 && why <= protocol::kLastPinAll;
  all["process"] = pinned_as_a_whole(task);
  all["process_reason"] = known ? nlohmann::json(protocol::kPinAllNames[why]) : nlohmann::json(nullptr);
  return all;
}

// Null: nothing is awaited.
nlohmann::json awaited_name(const protocol::TaskRow& task) {
  if (task.awaited_bytes == 0) return nullptr;
  return task.awaits_context != 0 ? "context" : "allocation";
}

}  // namespace

std::string sharing_text(const protocol::GpuRow& gpu) {
  const std::uint32_t programs = std::max(gpu.active, gpu.clients);
  if (programs < 2) return "";
  const Candidate candidate = in_force(gpu);
  std::string text = measured(gpu) ? fmt::format("{} programs active: ", gpu.active) : "";
  text += candidate_name(candidate);
  if (candidate != Candidate::kTogether) text += fmt::format(", each of {}", turn_text(gpu.turn_ns));
  if (const std::string reason = reason_text(gpu); !reason.empty()) text += ": " + reason;
  if (candidate != Candidate::kTogether || measured(gpu)) {
    text += gpu.switch_ns == 0 ? "; the cost of a hand-over is not known yet"
                               : fmt::format("; a hand-over costs {:.3g} ms", milliseconds(gpu.switch_ns));
  }
  return text;
}

nlohmann::json sharing_json(const protocol::GpuRow& gpu) {
  const char* reason = reason_name(gpu.reason);
  return {{"candidate", candidate_name(in_force(gpu))},
          {"reason", reason == nullptr ? nlohmann::json(nullptr) : nlohmann::json(reason)},
          {"trial", gpu.trial_permille == 0 ? nlohmann::json(nullptr) : nlohmann::json(gpu.trial_permille / 1000.0)},
          {"looking", gpu.looking != 0},
          {"active", gpu.active},
          {"turn_ns", gpu.turn_ns},
          {"switch_ns", gpu.switch_ns == 0 ? nlohmann::json(nullptr) : nlohmann::json(gpu.switch_ns)}};
}

std::string use_text(const protocol::TaskRow* task, const protocol::GpuRow& gpu) {
  if (task == nullptr) return "";
  std::vector<std::string> parts;
  if (measured(gpu)) {
    parts.push_back((task->known & protocol::kKnowsBusy) != 0
                        ? fmt::format("keeps the GPU busy {:.0f}% of its own time", task->busy_permille / 10.0)
                        : "how busy it keeps the GPU is not known yet");
    parts.push_back((task->known & protocol::kKnowsCalls) != 0
                        ? calls_text(static_cast<double>(task->calls_per_1000s) / 1000)
                        : "its rate of calls alone is not known yet");
    if (task->light != 0) parts.push_back("runs at any time");
  }
  if (task->waited_ns != 0) {
    parts.push_back(fmt::format("has waited {:.1f} s in all", static_cast<double>(task->waited_ns) / 1e9));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<std::string> waits_of(const Status& status, const protocol::TaskRow& task) {
  std::vector<std::string> parts;
  if (task.waits_for_gang != 0) {
    const auto gang = std::ranges::find(status.gangs, task.gang, &protocol::GangRow::number);
    const bool missing = gang != status.gangs.end() && gang->programs < gang->size;
    parts.push_back(missing ? fmt::format("waits for {} of the {} programs of its gang, which {} not come yet",
                                          gang->size - gang->programs, gang->size,
                                          gang->size - gang->programs == 1 ? "has" : "have")
                            : "waits for the others of its gang");
  }
  if (task.asked_bytes != 0) parts.push_back(fmt::format("waits for room for {}", bytes_text(task.asked_bytes)));
  if (task.awaited_bytes != 0) {
    parts.push_back(fmt::format(
        "{} has waited {:.1f} s for {}",
        task.awaits_context != 0 ? "a context" : "an allocation of " + bytes_text(task.awaited_bytes),
        static_cast<double>(task.awaited_ns) / 1e9,
        task.awaits_movers != 0 ? "the programs that come over from another rotad" : "others to free memory or end"));
  }
  return parts;
}

std::string staying_text(const protocol::TaskRow* task, bool holds) {
  using rota::bytes_text;
  std::string text;
  if (task == nullptr) return text;
  if (task->fixed_for_now_bytes != 0) {
    text += fmt::format(", {} cannot be evicted while its work may run", bytes_text(task->fixed_for_now_bytes));
  }
  if (task->fixed_bytes > task->fixed_for_now_bytes) {
    text += fmt::format(", {} cannot be evicted{}", bytes_text(task->fixed_bytes - task->fixed_for_now_bytes),
                        pins_text(*task));
  }
  if (task->lacks_bytes != 0) {
    text += fmt::format(", {}: {} of its memory do not fit next to {}", holds ? "cannot run" : "is passed over",
                        bytes_text(task->lacks_bytes), in_the_way_text(task->lacks_bytes, task->lacks_for_now_bytes));
  }
  return text;
}

nlohmann::json use_json(const Status& status, const protocol::ProgramRow& program) {
  nlohmann::json gpus = nlohmann::json::object();
  for (const protocol::GpuRow& gpu : status.gpus) {
    const protocol::TaskRow* task = status.task(program.client, gpu.index);
    if (task == nullptr) continue;
    const bool busy = (task->known & protocol::kKnowsBusy) != 0;
    const bool calls = (task->known & protocol::kKnowsCalls) != 0;
    gpus[uuid_text(gpu.uuid)] = {
        {"busy", busy ? nlohmann::json(task->busy_permille / 1000.0) : nlohmann::json(nullptr)},
        {"calls_per_second",
         calls ? nlohmann::json(static_cast<double>(task->calls_per_1000s) / 1000) : nlohmann::json(nullptr)},
        {"runs_at_any_time", task->light != 0},
        {"gang", task->gang == 0 ? nlohmann::json(nullptr) : nlohmann::json(task->gang)},
        {"holds", task->holds != 0},
        {"waits", task->waits != 0},
        {"fixed_bytes", task->fixed_bytes},
        {"fixed_for_now_bytes", task->fixed_for_now_bytes},
        {"pinned_bytes", pins_json(*task)},
        {"awaited_bytes", task->awaited_bytes},
        {"awaited_ns", task->awaited_ns},
        {"awaited", awaited_name(*task)},
        {"awaits_another_rotads", task->awaits_movers != 0},
        {"waits_for_gang", task->waits_for_gang != 0},
        {"lacks_bytes", task->lacks_bytes},
        {"lacks_for_now_bytes", task->lacks_for_now_bytes}};
  }
  if (gpus.empty()) return nullptr;
  return {{"gpus", gpus}, {"held_ns", program.held_ns}, {"waited_ns", program.waited_ns}};
}

}  // namespace rota::tool
