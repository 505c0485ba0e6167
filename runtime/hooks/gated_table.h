// Private tables of the driver (cuGetExportTable) through which a library submits work: the library gets a copy whose
// functions pass the gate before they go on to the driver's, as every submitting call does. What their arguments are is
// not known and need not be.
#pragma once

#include <cstddef>

namespace rota::interpose {

// The copy of a table of so many bytes, the first word of which is that length; the same each time. Null where there
// can be none: with a driver before CUDA 12.5 (all streams that are used have to be known there, and those of these
// functions are not), or for more functions than there are stubs.
const void* gated_copy(const void* table, std::size_t bytes) noexcept;

}  // namespace rota::interpose
