/* Reads the memory of device 0 through one of the ways by which programs find the driver.
 *
 *   doors linked                 the symbol that this program is linked with
 *   doors dlopen NAME            dlopen, dlsym
 *   doors dlmopen NAME           the same in a new namespace
 *   doors next | default         dlsym(RTLD_NEXT / RTLD_DEFAULT)
 *   doors query VERSION FLAGS    cuGetProcAddress_v2 for everything
 *   doors oldquery VERSION       cuGetProcAddress as of CUDA 11.3
 *
 * Prints the bytes that cuDeviceTotalMem (with a leading `nvml`: nvmlDeviceGetMemoryInfo) returns.
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *(*finder)(const char *name);

static void *library;
static int version;
static cuuint64_t flags;

static void *in_library(const char *name) { return dlsym(library, name); }
static void *in_next(const char *name) { return dlsym(RTLD_NEXT, name); }
static void *in_default(const char *name) { return dlsym(RTLD_DEFAULT, name); }

static void *fail(const char *what) {
  const char *why = dlerror();
  fprintf(stderr, "%s: %s\n", what, why ? why : "not found");
  exit(1);
}

/* cuGetProcAddress takes names without suffixes and picks the variant itself. */
static const char *base_of(const char *name, char *base, size_t size) {
  snprintf(base, size, "%s", name);
  char *suffix = strstr(base, "_v2");
  if (suffix) *suffix = '\0';
  return base;
}

static void *by_query(const char *name) {
  char base[64];
  CUdriverProcAddressQueryResult status = 99;
  void *function = NULL;
  __typeof__(&cuGetProcAddress_v2) query = dlsym(library, "cuGetProcAddress_v2");
  CUresult result = query(base_of(name, base, sizeof base), &function, version, flags, &status);
  if (result != CUDA_SUCCESS || status != CU_GET_PROC_ADDRESS_SUCCESS) fail(name);
  return function;
}

static void *by_old_query(const char *name) {
  char base[64];
  void *function = NULL;
  __typeof__(&cuGetProcAddress) query = dlsym(library, "cuGetProcAddress");
  CUresult result = query(base_of(name, base, sizeof base), &function, version, flags);
  if (result != CUDA_SUCCESS) fail(name);
  return function;
}

static void *found(finder find, const char *name) {
  void *function = find(name);
  return function ? function : fail(name);
}

static int print_cuda(finder find) {
  CUdevice device;
  size_t bytes = 0;
  __typeof__(&cuInit) init = found(find, "cuInit");
  __typeof__(&cuDeviceGet) get = found(find, "cuDeviceGet");
  __typeof__(&cuDeviceTotalMem_v2) total = found(find, "cuDeviceTotalMem_v2");
  CUresult result = init(0);
  if (result == CUDA_SUCCESS) result = get(&device, 0);
  if (result == CUDA_SUCCESS) result = total(&bytes, device);
  if (result != CUDA_SUCCESS) return fprintf(stderr, "CUDA error %d\n", result), 1;
  printf("%zu\n", bytes);
  return 0;
}

static int print_nvml(finder find) {
  nvmlDevice_t device;
  nvmlMemory_t memory;
  __typeof__(&nvmlInit_v2) init = found(find, "nvmlInit_v2");
  __typeof__(&nvmlDeviceGetHandleByIndex_v2) get = found(find, "nvmlDeviceGetHandleByIndex_v2");
  __typeof__(&nvmlDeviceGetMemoryInfo) total = found(find, "nvmlDeviceGetMemoryInfo");
  nvmlReturn_t result = init();
  if (result == NVML_SUCCESS) result = get(0, &device);
  if (result == NVML_SUCCESS) result = total(device, &memory);
  if (result != NVML_SUCCESS) return fprintf(stderr, "NVML error %d\n", result), 1;
  printf("%llu\n", memory.total);
  return 0;
}

#ifdef LINKED
static void *linked(const char *name) {
  static const struct {
    const char *name;
    void *function;
  } all[] = {{"cuInit", cuInit},
             {"cuDeviceGet", cuDeviceGet},
             {"cuDeviceTotalMem_v2", cuDeviceTotalMem_v2},
             {"nvmlInit_v2", nvmlInit_v2},
             {"nvmlDeviceGetHandleByIndex_v2", nvmlDeviceGetHandleByIndex_v2},
             {"nvmlDeviceGetMemoryInfo", nvmlDeviceGetMemoryInfo}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (strcmp(all[i].name, name) == 0) return all[i].function;
  }
  return NULL;
}
#else
static void *linked(const char *name) { return fail(name); }
#endif

int main(int count, char **words) {
  int (*print)(finder) = print_cuda;
  words++;
  if (count > 1 && strcmp(*words, "nvml") == 0) print = print_nvml, words++;
  const char *way = *words++;
  if (strcmp(way, "linked") == 0) return print(linked);
  if (strcmp(way, "next") == 0) return print(in_next);
  if (strcmp(way, "default") == 0) return print(in_default);
  if (strstr(way, "query")) library = dlopen("libcuda.so.1", RTLD_NOW);
  if (strcmp(way, "query") == 0) {
    version = atoi(words[0]), flags = (cuuint64_t)atoi(words[1]);
    return print(by_query);
  }
  if (strcmp(way, "oldquery") == 0) {
    version = atoi(words[0]);
    return print(by_old_query);
  }
  if (strcmp(way, "dlopen") == 0) library = dlopen(*words, RTLD_NOW | RTLD_LOCAL);
  if (strcmp(way, "dlmopen") == 0) library = dlmopen(LM_ID_NEWLM, *words, RTLD_NOW);
  if (!library) fail(way);
  return print(in_library);
}
