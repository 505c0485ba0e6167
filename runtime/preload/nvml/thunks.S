// NVML's exported symbols, and the mark by which a copy of this library is known.
#define ROTA_SYMBOL_LIST "runtime/preload/nvml/thunk_list.inc"
#define ROTA_SLOTS rota_nvml_slots
#define ROTA_RESOLVE rota_nvml_resolve
#include "runtime/preload/cuda/thunk_table.inc"

// As in runtime/preload/cuda/thunks.S: whoever looks for the real library passes over what carries it.
        .section .note.rota, "a", %note
        .p2align 2
        .long   5                       // bytes of the name
        .long   0                       // bytes of the description
        .long   1                       // kind: 1 = a thin preload
        .asciz  "rota"
        .p2align 2

        .section .note.GNU-stack, "", %progbits
