// Every export of the driver, as a weak function that answers CUDA_ERROR_NOT_SUPPORTED through
// rota_sim_unsupported(index); what is simulated is defined strongly elsewhere and wins. Also the table of all of
// them, in the order of the list, for cuGetProcAddress.
        .set rota_index, 0
        .text

#if defined(__x86_64__)
        .macro rota_stub name
        .weak \name
        .type \name, @function
        .p2align 4
\name:
        endbr64
        movl $rota_index, %edi
        jmp rota_sim_unsupported
        .size \name, . - \name
        .set rota_index, rota_index + 1
        .endm
#elif defined(__aarch64__)
        .macro rota_stub name
        .weak \name
        .type \name, %function
        .p2align 4
\name:
        hint #34
        mov w0, #rota_index
        b rota_sim_unsupported
        .size \name, . - \name
        .set rota_index, rota_index + 1
        .endm
#else
#error "simgpu's stubs are written for x86-64 and aarch64"
#endif

#define ROTA_SYMBOL(name) rota_stub name
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
