// The runtime API's symbols for every libcudart major, so that functions without a known signature are passed on as
// well (resolver.cpp).
#define ROTA_SYMBOL_LIST "runtime/preload/cudart/symbols.inc"
#define ROTA_SLOTS rota_cudart_slots
#define ROTA_RESOLVE rota_cudart_resolve
#include "runtime/preload/cuda/thunk_table.inc"

// Exported under the name and the version node that programs linked against that major refer to. With a single @,
// because a reference without a version does not tell which signature its program expects, so it is left to the real
// library.
#define ROTA_CUDART_SYMBOL(major, node, name) .symver name##_cudart##major, name@node
#include "generated/runtime_symbols.inc"
#undef ROTA_CUDART_SYMBOL
