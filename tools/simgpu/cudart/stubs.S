// Every export of the CUDA runtime, as a weak function that answers cudaErrorNotSupported; what this library has is
// defined strongly elsewhere and wins.
        .text
#if defined(__x86_64__)
        .macro rota_stub name
        .weak \name
        .type \name, @function
\name:
        endbr64
        movl $801, %eax
        ret
        .size \name, . - \name
        .endm
#elif defined(__aarch64__)
        .macro rota_stub name
        .weak \name
        .type \name, %function
\name:
        hint #34
        mov w0, #801
        ret
        .size \name, . - \name
        .endm
#else
#error "simgpu's stubs are written for x86-64 and aarch64"
#endif

#define ROTA_SYMBOL(name) rota_stub name
#include "generated/runtime_symbols_13.inc"

        .section .note.GNU-stack, "", %progbits
