// What happens to limits, as events: what the server tells Quota, in an order in which a log can replay it.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "scheduler/limits/quota.h"

namespace rota::scheduler {

// Each is a call of the function of Quota with that name, where the fields are explained.
namespace limit {
struct Hold {
  Time until;
};
struct Join {
  ClientId client;
  std::vector<Quota::Membership> accounts;
};
struct SetLimits {
  std::string account;  // its key
  Limits limits;
};
struct Configure {
  Quota::Membership account;
};
struct AddGpu {
  ClientId client;
  GpuIndex gpu;
  Bytes context;
  bool measurable = false;
};
struct Measured {
  ClientId client;
  GpuIndex gpu;
  Bytes context;
};
struct NotMeasured {
  ClientId client;
  GpuIndex gpu;
};
struct Read {
  GpuIndex gpu;
  std::optional<Time> begun;
};
struct GpuChanged {
  GpuIndex gpu;
};
struct Reserve {
  ClientId client;
  GpuIndex gpu;
  std::uint32_t number;
  Reservation wanted;
  Time patience = Quota::kPatience;
};
struct State {
  ClientId client;
  GpuIndex gpu;
  Reservation has;
  std::uint32_t answered;
  std::uint32_t round;
};
struct Confirm {
  ClientId client;
  GpuIndex gpu;
  Bytes on_gpu;
  Bytes on_host;
};
struct Pin {
  ClientId client;
  GpuIndex gpu;
  Bytes bytes;
};
struct UseHost {
  ClientId client;
  Quota::HostUse use;
};
struct BoundHost {
  ClientId client;
};
struct ShareHost {};
struct AwaitRoom {
  RoomQueue::Request request;  // except for what Quota knows itself
};
struct Stays {
  ClientId client;
  GpuIndex gpu;
  Quota::Stays what;
};
struct MemoryWait {
  Time patience;
};
struct Leave {
  ClientId client;
  bool ended = false;  // its process has
};
struct Tick {};
}  // namespace limit

using LimitEvent =
    std::variant<limit::Hold, limit::Join, limit::SetLimits, limit::Configure, limit::AddGpu, limit::Measured,
                 limit::NotMeasured, limit::Read, limit::GpuChanged, limit::Reserve, limit::State, limit::Confirm,
                 limit::Pin, limit::UseHost, limit::BoundHost, limit::ShareHost, limit::AwaitRoom, limit::Stays,
                 limit::MemoryWait, limit::Leave, limit::Tick>;

struct LimitDecisions {
  Quota::Outcome outcome{};
  std::vector<ClientId> shared{};  // whose shares of the host have changed
  bool yes = false;                // Join: a shared account is new; BoundHost: the client has a share
};

LimitDecisions apply(Quota& quota, const LimitEvent& event, Time now);

}  // namespace rota::scheduler
