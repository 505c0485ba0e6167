// Limits without the scheduler: a test sets what the accounting says of GPUs.
#pragma once

#include <algorithm>
#include <map>
#include <utility>

#include "scheduler/limits/quota.h"

namespace rota::scheduler {

struct SaidBooks {
  Bookkeeping books;
};

class LimitsBesideBooks : SaidBooks, public Quota {
 public:
  LimitsBesideBooks() : Quota(books) {}

  void add_gpu(ClientId client, GpuIndex gpu, Bytes total, Bytes context, bool measurable = false) {
    books.gpu(gpu).total = total;
    set_context(client, gpu, context);
    Quota::add_gpu(client, gpu, context, measurable);
  }
  Outcome measured(ClientId client, GpuIndex gpu, Bytes context, Time now) {
    set_context(client, gpu, std::min(context, books.gpu(gpu).total));
    return Quota::measured(client, gpu, context, now);
  }
  Outcome set_total(GpuIndex gpu, Bytes total, Time now) {
    books.gpu(gpu).total = total;
    return gpu_changed(gpu, now);
  }
  // Memory that the driver lists as other programs'.
  Outcome set_outside(GpuIndex gpu, Bytes bytes, Time now) {
    books.gpu(gpu).measured.measured(bytes, bytes, bytes, now);
    return gpu_changed(gpu, now);
  }
  Outcome leave(ClientId client, Time now) {
    for (auto context = contexts_.lower_bound({client, 0});
         context != contexts_.end() && context->first.first == client; ++context) {
      set_context(client, context->first.second, 0);
    }
    return Quota::leave(client, now);
  }

 private:
  void set_context(ClientId client, GpuIndex gpu, Bytes bytes) {
    books.gpu(gpu).contexts += bytes - std::exchange(contexts_[{client, gpu}], bytes);
  }

  std::map<std::pair<ClientId, GpuIndex>, Bytes> contexts_;
};

}  // namespace rota::scheduler
