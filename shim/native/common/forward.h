/* Assembly of the generated forwarders. Each symbol gets:
 *
 *   export:  jmp *penstock_<lib>_real[index]         (or, if hooked: jmp hook_<symbol>)
 *   table:   penstock_<lib>_real[index] = thunk
 *   thunk:   loads the index and jumps to the resolver, which saves every argument register,
 *     calls
 *            void *penstock_<lib>_resolve(unsigned index, const void *caller), and jumps to the
 *            address that it returns
 *
 * `penstock_<lib>_resolve` (in C) stores the address in the table, so the thunk runs only once.
 * While calls are counted, the address is not stored, and the thunk runs at each call. */
/* clang-format off */
#if defined(__x86_64__)

#define PENSTOCK_FORWARD_BEGIN(lib) \
  .text; .p2align 4; .type penstock_##lib##_thunk, @function; \
  penstock_##lib##_thunk: .cfi_startproc; \
  push %rax; .cfi_adjust_cfa_offset 8; push %rdi; .cfi_adjust_cfa_offset 8; \
  push %rsi; .cfi_adjust_cfa_offset 8; push %rdx; .cfi_adjust_cfa_offset 8; \
  push %rcx; .cfi_adjust_cfa_offset 8; push %r8; .cfi_adjust_cfa_offset 8; \
  push %r9; .cfi_adjust_cfa_offset 8; \
  sub $128, %rsp; .cfi_adjust_cfa_offset 128; \
  movups %xmm0, (%rsp); movups %xmm1, 16(%rsp); movups %xmm2, 32(%rsp); movups %xmm3, 48(%rsp); \
  movups %xmm4, 64(%rsp); movups %xmm5, 80(%rsp); movups %xmm6, 96(%rsp); movups %xmm7, 112(%rsp); \
  mov %r11d, %edi; mov 184(%rsp), %rsi; call penstock_##lib##_resolve; mov %rax, %r11; \
  movups (%rsp), %xmm0; movups 16(%rsp), %xmm1; movups 32(%rsp), %xmm2; movups 48(%rsp), %xmm3; \
  movups 64(%rsp), %xmm4; movups 80(%rsp), %xmm5; movups 96(%rsp), %xmm6; movups 112(%rsp), %xmm7; \
  add $128, %rsp; .cfi_adjust_cfa_offset -128; \
  pop %r9; .cfi_adjust_cfa_offset -8; pop %r8; .cfi_adjust_cfa_offset -8; \
  pop %rcx; .cfi_adjust_cfa_offset -8; pop %rdx; .cfi_adjust_cfa_offset -8; \
  pop %rsi; .cfi_adjust_cfa_offset -8; pop %rdi; .cfi_adjust_cfa_offset -8; \
  pop %rax; .cfi_adjust_cfa_offset -8; \
  jmp *%r11; .cfi_endproc; .size penstock_##lib##_thunk, . - penstock_##lib##_thunk

#define PENSTOCK_FORWARD(lib, name, index) \
  .text; .p2align 4; .globl name; .type name, @function; \
  name: jmp *(penstock_##lib##_real + 8 * index)(%rip); .size name, . - name; \
  .Lthunk_##lib##_##index: mov $index, %r11d; jmp penstock_##lib##_thunk

#define PENSTOCK_HOOKED(lib, name, index) \
  .text; .p2align 4; .globl name; .type name, @function; \
  name: jmp hook_##name; .size name, . - name; \
  .Lthunk_##lib##_##index: mov $index, %r11d; jmp penstock_##lib##_thunk

#define PENSTOCK_STUB(name, result) \
  .text; .p2align 4; .weak name; .type name, @function; \
  name: mov $result, %eax; ret; .size name, . - name

#else
#error "Penstock's forwarders know x86-64 only"
#endif

#define PENSTOCK_FORWARD_TABLE(lib) \
  .data; .p2align 6; .globl penstock_##lib##_real; .hidden penstock_##lib##_real; \
  penstock_##lib##_real:
#define PENSTOCK_FORWARD_ENTRY(lib, index) .quad .Lthunk_##lib##_##index
#define PENSTOCK_FORWARD_EXPORTS(lib) \
  .section .data.rel.ro, "aw"; .p2align 6; .globl penstock_##lib##_exports; \
  .hidden penstock_##lib##_exports; penstock_##lib##_exports:
#define PENSTOCK_FORWARD_EXPORT(name) .quad name
#define PENSTOCK_FORWARD_END(lib) .section .note.GNU-stack, "", %progbits
#define PENSTOCK_STUB_END .section .note.GNU-stack, "", %progbits
