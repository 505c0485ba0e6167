// The functions of gated tables (gated_table.cpp): each notes its number and goes on to the common part, which hands the
// arguments on as they came (registers, and 256 bytes of the stack) and returns the result registers as they are.
#if defined(__x86_64__)
// Offsets in RotaGatedCall: 0 rdi, rsi, rdx, rcx, r8, r9; 48 rax; 56 r10; 64 xmm0 to xmm7; 192 number; 200 stacked; 208
// results rax, rdx; 224 results xmm0, xmm1; 256 bytes in all.
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

#elif defined(__aarch64__)
// Offsets in RotaGatedCall: 0 x0 to x7; 64 x8, where a large result goes; 80 q0 to q7; 208 number; 216 stacked; 224
// results x0, x1; 240 results q0 to q3; 304 bytes in all.
        .text

        .p2align 4
        .type rota_gated_common, %function
rota_gated_common:
        .cfi_startproc
        stp x29, x30, [sp, #-320]!
        .cfi_def_cfa_offset 320
        .cfi_offset x29, -320
        .cfi_offset x30, -312
        mov x29, sp
        stp x0, x1, [sp, #16]
        stp x2, x3, [sp, #32]
        stp x4, x5, [sp, #48]
        stp x6, x7, [sp, #64]
        str x8, [sp, #80]
        stp q0, q1, [sp, #96]
        stp q2, q3, [sp, #128]
        stp q4, q5, [sp, #160]
        stp q6, q7, [sp, #192]
        add x17, sp, #320
        stp x16, x17, [sp, #224]
        add x0, sp, #16
        bl rota_gated_call
        ldp x0, x1, [sp, #240]
        ldp q0, q1, [sp, #256]
        ldp q2, q3, [sp, #288]
        ldp x29, x30, [sp], #320
        .cfi_restore x29
        .cfi_restore x30
        .cfi_def_cfa_offset 0
        ret
        .cfi_endproc
        .size rota_gated_common, . - rota_gated_common

// void rota_gated_go_on(RotaGatedCall*, void* function)
        .p2align 4
        .globl rota_gated_go_on
        .hidden rota_gated_go_on
        .type rota_gated_go_on, %function
rota_gated_go_on:
        .cfi_startproc
        hint #34                        // bti c
        stp x29, x30, [sp, #-32]!
        .cfi_def_cfa_offset 32
        .cfi_offset x29, -32
        .cfi_offset x30, -24
        mov x29, sp
        .cfi_def_cfa_register x29
        str x19, [sp, #16]
        .cfi_offset x19, -16
        mov x19, x0
        mov x16, x1
        sub sp, sp, #256
        ldr x9, [x19, #216]
        .irp part, 0, 32, 64, 96, 128, 160, 192, 224
        ldp q0, q1, [x9, #\part]
        stp q0, q1, [sp, #\part]
        .endr
        ldp x0, x1, [x19, #0]
        ldp x2, x3, [x19, #16]
        ldp x4, x5, [x19, #32]
        ldp x6, x7, [x19, #48]
        ldr x8, [x19, #64]
        ldp q0, q1, [x19, #80]
        ldp q2, q3, [x19, #112]
        ldp q4, q5, [x19, #144]
        ldp q6, q7, [x19, #176]
        blr x16
        stp x0, x1, [x19, #224]
        stp q0, q1, [x19, #240]
        stp q2, q3, [x19, #272]
        mov sp, x29
        .cfi_def_cfa_register sp
        ldr x19, [sp, #16]
        .cfi_restore x19
        ldp x29, x30, [sp], #32
        .cfi_restore x29
        .cfi_restore x30
        .cfi_def_cfa_offset 0
        ret
        .cfi_endproc
        .size rota_gated_go_on, . - rota_gated_go_on

// 256 stubs of 16 bytes each.
        .p2align 4
        .globl rota_gated_stubs
        .hidden rota_gated_stubs
        .type rota_gated_stubs, %function
rota_gated_stubs:
        .set number, 0
        .rept 256
        .cfi_startproc
        .p2align 4
        hint #34                        // bti c
        mov x16, #number
        b rota_gated_common
        .set number, number + 1
        .cfi_endproc
        .endr
        .p2align 4
        .size rota_gated_stubs, . - rota_gated_stubs
#endif

        .section .note.GNU-stack, "", %progbits
