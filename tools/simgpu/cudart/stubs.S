// Every export of the CUDA runtime, as a weak function that returns cudaErrorNotSupported. What this library implements
// is defined elsewhere as a strong symbol, which takes precedence.
        .text
#if defined(__x86_64__)
        .macro rota_stub name
        .weak \name
        .type \name, @function
\name:
        endbr64
        leaq 9f(%rip), %rdi
        jmp rota_cudart_not_supported
        .size \name, . - \name
        .pushsection .rodata.rota_names, "a", %progbits
9:      .asciz "\name"
        .popsection
        .endm
#elif defined(__aarch64__)
        .macro rota_stub name
        .weak \name
        .type \name, %function
\name:
        hint #34
        adrp x0, 9f
        add x0, x0, :lo12:9f
        b rota_cudart_not_supported
        .size \name, . - \name
        .pushsection .rodata.rota_names, "a", %progbits
9:      .asciz "\name"
        .popsection
        .endm
#else
#error "simgpu's stubs are written for x86-64 and aarch64"
#endif

#define ROTA_STUB_11(name)
#define ROTA_STUB_12(name)
#define ROTA_STUB_13(name) rota_stub name
#define ROTA_CUDART_SYMBOL(major, node, name) ROTA_STUB_##major(name)
#include "generated/runtime_symbols.inc"

        .section .note.GNU-stack, "", %progbits
