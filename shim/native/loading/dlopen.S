/* dlopen and dlmopen, which redirect names of the driver to the shim (redirect.c) and no others.
 *
 * Both functions end in a jump, because glibc uses the return address to find the library whose
 * RUNPATH and namespace apply. libc's function must therefore see the caller's address and not one
 * in this library.
 */
#if defined(__x86_64__)

    .text

/* void *dlopen(const char *name, int flags) */
    .p2align 4
    .globl dlopen
    .type dlopen, @function
dlopen:
    .cfi_startproc
    mov (%rsp), %rdx                  /* caller */
    push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    mov %rdx, %rsi
    call penstock_redirect_dlopen     /* (name, caller): name in rax, libc's dlopen in rdx */
    add $8, %rsp
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    mov %rax, %rdi
    jmp *%rdx
    .cfi_endproc
    .size dlopen, . - dlopen

/* void *dlmopen(Lmid_t space, const char *name, int flags) */
    .p2align 4
    .globl dlmopen
    .type dlmopen, @function
dlmopen:
    .cfi_startproc
    mov (%rsp), %rax                  /* caller */
    push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    push %rdx
    .cfi_adjust_cfa_offset 8
    mov %rsi, %rdi
    mov %rax, %rsi
    call penstock_redirect_dlmopen    /* (name, caller): name in rax, libc's dlmopen in rdx */
    mov %rdx, %r11
    pop %rdx
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    mov %rax, %rsi
    jmp *%r11
    .cfi_endproc
    .size dlmopen, . - dlmopen

#else
#error "Penstock's dlopen hook knows x86-64 only"
#endif

    .section .note.GNU-stack, "", %progbits
