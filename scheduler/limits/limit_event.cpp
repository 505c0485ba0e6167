// Carries limit events out.
#include "scheduler/limits/limit_event.h"

namespace rota::scheduler {
namespace {

struct Apply {
  Quota& quota;
  Time now;

  LimitDecisions operator()(const limit::Hold& hold) const {
    quota.hold_until(hold.until);
    return {};
  }
  LimitDecisions operator()(const limit::Join& join) const {
    return {.outcome = {}, .shared = {}, .yes = quota.join(join.client, join.accounts)};
  }
  LimitDecisions operator()(const limit::SetLimits& set) const {
    quota.set_limits(set.account, set.limits);
    return {};
  }
  LimitDecisions operator()(const limit::Configure& configure) const {
    quota.configure(configure.account);
    return {};
  }
  LimitDecisions operator()(const limit::AddGpu& add) const {
    quota.add_gpu(add.client, add.gpu, add.context, add.measurable);
    return {};
  }
  LimitDecisions operator()(const limit::Measured& each) const {
    return {.outcome = quota.measured(each.client, each.gpu, each.context, now), .shared = {}};
  }
  LimitDecisions operator()(const limit::NotMeasured& each) const {
    return {.outcome = quota.not_measured(each.client, each.gpu, now), .shared = {}};
  }
  LimitDecisions operator()(const limit::Read& read) const {
    return {.outcome = quota.read(read.gpu, read.begun, now), .shared = {}};
  }
  LimitDecisions operator()(const limit::GpuChanged& changed) const {
    return {.outcome = quota.gpu_changed(changed.gpu, now), .shared = {}};
  }
  LimitDecisions operator()(const limit::Reserve& each) const {
    return {.outcome = quota.reserve(each.client, each.gpu, each.number, each.wanted, now, each.patience),
            .shared = {}};
  }
  LimitDecisions operator()(const limit::State& each) const {
    return {.outcome = quota.state(each.client, each.gpu, each.has, each.answered, each.round, now), .shared = {}};
  }
  LimitDecisions operator()(const limit::Confirm& each) const {
    return {.outcome = quota.confirm(each.client, each.gpu, each.on_gpu, each.on_host, now), .shared = {}};
  }
  LimitDecisions operator()(const limit::Pin& each) const {
    return {.outcome = quota.pin(each.client, each.gpu, each.bytes, now), .shared = {}};
  }
  LimitDecisions operator()(const limit::UseHost& each) const {
    quota.use_host(each.client, each.use);
    return {};
  }
  LimitDecisions operator()(const limit::BoundHost& each) const {
    return {.outcome = {}, .shared = {}, .yes = quota.bound_host(each.client)};
  }
  LimitDecisions operator()(const limit::ShareHost&) const { return {.outcome = {}, .shared = quota.share_host(now)}; }
  LimitDecisions operator()(const limit::AwaitRoom& each) const {
    return {.outcome = quota.await_room(each.request, now), .shared = {}};
  }
  LimitDecisions operator()(const limit::Stays& each) const {
    return {.outcome = quota.stays(each.client, each.gpu, each.what, now)};
  }
  LimitDecisions operator()(const limit::MemoryWait& wait) const {
    quota.set_memory_wait(wait.patience);
    return {};
  }
  LimitDecisions operator()(const limit::Leave& leave) const {
    return {.outcome = quota.leave(leave.client, now, leave.ended), .shared = {}};
  }
  LimitDecisions operator()(const limit::Tick&) const { return {.outcome = quota.tick(now), .shared = {}}; }
};

}  // namespace

LimitDecisions apply(Quota& quota, const LimitEvent& event, Time now) {
  return std::visit(Apply{quota, now}, event);
}

}  // namespace rota::scheduler
