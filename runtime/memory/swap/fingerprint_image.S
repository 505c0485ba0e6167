// The PTX compiled from fingerprint.cu, null-terminated (fingerprints.cpp).
        .section .rodata, "a"
        .globl rota_fingerprint_image
        .hidden rota_fingerprint_image
rota_fingerprint_image:
        .incbin "runtime/memory/swap/fingerprint.ptx"
        .byte 0

        .section .note.GNU-stack, "", %progbits
