// What generated/driver_gates.cpp sees of the runtime; it includes nothing else of rota:
//
//   gate::Scope          the call waits for the lease; during it the gate cannot finish closing
//
//   gate::refusal        what the call returns instead, where the scope says so: the process's memory is lost
//
//   contract::with_room  a call that the driver refuses for lack of memory is retried when others have made room
//
//   gate::MappingScope   no memory moves during the call, which waits while memory is out of place
//
//   contract::…_capture  a capture begins or ends: counted, under the lock that keeps the monitor away
//
//   contract::exported   from now on others can access what the call exported
//
// All of it is for the program's threads, once the core is attached; none of it throws or changes the result of a call
// that is made.
#pragma once

#include "generated/driver_symbols.h"
#include "generated/driver_types.h"
#include "runtime/core/function_ref.h"
#include "runtime/driver/answers.h"
#include "runtime/gate/scope.h"

namespace rota::contract {

template <typename Call>
[[gnu::cold, gnu::noinline]] api::CUresult call_with_room_made(api::CUresult result, const Call& call) {
  if (!driver::lacks_room(result)) return result;
  gate::make_room([&] {
    result = call();
    return !driver::may_lack_room(result);
  });
  return result;
}

// Runs a gated call; repeats it, through the gate, if the driver has refused it for lack of memory and others have made
// room, and as long as they are still making room. `call` holds its arguments by value.
template <typename Call>
[[gnu::always_inline]] inline api::CUresult with_room(const Call& call) {
  const api::CUresult result = call();
  if (!driver::may_lack_room(result)) [[likely]]
    return result;
  // A copy, whose address may be taken: the arguments stay in registers.
  return call_with_room_made(result, Call(call));
}

// Marks the process, and names the function in the log. Any number of times.
void mark_exporting(Symbol symbol) noexcept;

// Returns `result`; a call that succeeded has created something that others can access without passing rota's gates.
inline api::CUresult exported(Symbol symbol, api::CUresult result) noexcept {
  if (result == api::CUDA_SUCCESS) mark_exporting(symbol);
  return result;
}

// `per_thread`: a _ptsz form, whose NULL stream is the calling thread's own.
api::CUresult begin_capture(api::CUstream stream, bool per_thread, FunctionRef<api::CUresult()> call);
api::CUresult end_capture(api::CUstream stream, bool per_thread, FunctionRef<api::CUresult()> call);

}  // namespace rota::contract
