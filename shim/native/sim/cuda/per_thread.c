/* The per-thread-default-stream entries, for which stream 0 means the thread's own stream.
 *
 * Each entry sets a thread-local flag and jumps to the plain entry, which reads the flag in ENTER.
 */
#include "sim/cuda/core.h"

#define PER_THREAD(name, suffix)                                            \
  __asm__(".text; .p2align 4; .globl " #name suffix "; .type " #name suffix \
          ", @function;" #name suffix                                       \
          ": mov sim_next_per_thread@gottpoff(%rip), %rax;"                 \
          "movb $1, %fs:(%rax); jmp " #name "; .size " #name suffix ", . - " #name suffix)

PER_THREAD(cuEventRecordWithFlags, "_ptsz");
PER_THREAD(cuEventRecord, "_ptsz");
PER_THREAD(cuFabricCpyBatchAsync, "_ptsz");
PER_THREAD(cuGraphInstantiateWithParams, "_ptsz");
PER_THREAD(cuGraphLaunch, "_ptsz");
PER_THREAD(cuGraphUpload, "_ptsz");
PER_THREAD(cuLaunchCooperativeKernel, "_ptsz");
PER_THREAD(cuLaunchHostFunc, "_ptsz");
PER_THREAD(cuLaunchHostFunc_v2, "_ptsz");
PER_THREAD(cuLaunchKernelEx, "_ptsz");
PER_THREAD(cuLaunchKernel, "_ptsz");
PER_THREAD(cuMemAllocAsync, "_ptsz");
PER_THREAD(cuMemAllocFromPoolAsync, "_ptsz");
PER_THREAD(cuMemFreeAsync, "_ptsz");
PER_THREAD(cuMemMapArrayAsync, "_ptsz");
PER_THREAD(cuMemPrefetchAsync, "_ptsz");
PER_THREAD(cuMemPrefetchAsync_v2, "_ptsz");
PER_THREAD(cuMemcpy2DAsync_v2, "_ptsz");
PER_THREAD(cuMemcpy2DUnaligned_v2, "_ptds");
PER_THREAD(cuMemcpy2D_v2, "_ptds");
PER_THREAD(cuMemcpy3DAsync_v2, "_ptsz");
PER_THREAD(cuMemcpy3DPeerAsync, "_ptsz");
PER_THREAD(cuMemcpy3DPeer, "_ptds");
PER_THREAD(cuMemcpy3D_v2, "_ptds");
PER_THREAD(cuMemcpyAsync, "_ptsz");
PER_THREAD(cuMemcpyAtoA_v2, "_ptds");
PER_THREAD(cuMemcpyAtoD_v2, "_ptds");
PER_THREAD(cuMemcpyAtoHAsync_v2, "_ptsz");
PER_THREAD(cuMemcpyAtoH_v2, "_ptds");
PER_THREAD(cuMemcpyBatchAsync, "_ptsz");
PER_THREAD(cuMemcpyBatchAsync_v2, "_ptsz");
PER_THREAD(cuMemcpyDtoA_v2, "_ptds");
PER_THREAD(cuMemcpyDtoDAsync_v2, "_ptsz");
PER_THREAD(cuMemcpyDtoD_v2, "_ptds");
PER_THREAD(cuMemcpyDtoHAsync_v2, "_ptsz");
PER_THREAD(cuMemcpyDtoH_v2, "_ptds");
PER_THREAD(cuMemcpyHtoAAsync_v2, "_ptsz");
PER_THREAD(cuMemcpyHtoA_v2, "_ptds");
PER_THREAD(cuMemcpyHtoDAsync_v2, "_ptsz");
PER_THREAD(cuMemcpyHtoD_v2, "_ptds");
PER_THREAD(cuMemcpyPeerAsync, "_ptsz");
PER_THREAD(cuMemcpyPeer, "_ptds");
PER_THREAD(cuMemcpyWithAttributesAsync, "_ptsz");
PER_THREAD(cuMemcpy, "_ptds");
PER_THREAD(cuMemsetD16Async, "_ptsz");
PER_THREAD(cuMemsetD16_v2, "_ptds");
PER_THREAD(cuMemsetD2D16Async, "_ptsz");
PER_THREAD(cuMemsetD2D16_v2, "_ptds");
PER_THREAD(cuMemsetD2D32Async, "_ptsz");
PER_THREAD(cuMemsetD2D32_v2, "_ptds");
PER_THREAD(cuMemsetD2D8Async, "_ptsz");
PER_THREAD(cuMemsetD2D8_v2, "_ptds");
PER_THREAD(cuMemsetD32Async, "_ptsz");
PER_THREAD(cuMemsetD32_v2, "_ptds");
PER_THREAD(cuMemsetD8Async, "_ptsz");
PER_THREAD(cuMemsetD8_v2, "_ptds");
PER_THREAD(cuStreamAddCallback, "_ptsz");
PER_THREAD(cuStreamAttachMemAsync, "_ptsz");
PER_THREAD(cuStreamBatchMemOp, "_ptsz");
PER_THREAD(cuStreamBatchMemOp_v2, "_ptsz");
PER_THREAD(cuStreamBeginCaptureToGraph, "_ptsz");
PER_THREAD(cuStreamBeginCapture, "_ptsz");
PER_THREAD(cuStreamBeginCapture_v2, "_ptsz");
PER_THREAD(cuStreamBeginRecaptureToGraph, "_ptsz");
PER_THREAD(cuStreamCopyAttributes, "_ptsz");
PER_THREAD(cuStreamEndCapture, "_ptsz");
PER_THREAD(cuStreamGetAttribute, "_ptsz");
PER_THREAD(cuStreamGetCaptureInfo, "_ptsz");
PER_THREAD(cuStreamGetCaptureInfo_v2, "_ptsz");
PER_THREAD(cuStreamGetCaptureInfo_v3, "_ptsz");
PER_THREAD(cuStreamGetCtx, "_ptsz");
PER_THREAD(cuStreamGetCtx_v2, "_ptsz");
PER_THREAD(cuStreamGetDevResource, "_ptsz");
PER_THREAD(cuStreamGetDevice, "_ptsz");
PER_THREAD(cuStreamGetFlags, "_ptsz");
PER_THREAD(cuStreamGetId, "_ptsz");
PER_THREAD(cuStreamGetPriority, "_ptsz");
PER_THREAD(cuStreamIsCapturing, "_ptsz");
PER_THREAD(cuStreamQuery, "_ptsz");
PER_THREAD(cuStreamSetAttribute, "_ptsz");
PER_THREAD(cuStreamSynchronize, "_ptsz");
PER_THREAD(cuStreamUpdateCaptureDependencies, "_ptsz");
PER_THREAD(cuStreamUpdateCaptureDependencies_v2, "_ptsz");
PER_THREAD(cuStreamWaitEvent, "_ptsz");
PER_THREAD(cuStreamWaitValue32, "_ptsz");
PER_THREAD(cuStreamWaitValue32_v2, "_ptsz");
PER_THREAD(cuStreamWaitValue64, "_ptsz");
PER_THREAD(cuStreamWaitValue64_v2, "_ptsz");
PER_THREAD(cuStreamWriteValue32, "_ptsz");
PER_THREAD(cuStreamWriteValue32_v2, "_ptsz");
PER_THREAD(cuStreamWriteValue64, "_ptsz");
PER_THREAD(cuStreamWriteValue64_v2, "_ptsz");
