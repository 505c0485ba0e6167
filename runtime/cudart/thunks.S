// The runtime API's symbols: as in runtime/interpose/thin/thunks.S, each is one indirect jump through its slot, so that what
// we have no signature for is passed on all the same. A slot first holds a stub that enters the resolver (resolver.cpp).

#if defined(__x86_64__)

#define ROTA_THUNK_ALIGNMENT 4   /* 16 bytes */

.macro rota_thunk_body
        jmp     *(rota_cudart_slots + 8 * rota_index)(%rip)
.endm

.macro rota_stub_body
        movl    $rota_index, %r11d
        jmp     rota_resolver_entry
.endm

#elif defined(__aarch64__)

#define ROTA_THUNK_ALIGNMENT 5   /* 32 bytes */

// The load is an acquire: whoever sees the new slot must also see the tables that its target reads.
.macro rota_thunk_body
        hint    #34                     // bti c
        adrp    x16, rota_cudart_slots + 8 * rota_index
        add     x16, x16, :lo12:(rota_cudart_slots + 8 * rota_index)
        ldar    x16, [x16]
        br      x16
.endm

.macro rota_stub_body
        hint    #34                     // bti c
        mov     w17, #rota_index
        b       rota_resolver_entry
.endm

#else
#error "rota has thunks for x86-64 and aarch64 only"
#endif

.macro rota_symbol name
        .text
        .p2align ROTA_THUNK_ALIGNMENT
        .globl  \name
        .type   \name, %function
\name:
        .cfi_startproc
        rota_thunk_body
        .cfi_endproc
        .size   \name, . - \name
        .section .text.rota_stubs, "ax", %progbits
        .p2align 4
1:
        .cfi_startproc
        rota_stub_body
        .cfi_endproc
        .section .data.rota_slots, "aw", %progbits
        .quad   1b
        .set    rota_index, rota_index + 1
.endm

        .section .data.rota_slots, "aw", %progbits
        .p2align 6
        .globl  rota_cudart_slots
        .hidden rota_cudart_slots
        .type   rota_cudart_slots, %object
rota_cudart_slots:

        .text
        .p2align ROTA_THUNK_ALIGNMENT
        .globl  rota_thunks_begin
        .hidden rota_thunks_begin
rota_thunks_begin:

        .set    rota_index, 0
#define ROTA_SYMBOL(name) rota_symbol name
#include "generated/runtime_symbols.inc"
#undef ROTA_SYMBOL

        .text
        .p2align ROTA_THUNK_ALIGNMENT
        .globl  rota_thunks_end
        .hidden rota_thunks_end
rota_thunks_end:

        .section .data.rota_slots, "aw", %progbits
        .size   rota_cudart_slots, . - rota_cudart_slots

#if defined(__x86_64__)

// In: r11d = index. 8 integer registers and 8 vector registers are kept; the stack is 16-byte aligned at the call.
        .text
        .p2align 4
        .type   rota_resolver_entry, %function
rota_resolver_entry:
        .cfi_startproc
        subq    $0xd8, %rsp
        .cfi_adjust_cfa_offset 0xd8
        movq    %rdi, 0x00(%rsp)
        movq    %rsi, 0x08(%rsp)
        movq    %rdx, 0x10(%rsp)
        movq    %rcx, 0x18(%rsp)
        movq    %r8, 0x20(%rsp)
        movq    %r9, 0x28(%rsp)
        movq    %rax, 0x30(%rsp)
        movq    %r10, 0x38(%rsp)
        movups  %xmm0, 0x40(%rsp)
        movups  %xmm1, 0x50(%rsp)
        movups  %xmm2, 0x60(%rsp)
        movups  %xmm3, 0x70(%rsp)
        movups  %xmm4, 0x80(%rsp)
        movups  %xmm5, 0x90(%rsp)
        movups  %xmm6, 0xa0(%rsp)
        movups  %xmm7, 0xb0(%rsp)
        movl    %r11d, %edi
        call    rota_cudart_resolve
        movq    %rax, %r11
        movups  0xb0(%rsp), %xmm7
        movups  0xa0(%rsp), %xmm6
        movups  0x90(%rsp), %xmm5
        movups  0x80(%rsp), %xmm4
        movups  0x70(%rsp), %xmm3
        movups  0x60(%rsp), %xmm2
        movups  0x50(%rsp), %xmm1
        movups  0x40(%rsp), %xmm0
        movq    0x38(%rsp), %r10
        movq    0x30(%rsp), %rax
        movq    0x28(%rsp), %r9
        movq    0x20(%rsp), %r8
        movq    0x18(%rsp), %rcx
        movq    0x10(%rsp), %rdx
        movq    0x08(%rsp), %rsi
        movq    0x00(%rsp), %rdi
        addq    $0xd8, %rsp
        .cfi_adjust_cfa_offset -0xd8
        jmp     *%r11
        .cfi_endproc
        .size   rota_resolver_entry, . - rota_resolver_entry

#elif defined(__aarch64__)

// In: w17 = index.
        .text
        .p2align 4
        .type   rota_resolver_entry, %function
rota_resolver_entry:
        .cfi_startproc
        stp     x29, x30, [sp, #-0xe0]!
        .cfi_def_cfa_offset 0xe0
        .cfi_offset x29, -0xe0
        .cfi_offset x30, -0xd8
        mov     x29, sp
        stp     x0, x1, [sp, #0x10]
        stp     x2, x3, [sp, #0x20]
        stp     x4, x5, [sp, #0x30]
        stp     x6, x7, [sp, #0x40]
        str     x8, [sp, #0x50]
        stp     q0, q1, [sp, #0x60]
        stp     q2, q3, [sp, #0x80]
        stp     q4, q5, [sp, #0xa0]
        stp     q6, q7, [sp, #0xc0]
        mov     w0, w17
        bl      rota_cudart_resolve
        mov     x16, x0
        ldp     q6, q7, [sp, #0xc0]
        ldp     q4, q5, [sp, #0xa0]
        ldp     q2, q3, [sp, #0x80]
        ldp     q0, q1, [sp, #0x60]
        ldr     x8, [sp, #0x50]
        ldp     x6, x7, [sp, #0x40]
        ldp     x4, x5, [sp, #0x30]
        ldp     x2, x3, [sp, #0x20]
        ldp     x0, x1, [sp, #0x10]
        ldp     x29, x30, [sp], #0xe0
        .cfi_restore x29
        .cfi_restore x30
        .cfi_def_cfa_offset 0
        br      x16
        .cfi_endproc
        .size   rota_resolver_entry, . - rota_resolver_entry

#endif

        .section .note.GNU-stack, "", %progbits
