/* Exports a symbol from an empty library that only the linker reads. This file is assembly, so
 * clang-format must skip it: */
/* clang-format off */
#define STUB(name) .globl name; .type name, %function; name: .size name, 1
.section .note.GNU-stack, "", %progbits
.text
