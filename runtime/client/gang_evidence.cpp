#include "runtime/client/gang_evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/client/gang_name.h"
#include "runtime/core/log.h"
#include "runtime/core/mappings.h"

namespace rota::client {
namespace {

constexpr std::string_view kPrefixes[] = {
#define ROTA_COLLECTIVE_KERNEL(prefix) prefix,
#include "generated/driver_collective_kernels.inc"
#undef ROTA_COLLECTIVE_KERNEL
};

bool begins_like_one(std::string_view name) {
  return std::ranges::any_of(kPrefixes, [name](std::string_view prefix) { return name.starts_with(prefix); });
}

// How long a process searches at most, in all, whether host memory that it registers is a shared mapping: with
// thousands of mappings each search takes milliseconds. A judgment.
constexpr std::int64_t kSearchesFor = std::chrono::nanoseconds(std::chrono::milliseconds(20)).count();

using Variables = FunctionRef<const char*(const char*)>;

// Empty: not set.
std::string_view value_of(Variables variable, const char* name) {
  const char* value = variable(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

// The value of the first that is set to a number above 0; 0: none is.
std::uint64_t number_of(Variables variable, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const std::string_view text = value_of(variable, name);
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size() && number != 0) return number;
  }
  return 0;
}

// What one launcher says about its ranks.
struct Ranks {
  const char* prefix;      // of the gang's name
  std::string key;         // the same in all ranks of one launch, and in no other; empty: it has not started this
  std::uint64_t all = 0;   // 0: not said; the same below
  std::uint64_t here = 0;  // on this machine
  std::uint64_t machines = 0;
};

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) {
    if (part.empty()) return {};
    text += part;
    text += '\n';
  }
  return text;
}

// In this order: a launcher may itself have been started by one further down.
std::array<Ranks, 4> launchers(Variables variable) {
  const auto value = [variable](const char* name) { return value_of(variable, name); };
  const auto number = [variable](std::initializer_list<const char*> names) { return number_of(variable, names); };
  const std::string address = joined({value("MASTER_ADDR"), value("MASTER_PORT")});
  const std::string_view run = value("TORCHELASTIC_RUN_ID");  // "none" where torchrun was given none
  const std::string_view space = value("PMIX_NAMESPACE");
  const std::string_view job = !space.empty() ? space : value("OMPI_MCA_ess_base_jobid");
  const std::uint64_t ranks = number({"WORLD_SIZE"});
  const std::uint64_t local = number({"LOCAL_WORLD_SIZE"});
  const std::uint64_t mpi = number({"OMPI_COMM_WORLD_SIZE"});
  return {{{"torch-", run == "none" ? std::string() : joined({run, address}), ranks, local, 0},
           {"master-", address, ranks, local, 0},
           {"mpi-", mpi == 0 ? std::string() : joined({job}), mpi, number({"OMPI_COMM_WORLD_LOCAL_SIZE"}), 0},
           {"slurm-", joined({value("SLURM_JOB_ID"), value("SLURM_STEP_ID")}),
            number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}), 0,
            number({"SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"})}}};
}

// FNV-1a. Any good hash will do, as long as all ranks, perhaps of different builds, use the same.
std::uint64_t hash(std::string_view text) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (const char byte : text) value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return value;
}

// No size: rotad must not wait for processes that only join once they have given evidence.
protocol::Gang hashed_gang(const char* prefix, std::string_view key) {
  protocol::Gang gang{};
  const std::string name = fmt::format("{}{:016x}", prefix, hash(key));
  name.copy(gang.name, kGangNameBytes);
  return gang;
}

// Reads the environment now: a program that starts its own ranks sets it in each, before its libraries read it.
Launch launch_of_now() {
  return launched_gang([](const char* variable) -> const char* { return std::getenv(variable); });  // NOLINT
}

}  // namespace

bool is_collective_kernel(const char* name) {
  if (name == nullptr) return false;
  const std::string_view whole(name);
  if (begins_like_one(whole)) return true;
  // A C++ function outside of any namespace: _Z, L if it is static, its name's length and its name.
  if (!whole.starts_with("_Z")) return false;
  const std::size_t length = whole.starts_with("_ZL") ? 3 : 2;
  const std::size_t source = whole.find_first_not_of("0123456789", length);
  return source != std::string_view::npos && source > length && begins_like_one(whole.substr(source));
}

Launch launched_gang(Variables variable) {
  const std::array all = launchers(variable);
  const auto by = std::ranges::find_if(all, [](const Ranks& ranks) { return !ranks.key.empty(); });
  if (by == all.end() || by->all == 1) return {};
  // Where a launcher does not say how many machines it uses, one that has started it may.
  for (auto says = by; says != all.end(); ++says) {
    if (says->key.empty()) continue;
    const bool counts = says->all != 0 && says->here != 0;
    if (says->machines > 1 || (counts && says->all > says->here)) return {.gang = {}, .several_machines = true};
    if (says->machines == 1 || counts) break;
  }
  return {.gang = hashed_gang(by->prefix, by->key), .several_machines = false};
}

GangEvidence::GangEvidence(std::string session) : session_(std::move(session)) {
  const char* text = std::getenv("ROTA_GANG");  // NOLINT(concurrency-mt-unsafe)
  if (text == nullptr || *text == '\0') return;
  gang_ = named_gang(text);
  known_.store(gang_ ? Known::kAll : Known::kNothing, std::memory_order_relaxed);
  decided_.store(gang_.has_value(), std::memory_order_relaxed);
  if (!gang_) log::warn("ROTA_GANG is '{}', which names no gang and is ignored: {}, or unset it", text, kGangForm);
}

bool GangEvidence::kernel_found(const char* name) {
  if (decided_.load(std::memory_order_relaxed) || !is_collective_kernel(name)) return false;
  return decide(protocol::GangWhy::kCollective);
}

bool GangEvidence::host_registered(const void* address) {
  const bool known = decided_.load(std::memory_order_relaxed) || by_session_.load(std::memory_order_relaxed);
  if (known || searched_for_.load() >= kSearchesFor || !has_sharers()) return false;
  const auto begin = std::chrono::steady_clock::now();
  const std::optional<Mapping> mapping = mapping_at(reinterpret_cast<std::uintptr_t>(address));
  searched_for_.fetch_add((std::chrono::steady_clock::now() - begin).count());
  return mapping && mapping->shared && memory_shared();
}

bool GangEvidence::has_sharers() const {
  return !session_.empty() || launch_of_now().says_anything();
}

bool GangEvidence::decide(protocol::GangWhy why) {
  if (decided_.load(std::memory_order_relaxed)) return false;
  const Launch launch = launch_of_now();
  const bool by_session = !launch.says_anything() || by_session_.load();  // memory shows no other gang later
  if (why == protocol::GangWhy::kMemory && by_session) return decide_by_session();
  if (!launch.says_anything() || decided_.exchange(true)) return false;
  gang_ = launch.gang;
  if (gang_) gang_->why = why;
  known_.store(Known::kAll, std::memory_order_release);
  return true;
}

bool GangEvidence::decide_by_session() {
  if (session_.empty() || by_session_.exchange(true)) return false;
  session_gang_ = hashed_gang("session-", session_);
  session_gang_.why = protocol::GangWhy::kMemory;
  Known known = Known::kNothing;
  known_.compare_exchange_strong(known, Known::kSession, std::memory_order_release);
  return true;
}

std::optional<protocol::Gang> GangEvidence::take_untold() {
  const Known known = known_.load(std::memory_order_acquire);
  if (std::exchange(told_, known) == known) return std::nullopt;
  if (known == Known::kSession) return session_gang_;
  if (!gang_ && !std::exchange(said_, true)) {
    log::warn(
        "this program is one rank of a job on several machines, and rotad serves only this one: the ranks have no "
        "turns together, and where they wait for each other, they run concurrently with other programs, as before");
  }
  return gang_.value_or(protocol::Gang{});
}

}  // namespace rota::client
