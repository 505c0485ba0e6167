// Compiling is the test: the generated headers do not mind cuda.h's macros.
#include <cuda.h>

#include "generated/driver_functions.h"
#include "generated/driver_symbols.h"

static_assert(sizeof(rota::api::CUDA_MEMCPY2D) == sizeof(CUDA_MEMCPY2D));
