// The built-in profiles: the text of each file, and a table of them (profile.cpp).
        .section .rodata, "a"

        .macro rota_profile name, file
.Lname_\name:
        .asciz "\file"
.Lbegin_\name:
        .incbin "tools/simgpu/profiles/\file\().toml"
.Lend_\name:
        .endm
        rota_profile h200, h200
        rota_profile h100, h100
        rota_profile a100, a100
        rota_profile l4, l4
        rota_profile t4, t4
        rota_profile rtx4090, rtx4090
        rota_profile mig_1g, mig-1g

        .macro rota_profile_row name
        .quad .Lname_\name, .Lbegin_\name, .Lend_\name
        .endm
        .section .data.rel.ro, "aw"
        .p2align 3
        .globl rota_sim_profiles
        .hidden rota_sim_profiles
rota_sim_profiles:
        rota_profile_row h200
        rota_profile_row h100
        rota_profile_row a100
        rota_profile_row l4
        rota_profile_row t4
        rota_profile_row rtx4090
        rota_profile_row mig_1g
        .quad 0, 0, 0

        .section .note.GNU-stack, "", %progbits
