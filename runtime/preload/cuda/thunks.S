// The exported driver symbols, the dlopen hook, and the mark that identifies a copy of this library.
#define ROTA_SYMBOL_LIST "runtime/preload/cuda/thunk_list.inc"
#define ROTA_SLOTS rota_slots
#define ROTA_RESOLVE rota_resolve
#include "runtime/preload/cuda/thunk_table.inc"

        .text
#if defined(__x86_64__)

// void* dlopen(const char* name, int flags): the loader looks at the return address to find the caller's RUNPATH and
// $ORIGIN, so this must jump to dlopen instead of calling it. rota_dlopen_target(name, return address, flags) in
// dlopen_hook.cpp returns the name to pass (rax) and the address to jump to (rdx).
        .p2align 4
        .globl  dlopen
        .type   dlopen, %function
dlopen:
        .cfi_startproc
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        movl    %esi, %edx
        movq    8(%rsp), %rsi
        call    rota_dlopen_target
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        movq    %rax, %rdi
        jmp     *%rdx
        .cfi_endproc
        .size   dlopen, . - dlopen

#elif defined(__aarch64__)

// See the x86-64 form: a tail jump, so that the loader sees the caller's return address.
        .p2align 4
        .globl  dlopen
        .type   dlopen, %function
dlopen:
        .cfi_startproc
        hint    #34                     // bti c
        stp     x29, x30, [sp, #-0x20]!
        .cfi_def_cfa_offset 0x20
        .cfi_offset x29, -0x20
        .cfi_offset x30, -0x18
        str     x1, [sp, #0x10]
        mov     w2, w1
        mov     x1, x30
        bl      rota_dlopen_target
        mov     x16, x1
        ldr     x1, [sp, #0x10]
        ldp     x29, x30, [sp], #0x20
        .cfi_restore x29
        .cfi_restore x30
        .cfi_def_cfa_offset 0
        br      x16
        .cfi_endproc
        .size   dlopen, . - dlopen

#endif

// Marks every copy of this library, so that none is ever mistaken for the real driver (driver.cpp looks for it). A note
// is visible in the program headers and needs no exported name.
        .section .note.rota, "a", %note
        .p2align 2
        .long   5                       // length of the name
        .long   0                       // length of the description
        .long   1                       // kind: 1 = the thin preload
        .asciz  "rota"
        .p2align 2

        .section .note.GNU-stack, "", %progbits
