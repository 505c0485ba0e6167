// User objects: memory of the program whose destructor is called when the last reference to it is gone.
#pragma once

#include <memory>
#include <mutex>

#include "tools/simgpu/driver/api.h"

namespace rota::sim {

struct UserObject {
  UserObject(void* data, CUhostFn destroy, unsigned references)
      : data(data), destroy(destroy), references(references) {}
  void* const data;
  const CUhostFn destroy;
  CUuserObject handle() { return reinterpret_cast<CUuserObject>(this); }

  // False if nobody holds a reference any more, or the count would overflow.
  bool retain(unsigned count);
  // False if there are not so many. The last one has the destructor called, on a thread of the driver's.
  bool release(unsigned count);

 private:
  std::mutex mutex;
  uint64_t references;
};

}  // namespace rota::sim
