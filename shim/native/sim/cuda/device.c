/* Devices: names, sizes and attributes. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "sim/cuda/core.h"

CUresult CUDAAPI cuDeviceGetCount(int *count) {
  ENTER("cuDeviceGetCount");
  REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
  *count = sim_here.gpu_count;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) {
  ENTER("cuDeviceGet");
  sim_gpu *gpu;
  REQUIRE(device, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(ordinal, &gpu));
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char *name, int length, CUdevice device) {
  ENTER("cuDeviceGetName");
  sim_gpu *gpu;
  REQUIRE(name && length > 0, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  snprintf(name, (size_t)length, "%s", gpu->profile->name);
  return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice device) {
  sim_gpu *gpu;
  REQUIRE(uuid, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  memcpy(uuid->bytes, gpu->uuid, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  ENTER("cuDeviceGetUuid");
  return get_uuid(uuid, device);
}
CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  ENTER("cuDeviceGetUuid");
  return get_uuid(uuid, device);
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  ENTER("cuDeviceTotalMem");
  sim_gpu *gpu;
  REQUIRE(bytes, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  *bytes = gpu->profile->memory_bytes;
  return CUDA_SUCCESS;
}
/* 32-bit ABI of CUDA 3.1. Larger sizes saturate. */
CUresult CUDAAPI cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
  ENTER("cuDeviceTotalMem");
  sim_gpu *gpu;
  REQUIRE(bytes, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  *bytes =
      gpu->profile->memory_bytes > UINT32_MAX ? UINT32_MAX : (unsigned)gpu->profile->memory_bytes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
  ENTER("cuDeviceComputeCapability");
  sim_gpu *gpu;
  REQUIRE(major && minor, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  *major = (int)gpu->profile->compute_major;
  *minor = (int)gpu->profile->compute_minor;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetProperties(CUdevprop *out, CUdevice device) {
  ENTER("cuDeviceGetProperties");
  sim_gpu *gpu;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  *out = (CUdevprop){
      .maxThreadsPerBlock = 1024,
      .maxThreadsDim = {1024, 1024, 64},
      .maxGridSize = {2147483647, 65535, 65535},
      .sharedMemPerBlock = 49152,
      .totalConstantMemory = 65536,
      .SIMDWidth = 32,
      .memPitch = 2147483647,
      .regsPerBlock = (int)gpu->profile->registers_per_sm,
      .clockRate = (int)gpu->profile->sm_clock_khz,
      .textureAlign = 512,
  };
  return CUDA_SUCCESS;
}

/* Reads an attribute from the profile. Returns false if the profile has no such attribute. */
static bool from_profile(const sim_profile *p, CUdevice_attribute attribute, int *value) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = (int)p->sm_count;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      *value = (int)p->max_threads_per_sm;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      *value = (int)p->max_blocks_per_sm;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      *value = (int)p->registers_per_sm;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      *value = (int)p->shared_per_sm_bytes;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = (int)p->shared_per_block_optin_bytes;
      break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      *value = (int)p->sm_clock_khz;
      break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      *value = (int)p->memory_clock_khz;
      break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      *value = (int)p->memory_bus_bits;
      break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      *value = (int)p->l2_bytes;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE:
      *value = (int)(p->l2_bytes / 8 * 5);
      break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      *value = (int)p->copy_engines;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = (int)p->compute_major;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = (int)p->compute_minor;
      break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      *value = (int)p->pci_bus;
      break;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
      *value = (int)p->pci_device;
      break;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
      *value = (int)p->pci_domain;
      break;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
      *value = p->compute_major >= 9;
      break;
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED:
      *value = p->compute_major >= 9;
      break;
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
      *value = p->compute_minor == 0 && p->compute_major >= 8 ? 2 : 32;
      break;
    default:
      return false;
  }
  return true;
}

/* Attributes that are the same on every simulated device. Those not listed here are 0. */
static const struct {
  CUdevice_attribute attribute;
  int value;
} fixed[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH, 268435456},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65536},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT, 65536},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
    {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 0},
    {CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID, 0},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0},
};

/* Returns whether the process is an MPS client. As in a real driver, it is one if it finds a
 * control daemon's pipe. If the variable is not set, a real driver also looks in /tmp/nvidia-mps,
 * but a daemon there serves real devices. */
bool sim_is_mps_client(void) {
  const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
  char path[PATH_MAX];
  struct stat pipe;
  if (!directory || !*directory) return false;
  int length = snprintf(path, sizeof path, "%s/control", directory);
  return length < (int)sizeof path && stat(path, &pipe) == 0 &&
         (S_ISFIFO(pipe.st_mode) || S_ISSOCK(pipe.st_mode));
}

CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  ENTER("cuDeviceGetAttribute");
  sim_gpu *gpu;
  REQUIRE(value && attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  if (from_profile(gpu->profile, attribute, value)) return CUDA_SUCCESS;
  *value = 0;
  for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
    if (fixed[i].attribute == attribute) *value = fixed[i].value;
  if (attribute == CU_DEVICE_ATTRIBUTE_MPS_ENABLED) *value = sim_is_mps_client();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
  ENTER("cuDeviceGetPCIBusId");
  sim_gpu *gpu;
  REQUIRE(text && length >= 13, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  snprintf(text, (size_t)length, "%04x:%02x:%02x.0", gpu->profile->pci_domain,
           gpu->profile->pci_bus, gpu->profile->pci_device);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice *device, const char *text) {
  ENTER("cuDeviceGetByPCIBusId");
  REQUIRE(device && text, CUDA_ERROR_INVALID_VALUE);
  unsigned domain = 0, bus, slot, function = 0;
  if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
    domain = function = 0;
    if (sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2) return CUDA_ERROR_INVALID_VALUE;
  }
  for (int i = 0; i < sim_here.gpu_count; i++) {
    const sim_profile *p = sim_here.gpus[i].profile;
    if (p->pci_domain != domain || p->pci_bus != bus || p->pci_device != slot) continue;
    *device = i;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceGetTexture1DLinearMaxWidth(size_t *elements, CUarray_format format,
                                                    unsigned channels, CUdevice device) {
  ENTER("cuDeviceGetTexture1DLinearMaxWidth");
  sim_gpu *gpu;
  REQUIRE(elements && channels, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  (void)format;
  *elements = 268435456;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type,
                                                CUdevice device) {
  ENTER("cuDeviceGetExecAffinitySupport");
  sim_gpu *gpu;
  REQUIRE(supported, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  (void)type;
  *supported = 0; /* supported only under MPS */
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice from,
                                         CUdevice to) {
  ENTER("cuDeviceGetP2PAttribute");
  sim_gpu *a, *b;
  REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(from, &a));
  TRY(sim_gpu_of(to, &b));
  REQUIRE(a != b, CUDA_ERROR_INVALID_DEVICE);
  switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      *value = 1;
      break;
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      *value = 0;
      break;
    default:
      *value = 0;
      break;
  }
  return CUDA_SUCCESS;
}
