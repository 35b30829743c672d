/* A C program on the driver API: it takes memory in pieces of 256 MiB until there is no more, then
 * works with what it got.
 *
 *     cc -o c_tenant c_tenant.c -ldl && ./c_tenant [SECONDS]
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PIECE_BYTES ((size_t)256 << 20)
#define MAX_PIECES 4096

typedef int CUresult;
typedef int CUdevice;
typedef void *CUcontext;
typedef unsigned long long CUdeviceptr;
enum { CUDA_SUCCESS = 0, CUDA_ERROR_OUT_OF_MEMORY = 2 };

static CUresult (*cuInit)(unsigned);
static CUresult (*cuDeviceGet)(CUdevice *, int);
static CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *, CUdevice);
static CUresult (*cuDevicePrimaryCtxRelease)(CUdevice);
static CUresult (*cuCtxSetCurrent)(CUcontext);
static CUresult (*cuCtxSynchronize)(void);
static CUresult (*cuMemGetInfo)(size_t *, size_t *);
static CUresult (*cuMemAlloc)(CUdeviceptr *, size_t);
static CUresult (*cuMemFree)(CUdeviceptr);
static CUresult (*cuMemsetD32)(CUdeviceptr, unsigned, size_t);
static CUresult (*cuGetErrorName)(CUresult, const char **);

static void *driver;

static void *find(const char *name) {
  void *address = dlsym(driver, name);
  if (!address) {
    fprintf(stderr, "c: the driver has no %s\n", name);
    exit(1);
  }
  return address;
}

static const char *name_of(CUresult result) {
  const char *name = NULL;
  return cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : "an unknown error";
}

static void check(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "c: %s: %s\n", what, name_of(result));
  exit(1);
}

static void open_driver(void) {
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) {
    fprintf(stderr, "c: no driver: %s\n", dlerror());
    exit(1);
  }
  *(void **)&cuInit = find("cuInit");
  *(void **)&cuDeviceGet = find("cuDeviceGet");
  *(void **)&cuDevicePrimaryCtxRetain = find("cuDevicePrimaryCtxRetain");
  *(void **)&cuDevicePrimaryCtxRelease = find("cuDevicePrimaryCtxRelease_v2");
  *(void **)&cuCtxSetCurrent = find("cuCtxSetCurrent");
  *(void **)&cuCtxSynchronize = find("cuCtxSynchronize");
  *(void **)&cuMemGetInfo = find("cuMemGetInfo_v2");
  *(void **)&cuMemAlloc = find("cuMemAlloc_v2");
  *(void **)&cuMemFree = find("cuMemFree_v2");
  *(void **)&cuMemsetD32 = find("cuMemsetD32_v2");
  *(void **)&cuGetErrorName = find("cuGetErrorName");
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
  static CUdeviceptr pieces[MAX_PIECES];
  double seconds = argc > 1 ? atof(argv[1]) : 20;
  int count = 0;
  size_t free_bytes = 0, total_bytes = 0;
  CUdevice device;
  CUcontext context;

  open_driver();
  check(cuInit(0), "cuInit");
  check(cuDeviceGet(&device, 0), "cuDeviceGet");
  check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  check(cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo");
  printf("c: %zu MiB free of %zu MiB\n", free_bytes >> 20, total_bytes >> 20);

  CUresult result = CUDA_SUCCESS;
  while (count < MAX_PIECES && result == CUDA_SUCCESS) {
    result = cuMemAlloc(&pieces[count], PIECE_BYTES);
    if (result == CUDA_SUCCESS) count++;
  }
  printf("c: %d MiB allocated, then %s\n", count * (int)(PIECE_BYTES >> 20), name_of(result));
  fflush(stdout);
  if (result != CUDA_ERROR_OUT_OF_MEMORY || !count) return 1;

  double end = now() + seconds;
  struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
  while (now() < end) {
    check(cuMemsetD32(pieces[0], 42, (1 << 20) / 4), "cuMemsetD32");
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    nanosleep(&pause, NULL);
  }

  while (count) check(cuMemFree(pieces[--count]), "cuMemFree");
  check(cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
  printf("c: done\n");
  return 0;
}
