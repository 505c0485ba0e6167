// The runtime API's symbols, so that what we have no signature for is passed on all the same (resolver.cpp).
#define ROTA_SYMBOL_LIST "generated/runtime_symbols.inc"
#define ROTA_SLOTS rota_cudart_slots
#define ROTA_RESOLVE rota_cudart_resolve
#include "runtime/interpose/thin/thunk_table.inc"
