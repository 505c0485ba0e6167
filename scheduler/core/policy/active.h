// Which clients have made calls lately on each GPU, and which GPUs are decided on together because some of these
// clients need several of them at the same time: if a program with two GPUs took turns on one and ran concurrently with
// others on the other, what each GPU shows of it would depend on the other GPU.
#pragma once

#include <vector>

#include "scheduler/core/bookkeeping.h"
#include "scheduler/core/settings.h"

namespace rota::scheduler {

class Active {
 public:
  // A program that has made no calls for this long does not count.
  static constexpr Time kActive = std::chrono::seconds(10);

  // The arguments must outlive this object; the settings may change.
  Active(const Settings& settings, const Bookkeeping& books);

  // Who is active on these GPUs may have changed.
  void mark_stale(GpuMask gpus);
  void mark_all_stale() { mark_stale(~GpuMask{0}); }
  // Checks again where that is so or time has passed. `apart`: GPUs each of which is decided on by itself in any case.
  // Returns the GPUs whose active clients have changed, and those that are now decided on together with other GPUs.
  GpuMask renew(GpuMask gpus, GpuMask apart, Time now);

  // Sorted. Empty on a GPU that only one client touches.
  const std::vector<ClientId>& on(GpuIndex gpu) const { return gpus_[gpu].clients; }
  std::vector<ClientId> on_any(GpuMask gpus) const;
  // The GPUs that are decided on together with this one, itself among them.
  GpuMask group(GpuIndex gpu) const { return gpus_[gpu].group; }
  // When a client there stops counting if nothing happens.
  Time until(GpuIndex gpu) const { return gpus_[gpu].until; }

 private:
  struct OnGpu {
    std::vector<ClientId> clients;
    bool stale = true;
    Time until = Time::max();
    GpuMask reach = 0;  // all GPUs of its clients, and itself
    GpuMask group = 0;
  };

  void look(GpuIndex gpu, Time now);
  GpuMask regroup();

  const Settings& settings_;
  const Bookkeeping& books_;
  std::vector<OnGpu> gpus_;
  GpuMask apart_ = 0;
};

}  // namespace rota::scheduler
