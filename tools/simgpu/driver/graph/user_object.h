// User objects: the program's memory with a destructor that is called when the last reference is released.
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

  // False if there are no references any more, or the count would overflow.
  bool retain(unsigned count);
  // False if there are fewer. Releasing the last one makes a thread of the driver call the destructor.
  bool release(unsigned count);

 private:
  std::mutex mutex;
  uint64_t references;
};

}  // namespace rota::sim
