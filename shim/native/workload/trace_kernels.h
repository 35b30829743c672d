/* Kernels that record when they ran, as PTX that any driver since CUDA 9 accepts. They measure
 * device time independently of the shim and of the driver's counters.
 *
 * A trace is device memory. It starts with two words (number of segments stored, number that fit),
 * followed by segments of four words: start and end by %globaltimer (ns), the SM, and whether the
 * segment ended by preemption. A kernel that is preempted sees its clock jump, which ends one
 * segment and starts the next.
 */
#pragma once

#define JUMP_NS 10000 /* two reads by a running warp are never further apart than this */
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

enum { TRACE_HEAD_BYTES = 64, SEGMENT_BYTES = 32 };

/* Adds the segment begin..end to the trace. `mark` is 1 if it ended by preemption. */
#define STORE_SEGMENT(label, mark)                                                 \
  "atom.global.add.u64 %slot, [%trace], 1;\nsetp.ge.u64 %full, %slot, %room;\n"    \
  "@%full bra " label                                                              \
  ";\nshl.b64 %at, %slot, 5;\nadd.u64 %at, %at, %trace;\n"                         \
  "st.global.u64 [%at+64], %begin;\nst.global.u64 [%at+72], %last;\n"              \
  "mov.u32 %sm, %smid;\ncvt.u64.u32 %wide, %sm;\nst.global.u64 [%at+80], %wide;\n" \
  "mov.u64 %wide, " mark ";\nst.global.u64 [%at+88], %wide;\n" label ":\n"

/* For multi-block kernels: records the first start and the last end over all blocks, in a segment
 * of their own. */
#define BLOCK_BEGINS                                                               \
  "mov.u32 %t, %tid.x;\nsetp.ne.u32 %other, %t, 0;\nmov.u64 %now, %globaltimer;\n" \
  "@!%other atom.global.min.u64 %old, [%segment], %now;\n"
#define BLOCK_ENDS                             \
  "bar.sync 0;\nmov.u64 %now, %globaltimer;\n" \
  "@!%other atom.global.max.u64 %old, [%segment+8], %now;\nret;\n}\n"

static const char trace_kernels[] =
    ".version 6.0\n.target sm_60\n.address_size 64\n"
    /* Runs for `duration` ns, not counting time during which it was preempted. */
    ".visible .entry penstock_traced(.param .u64 duration, .param .u64 trace, .param .u64 fits)\n{\n"
    ".reg .pred %other, %jump, %more, %full;\n.reg .u32 %t, %sm;\n"
    ".reg .u64 %limit, %trace, %room, %begin, %last, %now, %step, %ran, %slot, %at, %wide;\n"
    "mov.u32 %t, %tid.x;\nsetp.ne.u32 %other, %t, 0;\n@%other bra done;\n"
    "ld.param.u64 %limit, [duration];\nld.param.u64 %trace, [trace];\n"
    "ld.param.u64 %room, [fits];\n"
    "mov.u64 %begin, %globaltimer;\nmov.u64 %last, %begin;\nmov.u64 %ran, 0;\n"
    "again:\nmov.u64 %now, %globaltimer;\nsub.u64 %step, %now, %last;\n"
    "setp.gt.u64 %jump, %step, " TEXT(JUMP_NS) ";\n@%jump bra away;\n"
    "add.u64 %ran, %ran, %step;\nmov.u64 %last, %now;\n"
    "setp.lt.u64 %more, %ran, %limit;\n@%more bra again;\nbra end;\n"
    "away:\n" STORE_SEGMENT("stored", "1")
    "mov.u64 %begin, %now;\nmov.u64 %last, %now;\nbra again;\n"
    "end:\n" STORE_SEGMENT("done", "0") "ret;\n}\n"
    /* Stores the device's clock, to be paired with the host's. */
    ".visible .entry penstock_clock(.param .u64 place)\n{\n.reg .u64 %place, %now;\n"
    "ld.param.u64 %place, [place];\nmov.u64 %now, %globaltimer;\nst.global.u64 [%place], %now;\n"
    "ret;\n}\n"
    /* Memory-bound: adds up `count` words in strides of the grid and stores the sums. */
    ".visible .entry penstock_sweep(.param .u64 data, .param .u64 count, .param .u64 sums,\n"
    ".param .u64 segment)\n{\n.reg .pred %other, %more;\n"
    ".reg .u32 %t, %b, %n, %g, %first32, %stride32, %word, %sum;\n"
    ".reg .u64 %data, %count, %sums, %segment, %now, %old, %i, %stride, %at;\n"
    "ld.param.u64 %data, [data];\nld.param.u64 %count, [count];\nld.param.u64 %sums, [sums];\n"
    "ld.param.u64 %segment, [segment];\n" BLOCK_BEGINS
    "mov.u32 %b, %ctaid.x;\nmov.u32 %n, %ntid.x;\nmov.u32 %g, %nctaid.x;\n"
    "mad.lo.u32 %first32, %b, %n, %t;\nmul.lo.u32 %stride32, %n, %g;\n"
    "cvt.u64.u32 %i, %first32;\ncvt.u64.u32 %stride, %stride32;\nmov.u32 %sum, 0;\n"
    "shl.b64 %at, %i, 2;\nadd.u64 %sums, %sums, %at;\n"
    "setp.lt.u64 %more, %i, %count;\n@!%more bra over;\n"
    "next:\nshl.b64 %at, %i, 2;\nadd.u64 %at, %at, %data;\nld.global.u32 %word, [%at];\n"
    "add.u32 %sum, %sum, %word;\nadd.u64 %i, %i, %stride;\n"
    "setp.lt.u64 %more, %i, %count;\n@%more bra next;\n"
    "over:\nst.global.u32 [%sums], %sum;\n" BLOCK_ENDS
    /* Compute-bound: C = A x B with n x n float32 matrices, one thread per element, n a multiple of
     * 16. */
    ".visible .entry penstock_multiply(.param .u64 left, .param .u64 right, .param .u64 out,\n"
    ".param .u64 edge, .param .u64 segment)\n{\n.reg .pred %other, %more;\n"
    ".reg .u32 %t, %ty, %bx, %by, %row, %column, %n, %k, %index;\n.reg .f32 %a, %b, %c;\n"
    ".reg .u64 %left, %right, %out, %edge, %segment, %now, %old, %at, %line;\n"
    "ld.param.u64 %left, [left];\nld.param.u64 %right, [right];\nld.param.u64 %out, [out];\n"
    "ld.param.u64 %edge, [edge];\nld.param.u64 %segment, [segment];\n"
    "mov.u32 %ty, %tid.y;\n" BLOCK_BEGINS
    "mov.u32 %bx, %ctaid.x;\nmov.u32 %by, %ctaid.y;\ncvt.u32.u64 %n, %edge;\n"
    "shl.b32 %column, %bx, 4;\nadd.u32 %column, %column, %t;\n"
    "shl.b32 %row, %by, 4;\nadd.u32 %row, %row, %ty;\n"
    "mul.lo.u32 %index, %row, %n;\nmul.wide.u32 %at, %index, 4;\nadd.u64 %left, %left, %at;\n"
    "add.u64 %out, %out, %at;\nmul.wide.u32 %at, %column, 4;\nadd.u64 %right, %right, %at;\n"
    "add.u64 %out, %out, %at;\nshl.b64 %line, %edge, 2;\nmov.u32 %k, 0;\n"
    "mov.f32 %c, 0f00000000;\n"
    "next:\nld.global.f32 %a, [%left];\nld.global.f32 %b, [%right];\nfma.rn.f32 %c, %a, %b, %c;\n"
    "add.u64 %left, %left, 4;\nadd.u64 %right, %right, %line;\nadd.u32 %k, %k, 1;\n"
    "setp.lt.u32 %more, %k, %n;\n@%more bra next;\nst.global.f32 [%out], %c;\n" BLOCK_ENDS;
