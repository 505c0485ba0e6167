// Every export of the driver: a jump through its slot of rota_sim_table, which initially points to a stub that returns
// CUDA_ERROR_NOT_SUPPORTED through rota_sim_unsupported(index); simulated functions put their entry there (entry.h).
// Also the list of all exports, in the same order, for cuGetProcAddress.
        .set rota_index, 0
        .text

#if defined(__x86_64__)
        .macro rota_stub name
        .globl \name
        .type \name, @function
        .p2align 4
\name:
        endbr64
        jmp *rota_sim_table + 8 * rota_index(%rip)
        .size \name, . - \name
        .p2align 4
.Lunsupported_\name:
        endbr64
        movl $rota_index, %edi
        jmp rota_sim_unsupported
        .set rota_index, rota_index + 1
        .endm
#elif defined(__aarch64__)
        .macro rota_stub name
        .globl \name
        .type \name, %function
        .p2align 4
\name:
        hint #34
        adrp x16, rota_sim_table + 8 * rota_index
        ldr x16, [x16, :lo12:(rota_sim_table + 8 * rota_index)]
        br x16
        .size \name, . - \name
        .p2align 4
.Lunsupported_\name:
        hint #36
        mov w0, #rota_index
        b rota_sim_unsupported
        .set rota_index, rota_index + 1
        .endm
#else
#error "simgpu's stubs are written for x86-64 and aarch64"
#endif

#define ROTA_SYMBOL(name) rota_stub name
#include "generated/driver_symbols.inc"
#undef ROTA_SYMBOL

        .data
        .p2align 3
        .globl rota_sim_table
        .hidden rota_sim_table
rota_sim_table:
#define ROTA_SYMBOL(name) .quad .Lunsupported_##name
#include "generated/driver_symbols.inc"
#undef ROTA_SYMBOL

        .section .data.rel.ro, "aw"
        .p2align 3
        .globl rota_sim_exports
        .hidden rota_sim_exports
rota_sim_exports:
#define ROTA_SYMBOL(name) .quad name
#include "generated/driver_symbols.inc"
#undef ROTA_SYMBOL

        .section .note.GNU-stack, "", %progbits
