/* Runs a piece of work on the device. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/module.h"
#include "sim/cuda/work.h"

/* Prepares a kernel that runs until a word in memory has a certain value, and that may store a word
 * when it starts. */
static void await_word(const sim_kernel_act *act, sim_op *op) {
  /* for SIM_JOINS, the word counts the kernels that have started */
  bool joins = act->what == SIM_JOINS;
  uint64_t told = joins ? act->words[0] : act->words[2];
  sim_big_lock();
  bool known = !(act->words[0] % 8) && sim_alloc_find(act->words[0]) &&
               (!told || (!(told % 8) && sim_alloc_find(told)));
  sim_big_unlock();
  sim_errand *errand = known ? calloc(1, sizeof *errand) : NULL;
  if (!errand) { /* the address is not mapped */
    op->flags |= SIM_OP_FAIL;
    return;
  }
  *errand = (sim_errand){.address = act->words[0],
                         .value = act->words[1],
                         .flags = CU_STREAM_WAIT_VALUE_GEQ,
                         .width = 8,
                         .store_address = told,
                         .store_value = joins ? 1 : act->words[3],
                         .adds = joins};
  op->owner_data = (uint64_t)errand;
  op->flags |= SIM_OP_AWAITS;
}

void sim_work_op_drop(const sim_op *op) {
  if (op->flags & SIM_OP_AWAITS) free((void *)op->owner_data);
}

bool sim_work_op(const sim_work *work, sim_op *op) {
  *op = (sim_op){.launches = 1};
  switch (work->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      sim_function *f = work->kernel.function;
      sim_gpu *gpu = f->ctx->gpu;
      const unsigned *g = work->kernel.grid, *b = work->kernel.block;
      uint64_t threads = (uint64_t)g[0] * g[1] * g[2] * b[0] * b[1] * b[2];
      uint64_t room = (uint64_t)gpu->profile->sm_count * gpu->profile->max_threads_per_sm;
      op->kind = SIM_KERNEL;
      sim_kernel_act act = sim_kernel_act_of(work);
      op->duration_ns = act.duration_ns;
      if (act.what == SIM_LASTS_UNTIL || act.what == SIM_JOINS) await_word(&act, op);
      if (act.what == SIM_SETS_CONDITION) sim_condition_set(act.words[0], act.words[1]);
      if (work->kernel.early) op->flags |= SIM_OP_EARLY;
      uint64_t share = (uint64_t)work->kernel.sms * gpu->profile->max_threads_per_sm;
      if (share && threads > share) {
        if (!act.by_rule)
          op->duration_ns = op->duration_ns * (threads < room ? threads : room) / share;
        threads = share;
      }
      op->width = threads >= room ? 1000 : (uint16_t)(1 + threads * 999 / room);
      if (sim_fault_hits(sim_here.machine, gpu->device, SIM_FAULT_LAUNCH_FAILED, sim_self.call,
                         NULL))
        op->flags |= SIM_OP_FAIL;
      return true;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      sim_move_op(work->copy.ctx->gpu, &work->copy.move, op);
      return true;
    case CU_GRAPH_NODE_TYPE_MEMSET:
      sim_move_op(work->set.ctx->gpu, &work->set.move, op);
      return true;
    default:
      return false;
  }
}

void sim_work_contents(const sim_work *work) {
  if (work->type == CU_GRAPH_NODE_TYPE_MEMCPY) sim_move_contents(&work->copy.move);
  if (work->type == CU_GRAPH_NODE_TYPE_MEMSET) sim_move_contents(&work->set.move);
}

static CUresult run_host(sim_stream *stream, const sim_work *work) {
  sim_errand *errand = calloc(1, sizeof *errand);
  REQUIRE(errand, CUDA_ERROR_OUT_OF_MEMORY);
  errand->function = work->host.function;
  errand->callback = work->host.callback;
  errand->stream = (CUstream)stream;
  errand->user_data = work->host.user_data;
  sim_op op = {.kind = SIM_HOST, .owner_data = (uint64_t)errand};
  sim_ref ref;
  CUresult result = sim_submit_work(stream, &op, &ref);
  if (result != CUDA_SUCCESS) free(errand);
  return result;
}

CUresult sim_work_prepare(const sim_work *work, sim_context *ctx) {
  if (work->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_SUCCESS;
  sim_function *f = work->kernel.function;
  TRY(sim_function_load(f));
  return sim_local_memory_take(ctx, f->kernel->local_bytes);
}

CUresult sim_run(sim_stream *stream, const sim_work *work) {
  sim_op op;
  sim_ref ref;
  switch (work->type) {
    case CU_GRAPH_NODE_TYPE_HOST:
      return run_host(stream, work);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return sim_event_record_on(work->event.event, stream);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return sim_event_wait_on(work->event.event, stream);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return sim_run_batch(stream, work->batch.ops, work->batch.count);
    default:
      break;
  }
  TRY(sim_work_prepare(work, stream->ctx));
  if (!sim_work_op(work, &op)) return CUDA_SUCCESS;
  CUresult result = sim_submit_work(stream, &op, &ref);
  if (result != CUDA_SUCCESS) {
    sim_work_op_drop(&op);
    return result;
  }
  sim_work_contents(work);
  return CUDA_SUCCESS;
}

CUresult sim_issue(sim_stream *stream, const sim_work *work) {
  return stream->capture ? sim_capture_add(stream, work) : sim_run(stream, work);
}

bool sim_work_keep(sim_work *work) {
  if (work->type == CU_GRAPH_NODE_TYPE_KERNEL) {
    size_t bytes = work->kernel.param_bytes;
    char *copy = calloc(1, bytes + 8);
    void **list = calloc(work->kernel.param_count + 1, sizeof *list);
    if (!copy || !list) {
      free(copy);
      free(list);
      return false;
    }
    if (bytes) memcpy(copy, work->kernel.params, bytes);
    for (uint32_t i = 0; i < work->kernel.param_count; i++)
      list[i] = copy + ((char *)work->kernel.param_list[i] - (char *)work->kernel.params);
    work->kernel.params = copy;
    work->kernel.param_list = list;
  }
  if (work->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
    CUstreamBatchMemOpParams *ops = malloc(work->batch.count * sizeof *ops);
    if (!ops) return false;
    memcpy(ops, work->batch.ops, work->batch.count * sizeof *ops);
    work->batch.ops = ops;
  }
  return true;
}

void sim_work_release(sim_work *work) {
  if (work->type == CU_GRAPH_NODE_TYPE_KERNEL) {
    free(work->kernel.params);
    free(work->kernel.param_list);
  }
  if (work->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) free(work->batch.ops);
}
