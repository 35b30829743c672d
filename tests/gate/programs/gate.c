#include "gate.h"

static const char image[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry spin(.param .u64 nanoseconds)\n{ ret; }\n"
    ".visible .entry other_spin(.param .u64 nanoseconds)\n{ ret; }\n"
    ".visible .entry meet(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)\n{ ret; }\n"
    ".visible .entry decide(.param .u64 condition, .param .u64 value)\n{ ret; }\n"
    ".visible .entry relay(.param .u64 graph, .param .u64 times)\n{ ret; }\n"
    ".visible .entry plain()\n{ ret; }\n";

CUfunction kernel_anew(const char *name) {
  CUmodule module;
  CUfunction function;
  OK(cuModuleLoadData(&module, image));
  OK(cuModuleGetFunction(&function, module, name));
  return function;
}

CUfunction kernel_named(const char *name) {
  static __thread CUcontext of;
  static __thread CUmodule module;
  CUfunction function;
  CUcontext current;
  OK(cuCtxGetCurrent(&current));
  if (of != current) OK(cuModuleLoadData(&module, image));
  of = current;
  OK(cuModuleGetFunction(&function, module, name));
  return function;
}

void meet(CUstream stream, CUdeviceptr until_at, uint64_t until, CUdeviceptr store_at,
          uint64_t store) {
  uint64_t to = store_at, from = until_at;
  void *parameters[] = {&from, &until, &to, &store};
  OK(cuLaunchKernel(kernel_named("meet"), 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

void busy(CUstream stream, uint64_t ns) {
  void *parameters[] = {&ns};
  OK(cuLaunchKernel(kernel_named("spin"), 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

CUstream new_stream(unsigned flags) {
  CUstream stream;
  OK(cuStreamCreate(&stream, flags));
  return stream;
}

CUdeviceptr new_words(unsigned count) {
  CUdeviceptr words;
  OK(cuMemAlloc(&words, 8 * count));
  OK(cuMemsetD32(words, 0, 2 * count));
  return words;
}

uint64_t word_at(CUdeviceptr address) {
  uint64_t value;
  OK(cuMemcpyDtoH(&value, address, 8));
  return value;
}

void go_into_overdraft(void) {
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  busy(stream, 40 * MS);
  OK(cuStreamSynchronize(stream));
}
