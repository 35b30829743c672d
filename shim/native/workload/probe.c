/* penstock-probe: reports for `penstock doctor` what a program sees of the driver and NVML. It
 * prints one line for each fact, separated by tabs.
 *
 *   probe doors CUDA NVML    the file that each way of opening the libraries opens (the paths are
 *   those
 *                            of the real libraries)
 *   probe driver CUDA NVML   what the libraries at these paths report about themselves
 *
 * `penstock-probe-linked` is the same program, linked with both libraries (-lcuda).
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <nvml.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef struct library {
  const char *name;
  const char *function;
  const char *marker; /* symbol that only the shim exports (common/below.h) */
  const char *file;
  const char *plain_file;
} library;

static const library libraries[] = {
    {"cuda", "cuInit", "penstock_cuda_shim", "libcuda.so.1", "libcuda.so"},
    {"nvml", "nvmlInit_v2", "penstock_nvml_shim", "libnvidia-ml.so.1", "libnvidia-ml.so"},
};

static void say(const char *library, const char *fact, const char *value) {
  printf("%s\t%s\t%s\n", library, fact, value);
}

static void say_number(const char *library, const char *fact, long value) {
  printf("%s\t%s\t%ld\n", library, fact, value);
}

/* Prints which library `handle` is: "shim PATH", "other PATH", or the loader's error. */
static void say_door(const library *library, const char *door, void *handle) {
  char value[4200];
  Dl_info info;
  void *function = handle ? dlsym(handle, library->function) : NULL;
  if (!function || !dladdr(function, &info)) {
    const char *error = dlerror();
    snprintf(value, sizeof value, "none %s", error ? error : "no such function");
  } else {
    void *marker = dlsym(handle, library->marker);
    snprintf(value, sizeof value, "%s %s", marker ? "shim" : "other", info.dli_fname);
  }
  say(library->name, door, value);
}

static void say_doors(const library *library, const char *path) {
  say_door(library, "dlopen", dlopen(library->file, RTLD_NOW));
  say_door(library, "dlopen-plain", dlopen(library->plain_file, RTLD_NOW));
  if (*path) say_door(library, "dlopen-path", dlopen(path, RTLD_NOW));
  say_door(library, "dlmopen", dlmopen(LM_ID_NEWLM, library->file, RTLD_NOW));
#ifdef LINKED
  say_door(library, "linked", dlopen(NULL, RTLD_NOW));
#endif
}

/* Prints the number of devices on which an attribute is set. Prints nothing if the driver does not
 * know the attribute. */
static void say_attribute(void *handle, const char *fact, CUdevice_attribute attribute,
                          int devices) {
  __typeof__(&cuDeviceGetAttribute) get = dlsym(handle, "cuDeviceGetAttribute");
  long with_it = 0;
  for (CUdevice device = 0; get && device < devices; device++) {
    int value = 0;
    if (get(&value, attribute, device) != CUDA_SUCCESS) return;
    with_it += value != 0;
  }
  if (get) say_number("cuda", fact, with_it);
}

static void say_cuda(void *handle) {
  __typeof__(&cuInit) init = handle ? dlsym(handle, "cuInit") : NULL;
  __typeof__(&cuDriverGetVersion) version = handle ? dlsym(handle, "cuDriverGetVersion") : NULL;
  __typeof__(&cuDeviceGetCount) count = handle ? dlsym(handle, "cuDeviceGetCount") : NULL;
  int number = 0;
  if (version && version(&number) == CUDA_SUCCESS) say_number("cuda", "version", number);
  if (!init) return;
  CUresult result = init(0);
  say_number("cuda", "init", result);
  if (result || !count || count(&number) != CUDA_SUCCESS) return;
  say_number("cuda", "devices", number);
  say_attribute(handle, "integrated", CU_DEVICE_ATTRIBUTE_INTEGRATED, number);
  say_attribute(handle, "mps", CU_DEVICE_ATTRIBUTE_MPS_ENABLED, number);
}

static void say_mig(void *handle, unsigned devices) {
  __typeof__(&nvmlDeviceGetHandleByIndex_v2) get = dlsym(handle, "nvmlDeviceGetHandleByIndex_v2");
  __typeof__(&nvmlDeviceGetMigMode) mode = dlsym(handle, "nvmlDeviceGetMigMode");
  long with_mig = 0;
  for (unsigned i = 0; get && mode && i < devices; i++) {
    nvmlDevice_t device;
    unsigned current = 0;
    unsigned pending = 0;
    if (get(i, &device) == NVML_SUCCESS && mode(device, &current, &pending) == NVML_SUCCESS) {
      with_mig += current != 0;
    }
  }
  say_number("nvml", "mig", with_mig);
}

static void say_nvml(void *handle) {
  __typeof__(&nvmlInit_v2) init = handle ? dlsym(handle, "nvmlInit_v2") : NULL;
  __typeof__(&nvmlSystemGetDriverVersion) driver =
      handle ? dlsym(handle, "nvmlSystemGetDriverVersion") : NULL;
  __typeof__(&nvmlSystemGetNVMLVersion) version =
      handle ? dlsym(handle, "nvmlSystemGetNVMLVersion") : NULL;
  __typeof__(&nvmlDeviceGetCount_v2) count = handle ? dlsym(handle, "nvmlDeviceGetCount_v2") : NULL;
  char text[96] = "";
  unsigned devices = 0;
  if (!init) return;
  nvmlReturn_t result = init();
  say_number("nvml", "init", result);
  if (result != NVML_SUCCESS) return;
  if (driver && driver(text, sizeof text) == NVML_SUCCESS) say("nvml", "driver", text);
  if (version && version(text, sizeof text) == NVML_SUCCESS) say("nvml", "version", text);
  if (count && count(&devices) == NVML_SUCCESS) say_number("nvml", "devices", devices);
  say_mig(handle, devices);
}

int main(int count, char **words) {
#ifdef LINKED
  /* Never executed, but makes the linker keep both libraries. */
  if (count > 100) return (int)cuInit(0) + (int)nvmlInit_v2();
#endif
  if (count != 4) return fprintf(stderr, "usage: %s doors|driver CUDA NVML\n", words[0]), 2;
  /* flush each line, so that none is lost if a later call crashes */
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (strcmp(words[1], "doors") == 0) {
    for (int i = 0; i < 2; i++) say_doors(&libraries[i], words[2 + i]);
    say_cuda(dlopen("libcuda.so.1", RTLD_NOW));
  } else {
    for (int i = 0; i < 2; i++) {
      void *handle = *words[2 + i] ? dlopen(words[2 + i], RTLD_NOW) : NULL;
      say(libraries[i].name, "open", handle ? "yes" : *words[2 + i] ? dlerror() : "not found");
      i ? say_nvml(handle) : say_cuda(handle);
    }
  }
  return 0;
}
