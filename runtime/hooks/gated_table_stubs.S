// The functions of gated tables (gated_table.cpp): each notes its number and goes on to the common part, which hands the
// arguments on as they came (registers, and 256 bytes of the stack) and returns both result registers as they are.
//
// Offsets in GatedCall: 0 rdi, rsi, rdx, rcx, r8, r9; 48 rax; 56 r10; 64 xmm0 to xmm7; 192 number; 200 stacked; 208
// results rax, rdx; 224 results xmm0, xmm1; 256 bytes in all.
#if defined(__x86_64__)
        .text

        .p2align 4
        .type rota_gated_common, @function
rota_gated_common:
        .cfi_startproc
        .cfi_def_cfa_offset 16
        push %rbp
        .cfi_def_cfa_offset 24
        .cfi_offset %rbp, -24
        mov %rsp, %rbp
        .cfi_def_cfa_register %rbp
        sub $256, %rsp
        and $-16, %rsp
        mov %rdi, 0(%rsp)
        mov %rsi, 8(%rsp)
        mov %rdx, 16(%rsp)
        mov %rcx, 24(%rsp)
        mov %r8, 32(%rsp)
        mov %r9, 40(%rsp)
        mov %rax, 48(%rsp)
        mov %r10, 56(%rsp)
        movups %xmm0, 64(%rsp)
        movups %xmm1, 80(%rsp)
        movups %xmm2, 96(%rsp)
        movups %xmm3, 112(%rsp)
        movups %xmm4, 128(%rsp)
        movups %xmm5, 144(%rsp)
        movups %xmm6, 160(%rsp)
        movups %xmm7, 176(%rsp)
        mov 8(%rbp), %rax
        mov %rax, 192(%rsp)
        lea 24(%rbp), %rax
        mov %rax, 200(%rsp)
        mov %rsp, %rdi
        call rota_gated_call
        mov 208(%rsp), %rax
        mov 216(%rsp), %rdx
        movups 224(%rsp), %xmm0
        movups 240(%rsp), %xmm1
        leave
        .cfi_def_cfa %rsp, 16
        add $8, %rsp
        .cfi_def_cfa_offset 8
        ret
        .cfi_endproc
        .size rota_gated_common, . - rota_gated_common

// void rota_gated_go_on(GatedCall*, void* function)
        .p2align 4
        .globl rota_gated_go_on
        .hidden rota_gated_go_on
        .type rota_gated_go_on, @function
rota_gated_go_on:
        .cfi_startproc
        push %rbp
        .cfi_def_cfa_offset 16
        .cfi_offset %rbp, -16
        mov %rsp, %rbp
        .cfi_def_cfa_register %rbp
        push %rbx
        .cfi_offset %rbx, -24
        sub $264, %rsp
        mov %rdi, %rbx
        mov %rsi, %r11
        mov 200(%rbx), %rsi
        mov %rsp, %rdi
        mov $32, %ecx
        cld
        rep movsq
        mov 0(%rbx), %rdi
        mov 8(%rbx), %rsi
        mov 16(%rbx), %rdx
        mov 24(%rbx), %rcx
        mov 32(%rbx), %r8
        mov 40(%rbx), %r9
        mov 48(%rbx), %rax
        mov 56(%rbx), %r10
        movups 64(%rbx), %xmm0
        movups 80(%rbx), %xmm1
        movups 96(%rbx), %xmm2
        movups 112(%rbx), %xmm3
        movups 128(%rbx), %xmm4
        movups 144(%rbx), %xmm5
        movups 160(%rbx), %xmm6
        movups 176(%rbx), %xmm7
        call *%r11
        mov %rax, 208(%rbx)
        mov %rdx, 216(%rbx)
        movups %xmm0, 224(%rbx)
        movups %xmm1, 240(%rbx)
        add $264, %rsp
        pop %rbx
        pop %rbp
        .cfi_def_cfa %rsp, 8
        ret
        .cfi_endproc
        .size rota_gated_go_on, . - rota_gated_go_on

// 256 stubs of 16 bytes each.
        .p2align 4
        .globl rota_gated_stubs
        .hidden rota_gated_stubs
        .type rota_gated_stubs, @function
rota_gated_stubs:
        .set number, 0
        .rept 256
        .cfi_startproc
        .p2align 4
        pushq $number
        .cfi_def_cfa_offset 16
        jmp rota_gated_common
        .set number, number + 1
        .cfi_endproc
        .endr
        .p2align 4
        .size rota_gated_stubs, . - rota_gated_stubs
#endif

        .section .note.GNU-stack, "", %progbits
