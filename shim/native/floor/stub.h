/* An export of an empty library that only the linker sees. Assembly, so: */
/* clang-format off */
#define STUB(name) .globl name; .type name, %function; name: .size name, 1
.section .note.GNU-stack, "", %progbits
.text
