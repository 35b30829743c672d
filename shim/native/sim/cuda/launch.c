/* Kernel launches: the checks a driver makes, and how long the kernel takes. */
#include <fnmatch.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/module.h"
#include "sim/cuda/work.h"

/* ---- duration ---- */

/* "pattern=200us,pattern2=2ms,spin*=param0" of PENSTOCK_SIM_KERNELS. */
static sim_kernel_rule environment_rules[SIM_MAX_RULES];

static bool parse_rule(const char *text, size_t length, sim_kernel_rule *rule) {
  const char *equals = memchr(text, '=', length);
  if (!equals || equals == text || (size_t)(equals - text) >= SIM_NAME_BYTES) return false;
  memset(rule, 0, sizeof *rule);
  memcpy(rule->pattern, text, (size_t)(equals - text));
  rule->parameter = -1;
  if (!strncmp(equals + 1, "param", 5)) {
    rule->parameter = atoi(equals + 6);
    return true;
  }
  char *unit;
  double number = strtod(equals + 1, &unit);
  double scale = !strncmp(unit, "ns", 2)   ? 1
                 : !strncmp(unit, "us", 2) ? 1e3
                 : !strncmp(unit, "ms", 2) ? 1e6
                 : *unit == 's'            ? 1e9
                                           : 0;
  rule->duration_ns = (uint64_t)(number * scale);
  return number >= 0 && scale > 0;
}

static void read_environment_rules(void) {
  const char *text = getenv("PENSTOCK_SIM_KERNELS");
  for (int n = 0; text && *text && n < SIM_MAX_RULES;) {
    size_t length = strcspn(text, ",");
    sim_kernel_rule rule;
    if (parse_rule(text, length, &rule)) environment_rules[n++] = rule;
    text += length;
    if (*text) text++;
  }
}

static const sim_kernel_rule *find_rule(const sim_kernel_rule *rules, const char *name) {
  for (int i = 0; i < SIM_MAX_RULES && rules[i].pattern[0]; i++)
    if (!fnmatch(rules[i].pattern, name, 0)) return &rules[i];
  return NULL;
}

uint64_t sim_kernel_duration(sim_gpu *gpu, const char *name, uint64_t threads, const void *params) {
  const sim_profile *p = gpu->profile;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_environment_rules);
  const sim_kernel_rule *rule = find_rule(environment_rules, name);
  if (!rule) rule = find_rule(p->rules, name);
  if (!rule) return p->kernel_floor_ns + threads * p->thread_cost_ps / 1000;
  uint64_t ns = rule->duration_ns;
  if (rule->parameter >= 0 && params) memcpy(&ns, (const char *)params + 8 * rule->parameter, 8);
  return ns > p->kernel_floor_ns ? ns : p->kernel_floor_ns;
}

/* ---- parameters ---- */

#define MAX_PARAMS 1024
#define MAX_PARAM_BYTES 32764

static CUresult from_extra(void **extra, sim_work *work) {
  const void *buffer = NULL;
  size_t bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
      buffer = extra[1];
    else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
      bytes = *(size_t *)extra[1];
    else
      return CUDA_ERROR_INVALID_VALUE;
  }
  REQUIRE(bytes <= MAX_PARAM_BYTES && (buffer || !bytes), CUDA_ERROR_INVALID_VALUE);
  if (bytes) memcpy(work->kernel.params, buffer, bytes);
  work->kernel.param_bytes = bytes;
  return CUDA_SUCCESS;
}

static CUresult take_params(const sim_kernel *k, void **params, void **extra, sim_work *work) {
  sim_thread *self = &sim_self;
  if (!self->param_bytes) self->param_bytes = malloc(MAX_PARAM_BYTES + 8);
  if (!self->param_list) self->param_list = malloc(MAX_PARAMS * sizeof *self->param_list);
  REQUIRE(self->param_bytes && self->param_list, CUDA_ERROR_OUT_OF_MEMORY);
  char *param_bytes = work->kernel.params = self->param_bytes;
  void **param_list = work->kernel.param_list = self->param_list;
  memset(param_bytes, 0, 8);
  REQUIRE(!(params && extra), CUDA_ERROR_INVALID_VALUE);
  if (extra) TRY(from_extra(extra, work));
  if (!k->params) { /* the image does not say: a first parameter of 8 bytes is what a rule can use
                     */
    if (params && params[0]) memcpy(param_bytes, params[0], 4);
    return CUDA_SUCCESS;
  }
  REQUIRE(k->param_count <= MAX_PARAMS && k->param_bytes <= MAX_PARAM_BYTES,
          CUDA_ERROR_INVALID_VALUE);
  if (k->param_count && !params && !extra) return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t i = 0; i < k->param_count; i++) {
    param_list[i] = param_bytes + k->params[i].offset;
    if (params) memcpy(param_list[i], params[i], k->params[i].bytes);
  }
  work->kernel.param_count = k->param_count;
  work->kernel.param_bytes = k->param_bytes;
  return CUDA_SUCCESS;
}

/* ---- checks ---- */

static CUresult check_shape(const sim_function *f, const sim_gpu *gpu, const unsigned g[3],
                            const unsigned b[3], unsigned shared_bytes, const unsigned cluster[3],
                            bool cooperative) {
  const sim_profile *p = gpu->profile;
  REQUIRE(g[0] && g[1] && g[2] && b[0] && b[1] && b[2], CUDA_ERROR_INVALID_VALUE);
  REQUIRE(g[0] <= 2147483647u && g[1] <= 65535 && g[2] <= 65535, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(b[0] <= 1024 && b[1] <= 1024 && b[2] <= 64 && (uint64_t)b[0] * b[1] * b[2] <= 1024,
          CUDA_ERROR_INVALID_VALUE);
  unsigned threads = b[0] * b[1] * b[2];
  REQUIRE(threads <= f->kernel->max_threads, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(shared_bytes <= (unsigned)f->max_dynamic_shared, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(shared_bytes + f->kernel->shared_bytes <= p->shared_per_block_optin_bytes,
          CUDA_ERROR_INVALID_VALUE);
  if ((uint64_t)f->kernel->registers * ((threads + 31) / 32 * 32) > p->registers_per_sm)
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  if (cluster[0]) {
    REQUIRE(p->compute_major >= 9, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cluster[0] * cluster[1] * cluster[2] <= (f->cluster_allowed ? 16u : 8u),
            CUDA_ERROR_INVALID_CLUSTER_SIZE);
    for (int i = 0; i < 3; i++)
      REQUIRE(cluster[i] && g[i] % cluster[i] == 0, CUDA_ERROR_INVALID_VALUE);
  }
  if (cooperative) {
    int blocks = 0;
    TRY(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (CUfunction)f, (int)threads,
                                                    shared_bytes));
    if ((uint64_t)g[0] * g[1] * g[2] > (uint64_t)blocks * p->sm_count)
      return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  return CUDA_SUCCESS;
}

CUresult sim_kernel_work(sim_context *ctx, CUfunction handle, const unsigned grid[3],
                         const unsigned block[3], unsigned shared_bytes, const unsigned cluster[3],
                         bool cooperative, void **params, void **extra, sim_work *work) {
  sim_function *f;
  TRY(sim_function_of(handle, ctx, &f));
  TRY(check_shape(f, ctx->gpu, grid, block, shared_bytes, cluster, cooperative));
  *work = (sim_work){.type = CU_GRAPH_NODE_TYPE_KERNEL};
  work->kernel.function = f;
  memcpy(work->kernel.grid, grid, sizeof work->kernel.grid);
  memcpy(work->kernel.block, block, sizeof work->kernel.block);
  memcpy(work->kernel.cluster, cluster, sizeof work->kernel.cluster);
  work->kernel.shared_bytes = shared_bytes;
  work->kernel.cooperative = cooperative;
  return take_params(f->kernel, params, extra, work);
}

static CUresult launch(sim_context *ctx, CUfunction handle, const unsigned grid[3],
                       const unsigned block[3], unsigned shared_bytes, CUstream stream_handle,
                       const unsigned cluster[3], bool cooperative, void **params, void **extra) {
  sim_stream *stream;
  sim_work work;
  TRY(sim_stream_of(stream_handle, ctx, &stream));
  if (stream->ctx != ctx) return CUDA_ERROR_INVALID_HANDLE;
  TRY(sim_kernel_work(ctx, handle, grid, block, shared_bytes, cluster, cooperative, params, extra,
                      &work));
  TRY(sim_issue(stream, &work));
  sim_spend(ctx->gpu->profile->launch_ns);
  return CUDA_SUCCESS;
}

static const unsigned no_cluster[3];

CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                                unsigned int bx, unsigned int by, unsigned int bz,
                                unsigned int shared_bytes, CUstream stream, void **params,
                                void **extra) {
  ENTER_CONTEXT("cuLaunchKernel");
  return launch(ctx, f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared_bytes, stream,
                no_cluster, false, params, extra);
}

CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy,
                                           unsigned int gz, unsigned int bx, unsigned int by,
                                           unsigned int bz, unsigned int shared_bytes,
                                           CUstream stream, void **params) {
  ENTER_CONTEXT("cuLaunchCooperativeKernel");
  return launch(ctx, f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared_bytes, stream,
                no_cluster, true, params, NULL);
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params,
                                  void **extra) {
  ENTER_CONTEXT("cuLaunchKernelEx");
  REQUIRE(c && (c->attrs || !c->numAttrs), CUDA_ERROR_INVALID_VALUE);
  unsigned cluster[3] = {0};
  bool cooperative = false;
  for (unsigned i = 0; i < c->numAttrs; i++) {
    const CUlaunchAttribute *a = &c->attrs[i];
    if (a->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) cooperative = a->value.cooperative;
    if (a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      cluster[0] = a->value.clusterDim.x;
      cluster[1] = a->value.clusterDim.y;
      cluster[2] = a->value.clusterDim.z;
    }
  }
  return launch(ctx, f, (unsigned[]){c->gridDimX, c->gridDimY, c->gridDimZ},
                (unsigned[]){c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes,
                c->hStream, cluster, cooperative, params, extra);
}

/* One launch a device, in order. */
CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                                      unsigned int flags) {
  ENTER("cuLaunchCooperativeKernelMultiDevice");
  REQUIRE(list && count && !(flags & ~3u), CUDA_ERROR_INVALID_VALUE);
  for (unsigned i = 0; i < count; i++) {
    CUDA_LAUNCH_PARAMS *p = &list[i];
    REQUIRE(sim_handle_is(p->hStream, SIM_STREAM), CUDA_ERROR_INVALID_HANDLE);
    TRY(launch(((sim_stream *)p->hStream)->ctx, p->function,
               (unsigned[]){p->gridDimX, p->gridDimY, p->gridDimZ},
               (unsigned[]){p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes,
               p->hStream, no_cluster, true, p->kernelParams, NULL));
  }
  return CUDA_SUCCESS;
}
