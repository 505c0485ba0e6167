#include "tools/rota/run/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "scheduler/address/socket_path.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/base/uuid.h"
#include "scheduler/protocol/protocol.h"
#include "scheduler/rules/most_room.h"
#include "tools/rota/ci/gpus.h"
#include "tools/rota/run/output.h"
#include "tools/rota/status/processes.h"

namespace rota::tool {
namespace {

using ci::VisibleGpu;
using protocol::Message;

constexpr std::uint64_t kMiB = 1 << 20;

// How much of each GPU is in use according to NVML; 0 where it does not say.
std::vector<std::uint64_t> used_of(const std::vector<VisibleGpu>& gpus) {
  const std::optional<Machine> machine = ask_machine();
  std::vector<std::uint64_t> used;
  for (const VisibleGpu& gpu : gpus) {
    std::uint64_t& bytes = used.emplace_back(0);
    for (const MachineGpu& known : machine ? machine->gpus : std::vector<MachineGpu>()) {
      if (known.uuid == gpu.uuid) bytes = known.used_bytes;
    }
  }
  return used;
}

std::string names_of(const std::vector<VisibleGpu>& gpus, const std::vector<std::size_t>& places) {
  std::string names;
  for (const std::size_t place : places) names += (names.empty() ? "" : ",") + gpus[place].name;
  return names;
}

// The indices of the GPUs that rotad has chosen and reserved. The error says why it has not.
Result<std::vector<std::size_t>> ask_rotad(const std::vector<VisibleGpu>& gpus, const std::vector<std::uint64_t>& used,
                                           std::size_t count, const std::string& session) {
  const protocol::SocketSearch search = protocol::find_rotad();
  const Descriptor rotad(search.descriptor);
  if (!rotad) return Error{"rotad has gone"};
  Message ask{.kind = protocol::Kind::kChoose};
  protocol::Choose& choose = ask.body.choose;
  choose.count = static_cast<std::uint32_t>(count);
  choose.candidates = static_cast<std::uint32_t>(gpus.size());
  session.copy(choose.session, sizeof choose.session - 1);
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const auto uuid = parse_uuid(gpus[i].uuid);
    if (!uuid) return Error{fmt::format("{} is no UUID", gpus[i].uuid)};
    choose.gpus[i] = {.uuid = *uuid,
                      .total_mib = static_cast<std::uint32_t>(gpus[i].bytes / kMiB),
                      .used_mib = static_cast<std::uint32_t>(used[i] / kMiB)};
  }
  if (!send_message(rotad.get(), ask)) return Error{"rotad has gone"};
  Message answer;
  if (!receive_message(rotad.get(), answer)) return Error{"rotad does not answer"};
  if (answer.kind == protocol::Kind::kRefused) {
    make_printable(answer.body.refused.text);
    return Error{std::string("rotad refuses: ") + answer.body.refused.text};
  }
  std::vector<std::size_t> places;
  const protocol::Chosen& chosen = answer.body.chosen;
  for (std::uint32_t i = 0; answer.kind == protocol::Kind::kChosen && i < chosen.count && i < count; ++i) {
    const auto found =
        std::ranges::find(choose.gpus, choose.gpus + gpus.size(), chosen.gpus[i], &protocol::Candidate::uuid);
    if (found != choose.gpus + gpus.size()) places.push_back(static_cast<std::size_t>(found - choose.gpus));
  }
  if (places.size() != count) return Error{"rotad's answer makes no sense"};
  return places;
}

// How many GPUs CUDA_VISIBLE_DEVICES names; nothing: it is not set.
std::optional<std::size_t> named_gpus(const char* visible) {
  if (visible == nullptr) return std::nullopt;
  return *visible == '\0' ? 0 : static_cast<std::size_t>(std::count(visible, visible + strlen(visible), ',')) + 1;
}

}  // namespace

Result<std::string> choose_gpus(const GpusWanted& wanted, const Daemon& daemon, const std::string& session) {
  if (wanted.all) return std::string();
  const std::size_t count = wanted.count.value_or(daemon.gpus);
  if (count == 0) return std::string();
  // The default number must cost nothing if there is nothing to choose, and must not prevent a program from starting.
  const auto named = named_gpus(std::getenv("CUDA_VISIBLE_DEVICES"));
  if (!wanted.count && named && *named <= count) return std::string();
  const ci::WhoSees who{"--gpus", "program"};
  auto found = ci::gpus_for_tests(count, who);
  if (!found && !wanted.count) return std::string();
  if (!found) return found.error();
  std::vector<VisibleGpu> gpus = std::move(*found);
  if (const std::string why = ci::too_many_text(gpus.size(), protocol::kMaxCandidates, who); !why.empty()) {
    if (wanted.count) return Error{fmt::format("--gpus {}: {}", count, why)};
    write_message(fmt::format("rota: {}, or use --gpus all; the program keeps all GPUs that it sees\n", why));
    return std::string();
  }
  std::vector<std::size_t> places;
  const std::vector<std::uint64_t> used = used_of(gpus);
  std::string problem;
  if (daemon.socket.empty() || daemon.silent) {
    problem = "no rotad answers";
  } else if (!daemon.chooses) {
    problem = "the rotad that runs is older than this rota";
  } else {
    auto answered = ask_rotad(gpus, used, count, session);
    if (answered) {
      places = std::move(*answered);
    } else {
      problem = answered.error().text;
    }
  }
  if (!problem.empty()) {
    std::vector<protocol::GpuRoom> rooms;
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      rooms.push_back(
          {.bytes = static_cast<std::int64_t>(gpus[i].bytes) - static_cast<std::int64_t>(used[i]), .programs = 0});
    }
    places = protocol::most_room(rooms, count);
    write_message(fmt::format(
        "rota: {}: the GPU{} chosen by what is in use now, and not reserved: programs that start at the same time may "
        "get the same\n",
        problem, count == 1 ? " is" : "s are"));
  }
  return names_of(gpus, places);
}

}  // namespace rota::tool
