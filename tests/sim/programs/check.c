#include "check.h"

test_case *test_cases;

static const char image[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry spin(.param .u64 nanoseconds)\n{ ret; }\n";

uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

double ms_since(uint64_t begun_ns) { return (double)(now_ns() - begun_ns) / 1e6; }

CUcontext begin(void) {
  CUdevice device;
  CUcontext context;
  OK(cuInit(0));
  OK(cuDeviceGet(&device, 0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  return context;
}

size_t free_bytes(void) {
  size_t free_now, total;
  OK(cuMemGetInfo(&free_now, &total));
  return free_now;
}

CUfunction spin_kernel(void) {
  static CUfunction function;
  CUmodule module;
  if (!function) {
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&function, module, "spin"));
  }
  return function;
}

void spin(CUstream stream, uint64_t ns, unsigned blocks) {
  void *parameters[] = {&ns};
  OK(cuLaunchKernel(spin_kernel(), blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
}

/* A program of one case may bring its own. */
__attribute__((weak)) int main(int count, char **words) {
  for (test_case *c = test_cases; count == 2 && c; c = c->next) {
    if (strcmp(c->name, words[1])) continue;
    c->run();
    return 0;
  }
  fprintf(stderr, "usage: %s CASE\n", words[0]);
  return 2;
}
