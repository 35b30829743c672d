#include "sim/cuda/work.h"
CUresult sim_capture_add(sim_stream *stream, const sim_work *work) { (void)stream, (void)work; return CUDA_ERROR_NOT_SUPPORTED; }
CUresult sim_capture_record(sim_event *event, sim_stream *stream) { (void)event, (void)stream; return CUDA_ERROR_NOT_SUPPORTED; }
CUresult sim_capture_wait(sim_event *event, sim_stream *stream) { (void)event, (void)stream; return CUDA_ERROR_NOT_SUPPORTED; }
void sim_capture_stream_gone(sim_stream *stream) { (void)stream; }
void sim_capture_invalidate(sim_capture *capture) { (void)capture; }
CUresult sim_capture_forbids(sim_context *ctx) { (void)ctx; return CUDA_SUCCESS; }
void sim_pools_settle(sim_gpu *gpu) { (void)gpu; }
void sim_pool_free_now(sim_alloc *alloc) { (void)alloc; }
