/* Stream memory operations, which wait for values in memory or write them. */
#include <stdlib.h>

#include "sim/cuda/work.h"

static bool known_word(uint64_t address, unsigned width) {
  sim_big_lock();
  bool known = address && !(address % width) && sim_alloc_find(address);
  sim_big_unlock();
  return known;
}

CUresult sim_check_batch(sim_context *ctx, const CUstreamBatchMemOpParams *ops, unsigned count) {
  (void)ctx;
  REQUIRE(ops && count && count <= 256, CUDA_ERROR_INVALID_VALUE);
  for (unsigned i = 0; i < count; i++) {
    switch (ops[i].operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        REQUIRE(known_word(ops[i].waitValue.address, 4), CUDA_ERROR_INVALID_VALUE);
        break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        REQUIRE(known_word(ops[i].waitValue.address, 8), CUDA_ERROR_INVALID_VALUE);
        break;
      case CU_STREAM_MEM_OP_BARRIER:
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        break;
      default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return CUDA_SUCCESS;
}

CUresult sim_run_batch(sim_stream *stream, const CUstreamBatchMemOpParams *ops, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    CUstreamBatchMemOpType type = ops[i].operation;
    if (type == CU_STREAM_MEM_OP_BARRIER || type == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES) continue;
    bool write = type == CU_STREAM_MEM_OP_WRITE_VALUE_32 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    bool wide = type == CU_STREAM_MEM_OP_WAIT_VALUE_64 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    sim_errand *errand = calloc(1, sizeof *errand);
    REQUIRE(errand, CUDA_ERROR_OUT_OF_MEMORY);
    errand->address = ops[i].waitValue.address;
    errand->value = wide ? ops[i].waitValue.value64 : ops[i].waitValue.value;
    errand->flags = ops[i].waitValue.flags;
    errand->width = wide ? 8 : 4;
    errand->write = write;
    sim_op op = {.kind = write ? SIM_WRITE_VALUE : SIM_WAIT_VALUE, .owner_data = (uint64_t)errand};
    sim_ref ref;
    CUresult result = sim_submit_work(stream, &op, &ref);
    if (result != CUDA_SUCCESS) {
      free(errand);
      return result;
    }
  }
  return CUDA_SUCCESS;
}

static CUresult batch(CUstream handle, CUstreamBatchMemOpParams *ops, unsigned count) {
  sim_context *ctx = sim_current();
  sim_stream *stream;
  TRY(sim_stream_of(handle, ctx, &stream));
  TRY(sim_check_batch(ctx, ops, count));
  sim_work work = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                   .batch = {.ops = ops, .count = count, .ctx = ctx}};
  CUresult result = sim_issue(stream, &work);
  sim_spend(ctx->gpu->profile->stream_op_ns);
  return result;
}

static CUresult one(CUstream handle, CUstreamBatchMemOpType type, CUdeviceptr address,
                    uint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams op = {0};
  op.operation = type;
  op.waitValue.address = address;
  if (type == CU_STREAM_MEM_OP_WAIT_VALUE_64 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64)
    op.waitValue.value64 = value;
  else
    op.waitValue.value = (uint32_t)value;
  op.waitValue.flags = flags;
  return batch(handle, &op, 1);
}

/* v1 and v2 of these calls differ only in the systems that allow them. */
#define VALUE_CALL(name, base, type, value_type)                                \
  CUresult CUDAAPI name(CUstream handle, CUdeviceptr address, value_type value, \
                        unsigned int flags) {                                   \
    ENTER_CONTEXT(base);                                                        \
    (void)ctx;                                                                  \
    return one(handle, type, address, value, flags);                            \
  }
VALUE_CALL(cuStreamWaitValue32, "cuStreamWaitValue32", CU_STREAM_MEM_OP_WAIT_VALUE_32, cuuint32_t)
VALUE_CALL(cuStreamWaitValue32_v2, "cuStreamWaitValue32", CU_STREAM_MEM_OP_WAIT_VALUE_32,
           cuuint32_t)
VALUE_CALL(cuStreamWriteValue32, "cuStreamWriteValue32", CU_STREAM_MEM_OP_WRITE_VALUE_32,
           cuuint32_t)
VALUE_CALL(cuStreamWriteValue32_v2, "cuStreamWriteValue32", CU_STREAM_MEM_OP_WRITE_VALUE_32,
           cuuint32_t)
VALUE_CALL(cuStreamWaitValue64, "cuStreamWaitValue64", CU_STREAM_MEM_OP_WAIT_VALUE_64, cuuint64_t)
VALUE_CALL(cuStreamWaitValue64_v2, "cuStreamWaitValue64", CU_STREAM_MEM_OP_WAIT_VALUE_64,
           cuuint64_t)
VALUE_CALL(cuStreamWriteValue64, "cuStreamWriteValue64", CU_STREAM_MEM_OP_WRITE_VALUE_64,
           cuuint64_t)
VALUE_CALL(cuStreamWriteValue64_v2, "cuStreamWriteValue64", CU_STREAM_MEM_OP_WRITE_VALUE_64,
           cuuint64_t)

CUresult CUDAAPI cuStreamBatchMemOp(CUstream handle, unsigned int count,
                                    CUstreamBatchMemOpParams *ops, unsigned int flags) {
  ENTER_CONTEXT("cuStreamBatchMemOp");
  (void)ctx;
  REQUIRE(!flags, CUDA_ERROR_INVALID_VALUE);
  return batch(handle, ops, count);
}
CUresult CUDAAPI cuStreamBatchMemOp_v2(CUstream handle, unsigned int count,
                                       CUstreamBatchMemOpParams *ops, unsigned int flags) {
  ENTER_CONTEXT("cuStreamBatchMemOp");
  (void)ctx;
  REQUIRE(!flags, CUDA_ERROR_INVALID_VALUE);
  return batch(handle, ops, count);
}
