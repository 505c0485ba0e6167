// Where a function takes device addresses, or handles of physical memory or arrays: parameters, and fields of the
// structures that they point to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "codegen/model.h"
#include "codegen/policy.h"
#include "scheduler/base/result.h"

namespace rota::codegen {

struct AddressPlace {
  std::size_t parameter = 0;  // counted from 0
  std::string text;           // "dstDevice", "pCopy->srcDevice", "opList[0].src.op.ptr.ptr"
  // Where the address lies, as byte offsets: first from the start of the parameter, then, for each pointer on the path,
  // from the pointer's target.
  std::vector<std::uint64_t> offsets;
};

// Of 64 bits, by their type or, where that is void*, by the policy (parameters) or by the list in addresses.cpp
// (fields). Excludes what the function writes, and the 32-bit addresses of CUDA 3.1 and before, which rota's memory
// never has. An error for a field of type void* that is in neither list.
Result<std::vector<AddressPlace>> addresses_taken(const Api& api, const Function& function,
                                                  const FunctionPolicy* policy);

// Handles of physical memory, and of multicast objects, which have the same type. Not where the function writes one.
Result<std::vector<AddressPlace>> physical_handles_taken(const Api& api, const Function& function,
                                                         const FunctionPolicy* policy);

// Handles of arrays, mipmapped ones included. Not where the function writes one.
Result<std::vector<AddressPlace>> arrays_taken(const Api& api, const Function& function, const FunctionPolicy* policy);

}  // namespace rota::codegen
