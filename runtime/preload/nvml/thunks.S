// NVML's exported symbols, and the mark that identifies a copy of this library.
#define ROTA_SYMBOL_LIST "runtime/preload/nvml/thunk_list.inc"
#define ROTA_SLOTS rota_nvml_slots
#define ROTA_RESOLVE rota_nvml_resolve
#include "runtime/preload/cuda/thunk_table.inc"

// As in runtime/preload/cuda/thunks.S: a search for the real library skips files with this mark.
        .section .note.rota, "a", %note
        .p2align 2
        .long   5                       // length of the name
        .long   0                       // length of the description
        .long   1                       // kind: 1 = a thin preload
        .asciz  "rota"
        .p2align 2

        .section .note.GNU-stack, "", %progbits
