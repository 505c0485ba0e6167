// Memory that the program creates itself: where it is mapped, and which GPUs may use it there, on the GPU and while it
// is evicted. It is a range of one extent; these mappings, its *aliases*, are evicted and restored with it. It is
// copied by the range's own address, which the program does not know, whatever aliases and access it has.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/core/function_ref.h"
#include "runtime/memory/swap/regions.h"
#include "runtime/memory/swap/sharing.h"

namespace rota::memory {

// By the address of the range. Any thread, with no lock held; waits for no work, only for extents that are moving.
class OwnMappings {
 public:
  OwnMappings(Regions& regions, Sharing& sharing) : regions_(regions), sharing_(sharing) {}

  // Where the program has mapped such a range.
  struct Mapped {
    std::uint64_t range;
    std::uint64_t address;
  };
  using OnGpu = FunctionRef<api::CUresult(PhysicalHandle handle)>;
  using OffGpu = FunctionRef<api::CUresult()>;
  // Maps it at another address: by `call` or, while it is evicted, with the result of `unasked`.
  api::CUresult map(const Mapped& where, const OnGpu& call, const OffGpu& unasked);
  // For several mappings: `call` is the driver's function for all that the program has named and is made if they are
  // all on the GPU; otherwise `unasked` gives the result, and those that are on the GPU are handled separately.
  api::CUresult unmap(const std::vector<Mapped>& all, const OffGpu& call, const OffGpu& unasked);
  api::CUresult set_access(const std::vector<Mapped>& all, const std::vector<api::CUmemAccessDesc>& accesses,
                           const OffGpu& call, const OffGpu& unasked);
  // What a mapping may be used for by a GPU.
  api::CUmemAccess_flags access(const Mapped& where, int accessing);
  // The driver's handle of it, while it lies on the GPU; 0: it does not.
  PhysicalHandle handle_of(std::uint64_t range);

 private:
  Extent* quiesced(Regions::Lock& lock, std::uint64_t range);
  api::CUresult change(const std::vector<Mapped>& all, const OffGpu& call, const OffGpu& unasked,
                       FunctionRef<void(Extent& extent, Aliases::iterator alias, bool asked)> change);

  Regions& regions_;
  Sharing& sharing_;
};

}  // namespace rota::memory
