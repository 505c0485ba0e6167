// Copies and sets: checked when they are submitted, done by the stream's thread.
#pragma once

#include "tools/simgpu/driver/driver.h"

namespace rota::sim {

// Where one side of a copy lies.
enum class Side { kAny, kHost, kDevice };

struct CopyRequest {
  uint64_t to = 0;
  uint64_t from = 0;
  Side to_side = Side::kAny;  // what the function's name promises; kAny: found out from the address
  Side from_side = Side::kAny;
  // A row, and how many of them; a plain copy is one row.
  size_t width = 0;
  size_t height = 1;
  size_t to_pitch = 0;
  size_t from_pitch = 0;
};

struct SetRequest {
  uint64_t to = 0;
  unsigned value = 0;
  unsigned element = 1;  // bytes: 1, 2 or 4
  size_t width = 0;      // elements in a row
  size_t height = 1;
  size_t pitch = 0;  // bytes
};

// Synchronous forms wait for the copy in the default stream that the form names. An asynchronous copy from pageable
// memory has read it when the call returns, one to pageable memory has written it: as the driver stages them.
CUresult copy(const CopyRequest& request, bool asynchronous, CUstream stream, Form form);
CUresult set(const SetRequest& request, bool asynchronous, CUstream stream, Form form);

}  // namespace rota::sim
