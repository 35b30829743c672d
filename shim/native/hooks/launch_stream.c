/* Other calls on streams: waits, captures, host functions, destruction. */
#include "common/log.h"
#include "hooks/hook.h"
#include "hooks/launch_state.h"
#include "memory/reserve.h"

/* While a program waits, no lock of the gate is held. Windows are ended before the wait and settled
 * after it. */
#define SYNCHRONISING(symbol, before, after, parameters, arguments)   \
  CUresult CUDAAPI HOOK_NAME(symbol) parameters {                     \
    before;                                                           \
    CUresult result = REAL(symbol) arguments;                         \
    after;                                                            \
    penstock_reserves_settle(); /* pools shrink when programs wait */ \
    return result;                                                    \
  }

SYNCHRONISING(cuStreamSynchronize, gate_before_wait(stream, false),
              gate_after_wait(result == CUDA_SUCCESS), (CUstream stream), (stream))
SYNCHRONISING(cuStreamSynchronize_ptsz, gate_before_wait(stream, true),
              gate_after_wait(result == CUDA_SUCCESS), (CUstream stream), (stream))
SYNCHRONISING(cuCtxSynchronize, gate_before_wait_all(NULL),
              gate_after_wait_all(result == CUDA_SUCCESS), (void), ())
SYNCHRONISING(cuCtxSynchronize_v2, gate_before_wait_all(context),
              gate_after_wait_all(result == CUDA_SUCCESS), (CUcontext context), (context))
SYNCHRONISING(cuEventSynchronize, (void)0, gate_after_event(), (CUevent event), (event))

/* Work that is not compute, queued between kernels. */
#define INTERRUPTING(symbol, per_thread, parameters, arguments) \
  CUresult CUDAAPI HOOK_NAME(symbol) parameters {               \
    penstock_gate_interrupt(stream, per_thread);                \
    return REAL(symbol) arguments;                              \
  }
#define WAIT_VALUE(symbol, per_thread, type)                                           \
  INTERRUPTING(symbol, per_thread,                                                     \
               (CUstream stream, CUdeviceptr address, type value, unsigned int flags), \
               (stream, address, value, flags))
WAIT_VALUE(cuStreamWaitValue32, false, cuuint32_t)
WAIT_VALUE(cuStreamWaitValue32_ptsz, true, cuuint32_t)
WAIT_VALUE(cuStreamWaitValue32_v2, false, cuuint32_t)
WAIT_VALUE(cuStreamWaitValue32_v2_ptsz, true, cuuint32_t)
WAIT_VALUE(cuStreamWaitValue64, false, cuuint64_t)
WAIT_VALUE(cuStreamWaitValue64_ptsz, true, cuuint64_t)
WAIT_VALUE(cuStreamWaitValue64_v2, false, cuuint64_t)
WAIT_VALUE(cuStreamWaitValue64_v2_ptsz, true, cuuint64_t)

#define BATCH(symbol, per_thread)                                                                \
  INTERRUPTING(                                                                                  \
      symbol, per_thread,                                                                        \
      (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *list, unsigned int flags), \
      (stream, count, list, flags))
BATCH(cuStreamBatchMemOp, false)
BATCH(cuStreamBatchMemOp_ptsz, true)
BATCH(cuStreamBatchMemOp_v2, false)
BATCH(cuStreamBatchMemOp_v2_ptsz, true)

#define WAIT_EVENT(symbol, per_thread)                                                   \
  INTERRUPTING(symbol, per_thread, (CUstream stream, CUevent event, unsigned int flags), \
               (stream, event, flags))
WAIT_EVENT(cuStreamWaitEvent, false)
WAIT_EVENT(cuStreamWaitEvent_ptsz, true)

/* Host functions, which hold up the stream but not the SMs. */
#define CALLS_HOST(symbol, per_thread, parameters, arguments)        \
  CUresult CUDAAPI HOOK_NAME(symbol) parameters {                    \
    bool runs = penstock_gate_interrupt(stream, per_thread);         \
    CUresult result = REAL(symbol) arguments;                        \
    if (runs && result == CUDA_SUCCESS) penstock_gate_called_host(); \
    return result;                                                   \
  }
#define HOST_FUNCTION(symbol, per_thread)                                          \
  CALLS_HOST(symbol, per_thread, (CUstream stream, CUhostFn function, void *data), \
             (stream, function, data))
HOST_FUNCTION(cuLaunchHostFunc, false)
HOST_FUNCTION(cuLaunchHostFunc_ptsz, true)
#define HOST_FUNCTION_V2(symbol, per_thread)                                      \
  CALLS_HOST(symbol, per_thread,                                                  \
             (CUstream stream, CUhostFn function, void *data, unsigned int mode), \
             (stream, function, data, mode))
HOST_FUNCTION_V2(cuLaunchHostFunc_v2, false)
HOST_FUNCTION_V2(cuLaunchHostFunc_v2_ptsz, true)
#define CALLBACK(symbol, per_thread)                                                       \
  CALLS_HOST(symbol, per_thread,                                                           \
             (CUstream stream, CUstreamCallback callback, void *data, unsigned int flags), \
             (stream, callback, data, flags))
CALLBACK(cuStreamAddCallback, false)
CALLBACK(cuStreamAddCallback_ptsz, true)

/* Waits for other interfaces' work on shared memory. */
#define SEMAPHORES(symbol, per_thread, type)                                                    \
  INTERRUPTING(                                                                                 \
      symbol, per_thread,                                                                       \
      (const CUexternalSemaphore *list, const type *what, unsigned int count, CUstream stream), \
      (list, what, count, stream))
SEMAPHORES(cuWaitExternalSemaphoresAsync, false, CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS)
SEMAPHORES(cuWaitExternalSemaphoresAsync_ptsz, true, CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS)
#define GRAPHICS(symbol, per_thread)                                            \
  INTERRUPTING(symbol, per_thread,                                              \
               (unsigned int count, CUgraphicsResource *list, CUstream stream), \
               (count, list, stream))
GRAPHICS(cuGraphicsMapResources, false)
GRAPHICS(cuGraphicsMapResources_ptsz, true)

/* Makes all streams of a context wait. */
CUresult CUDAAPI HOOK_NAME(cuCtxWaitEvent)(CUcontext context, CUevent event) {
  penstock_gate_interrupt_all(context);
  return REAL(cuCtxWaitEvent)(context, event);
}
CUresult CUDAAPI HOOK_NAME(cuGreenCtxWaitEvent)(CUgreenCtx green, CUevent event) {
  CUcontext context = NULL;
  if (REAL(cuCtxFromGreenCtx)(&context, green) == CUDA_SUCCESS) {
    penstock_gate_interrupt_all(context);
  }
  return REAL(cuGreenCtxWaitEvent)(green, event);
}

/* Captures under way are counted, so that without one no other call queries the driver. An open
 * window is ended before the capture, because it could not be ended while the stream captures. */
static void capture_ends(void) {
  gate_state *state = gate_state_get();
  if (state) gate_capture_ended(state);
}

/* Notes the stream on which a capture started. A stream that is destroyed while it captures ends
 * the capture (launch_end.c). */
static void note_origin(CUstream handle, bool per_thread, bool captures) {
  gate_state *state = gate_state_get();
  gate_stream *stream = state ? gate_stream_get(state, handle, per_thread) : NULL;
  if (stream) __atomic_store_n(&stream->captures, captures, __ATOMIC_RELAXED);
}

static void capture_begins(CUstream stream, bool per_thread) {
  penstock_gate_interrupt(stream, per_thread);
  gate_state *state = gate_state_get();
  if (state) __atomic_fetch_add(&state->captures, 1, __ATOMIC_RELAXED);
}

#define BEGIN_CAPTURE(symbol, per_thread, parameters, arguments)       \
  CUresult CUDAAPI HOOK_NAME(symbol) parameters {                      \
    capture_begins(stream, per_thread);                                \
    CUresult result = REAL(symbol) arguments;                          \
    if (result != CUDA_SUCCESS) capture_ends();                        \
    if (result == CUDA_SUCCESS) note_origin(stream, per_thread, true); \
    return result;                                                     \
  }
BEGIN_CAPTURE(cuStreamBeginCapture, false, (CUstream stream), (stream))
BEGIN_CAPTURE(cuStreamBeginCapture_ptsz, true, (CUstream stream), (stream))
BEGIN_CAPTURE(cuStreamBeginCapture_v2, false, (CUstream stream, CUstreamCaptureMode mode),
              (stream, mode))
BEGIN_CAPTURE(cuStreamBeginCapture_v2_ptsz, true, (CUstream stream, CUstreamCaptureMode mode),
              (stream, mode))
#define CAPTURE_TO_GRAPH                                                                   \
  (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges, \
   size_t count, CUstreamCaptureMode mode)
BEGIN_CAPTURE(cuStreamBeginCaptureToGraph, false, CAPTURE_TO_GRAPH,
              (stream, graph, nodes, edges, count, mode))
BEGIN_CAPTURE(cuStreamBeginCaptureToGraph_ptsz, true, CAPTURE_TO_GRAPH,
              (stream, graph, nodes, edges, count, mode))
#define RECAPTURE                                                                           \
  (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback call, \
   void *data)
BEGIN_CAPTURE(cuStreamBeginRecaptureToGraph, false, RECAPTURE, (stream, mode, graph, call, data))
BEGIN_CAPTURE(cuStreamBeginRecaptureToGraph_ptsz, true, RECAPTURE,
              (stream, mode, graph, call, data))

bool penstock_gate_sees_captures(void) {
  const gate_state *state = gate_state_get();
  return !state || __atomic_load_n(&state->captures, __ATOMIC_ACQUIRE) != 0;
}

/* Returns true if the capture has ended. An invalidated capture ends here too; after a wrong call
 * the capture continues. */
static bool capture_is_over(CUresult result) {
  return result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
         result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED ||
         result == CUDA_ERROR_GRAPH_RECAPTURE_FAILURE;
}

#define END_CAPTURE(symbol, per_thread)                                  \
  CUresult CUDAAPI HOOK_NAME(symbol)(CUstream stream, CUgraph * graph) { \
    CUresult result = REAL(symbol)(stream, graph);                       \
    if (capture_is_over(result)) {                                       \
      note_origin(stream, per_thread, false);                            \
      capture_ends();                                                    \
    }                                                                    \
    return result;                                                       \
  }
END_CAPTURE(cuStreamEndCapture, false)
END_CAPTURE(cuStreamEndCapture_ptsz, true)

/* Launches recorded into a graphics interface's command list are run by that interface and bypass
 * the gate, so such a capture is refused. Drivers for Linux have no such interface. */
#define CAPTURE_FOR_GRAPHICS(symbol)                                                           \
  CUresult CUDAAPI HOOK_NAME(symbol)(CUstream stream, CUstreamCigCaptureParams * parameters) { \
    (void)stream, (void)parameters;                                                            \
    penstock_log(#symbol                                                                       \
                 " is refused because launches recorded for graphics would escape the quota"); \
    return CUDA_ERROR_NOT_SUPPORTED;                                                           \
  }
CAPTURE_FOR_GRAPHICS(cuStreamBeginCaptureToCig)
CAPTURE_FOR_GRAPHICS(cuStreamBeginCaptureToCig_ptsz)

#define DESTROY_STREAM(symbol)                          \
  CUresult CUDAAPI HOOK_NAME(symbol)(CUstream stream) { \
    penstock_gate_forget_stream(stream);                \
    return REAL(symbol)(stream);                        \
  }
DESTROY_STREAM(cuStreamDestroy)
DESTROY_STREAM(cuStreamDestroy_v2)
