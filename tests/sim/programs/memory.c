/* Memory: accounting to the byte, contents, stale pointers. */
#include "check.h"

#define CONTEXT_BYTES (200 * MIB)
#define RESERVED_BYTES (96 * MIB)

CASE(a_context_costs_what_the_profile_says) {
  begin();
  size_t free_now, total;
  OK(cuMemGetInfo(&free_now, &total));
  CHECK(total == 4096 * MIB);
  CHECK(free_now == total - CONTEXT_BYTES - RESERVED_BYTES);
}

CASE(a_second_context_costs_as_much_again_and_gives_it_back) {
  begin();
  size_t before = free_bytes();
  CUcontext second;
  OK(cuCtxCreate(&second, NULL, 0, 0));
  CHECK(before - free_bytes() == CONTEXT_BYTES);
  OK(cuCtxDestroy(second));
  CHECK(free_bytes() == before);
}

CASE(small_allocations_share_a_slab_of_two_mebibytes) {
  begin();
  size_t before = free_bytes();
  CUdeviceptr small[100];
  for (int i = 0; i < 100; i++) OK(cuMemAlloc(&small[i], 1000 + (size_t)i));
  CHECK(before - free_bytes() == 2 * MIB);
  for (int i = 0; i < 100; i++) OK(cuMemFree(small[i]));
  CHECK(free_bytes() == before);
}

CASE(large_allocations_take_whole_slabs) {
  begin();
  size_t before = free_bytes();
  CUdeviceptr large;
  OK(cuMemAlloc(&large, 2 * MIB + 1));
  CHECK(before - free_bytes() == 4 * MIB);
  OK(cuMemFree(large));
  CHECK(free_bytes() == before);
}

CASE(memory_runs_out_exactly_at_the_capacity) {
  begin();
  CUdeviceptr all, more;
  size_t everything = free_bytes();
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&all, everything + 1));
  OK(cuMemAlloc(&all, everything));
  CHECK(free_bytes() == 0);
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&more, 1));
  OK(cuMemFree(all));
  CHECK(free_bytes() == everything);
}

CASE(contents_survive_a_round_trip) {
  begin();
  enum { BYTES = 3000000 };
  CUdeviceptr device, copy;
  unsigned char *host = malloc(BYTES), *back = malloc(BYTES);
  for (int i = 0; i < BYTES; i++) host[i] = (unsigned char)(i * 7);
  OK(cuMemAlloc(&device, BYTES));
  OK(cuMemAlloc(&copy, BYTES));
  OK(cuMemcpyHtoD(device, host, BYTES));
  OK(cuMemcpyDtoD(copy, device, BYTES));
  OK(cuMemcpyDtoH(back, copy, BYTES));
  CHECK(!memcmp(host, back, BYTES));
  OK(cuMemsetD32(copy, 0x01020304, 100));
  OK(cuMemcpyDtoH(back, copy, 404));
  CHECK(back[0] == 4 && back[399] == 1 && back[400] == host[400]);
  free(host);
  free(back);
}

CASE(rows_of_a_pitched_copy_land_where_they_belong) {
  begin();
  CUdeviceptr device;
  size_t pitch;
  unsigned char host[10][100], back[10][100];
  for (int i = 0; i < 1000; i++) host[i / 100][i % 100] = (unsigned char)(i % 251);
  OK(cuMemAllocPitch(&device, &pitch, 100, 10, 4));
  CHECK(pitch >= 100 && pitch % 512 == 0);
  CUDA_MEMCPY2D down = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = host,
                        .srcPitch = 100,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = device,
                        .dstPitch = pitch,
                        .WidthInBytes = 100,
                        .Height = 10};
  OK(cuMemcpy2D(&down));
  memset(back, 0, sizeof back);
  OK(cuMemcpyDtoH(back[0], device + 3 * pitch, 100));
  CHECK(!memcmp(back[0], host[3], 100));
}

CASE(freed_pointers_and_doubly_freed_ones_are_invalid) {
  begin();
  CUdeviceptr pointer;
  char byte = 0;
  OK(cuMemAlloc(&pointer, 5000));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(pointer + 512));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(pointer + 4999, &byte, 2));
  OK(cuMemFree(pointer));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(pointer));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(pointer, &byte, 1));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(pointer, 0, 1));
  OK(cuMemFree(0));
}

CASE(a_huge_memset_takes_no_host_memory_to_speak_of) {
  begin();
  CUdeviceptr pointer;
  OK(cuMemAlloc(&pointer, 3000 * MIB));
  OK(cuMemsetD8(pointer, 1, 3000 * MIB));
  OK(cuCtxSynchronize());
  long pages;
  FILE *statm = fopen("/proc/self/statm", "r");
  CHECK(statm && fscanf(statm, "%*d %ld", &pages) == 1);
  CHECK(pages * 4096 < (long)(400 * MIB));
}

CASE(managed_and_host_memory_can_be_used_from_both_sides) {
  begin();
  CUdeviceptr managed;
  int *host, value = 0;
  size_t before = free_bytes();
  OK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  CHECK(before - free_bytes() == 2 * MIB);
  *(int *)managed = 42;
  OK(cuMemcpyDtoH(&value, managed, 4));
  CHECK(value == 42);
  before = free_bytes();
  OK(cuMemHostAlloc((void **)&host, 100 * MIB, CU_MEMHOSTALLOC_DEVICEMAP));
  CHECK(free_bytes() == before);
  CUdeviceptr seen;
  OK(cuMemHostGetDevicePointer(&seen, host, 0));
  OK(cuMemsetD32(seen, 7, 1));
  OK(cuCtxSynchronize());
  CHECK(*host == 7);
  OK(cuMemFreeHost(host));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(host));
}

CASE(resetting_the_primary_context_gives_everything_back) {
  begin();
  CUdeviceptr pointer;
  CUcontext context;
  size_t before = free_bytes();
  for (int i = 0; i < 50; i++) OK(cuMemAlloc(&pointer, (size_t)i * MIB + 5));
  OK(cuDevicePrimaryCtxReset(0));
  GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&pointer, 10));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  CHECK(free_bytes() == before);
}

CASE(a_larger_stack_limit_reserves_memory_for_every_resident_thread) {
  begin();
  size_t before = free_bytes();
  OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
  size_t threads = 100 * 2048, taken = before - free_bytes();
  CHECK(taken >= 1024 * threads && taken < 1024 * threads + 2 * MIB);
  OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
  CHECK(free_bytes() == before);
}

CASE(arrays_take_memory_and_keep_contents) {
  begin();
  size_t before = free_bytes();
  CUarray array;
  CUDA_ARRAY_DESCRIPTOR shape = {
      .Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
  OK(cuArrayCreate(&array, &shape));
  CHECK(before - free_bytes() == 4 * MIB);
  float row[1024], back[1024] = {0};
  for (int i = 0; i < 1024; i++) row[i] = (float)i;
  OK(cuMemcpyHtoA(array, 0, row, sizeof row));
  OK(cuMemcpyAtoH(back, array, 0, sizeof back));
  CHECK(!memcmp(row, back, sizeof row));
  OK(cuArrayDestroy(array));
  CHECK(free_bytes() == before);
}

CASE(physical_memory_lives_as_long_as_a_handle_or_a_mapping) {
  begin();
  size_t before = free_bytes(), granule;
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle, again;
  CUdeviceptr address;
  int value = 5, back = 0;
  OK(cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CHECK(granule == 2 * MIB);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 1000, &prop, 0));
  OK(cuMemCreate(&handle, 10 * MIB, &prop, 0));
  CHECK(before - free_bytes() == 10 * MIB);
  OK(cuMemAddressReserve(&address, 20 * MIB, 0, 0, 0));
  OK(cuMemMap(address, 10 * MIB, 0, handle, 0));
  OK(cuMemMap(address + 10 * MIB, 10 * MIB, 0, handle, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(address, &value, 4)); /* no access set yet */
  OK(cuMemSetAccess(address, 20 * MIB, &access, 1));
  OK(cuMemcpyHtoD(address, &value, 4));
  OK(cuMemcpyDtoH(&back, address + 10 * MIB, 4)); /* the same memory at its second address */
  CHECK(back == 5);
  OK(cuMemRetainAllocationHandle(&again, (void *)address));
  OK(cuMemRelease(handle));
  OK(cuMemUnmap(address, 20 * MIB));
  CHECK(before - free_bytes() == 10 * MIB);
  OK(cuMemRelease(again));
  CHECK(free_bytes() == before);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRelease(again));
  OK(cuMemAddressFree(address, 20 * MIB));
}

CASE(a_pool_keeps_what_its_threshold_allows) {
  begin();
  size_t before = free_bytes();
  CUmemoryPool pool;
  CUstream stream;
  CUdeviceptr pointer, again;
  uint64_t used, reserved, threshold = 1ull << 40;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  OK(cuMemAllocAsync(&pointer, 100 * MIB, stream));
  OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  CHECK(used == 100 * MIB && before - free_bytes() == 100 * MIB);
  OK(cuMemFreeAsync(pointer, stream));
  OK(cuMemAllocAsync(&again, 100 * MIB, stream)); /* in stream order: the same memory at once */
  CHECK(again == pointer);
  OK(cuMemFreeAsync(again, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(free_bytes() == before); /* threshold 0: all goes back */
  OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  OK(cuMemAllocAsync(&pointer, 100 * MIB, stream));
  OK(cuMemFreeAsync(pointer, stream));
  OK(cuStreamSynchronize(stream));
  OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
  CHECK(reserved == 100 * MIB && before - free_bytes() == 100 * MIB);
  OK(cuMemPoolTrimTo(pool, 0));
  CHECK(free_bytes() == before);
}

CASE(memory_freed_in_one_stream_waits_for_it_before_another_gets_it) {
  begin();
  CUstream first, second;
  CUdeviceptr a, b, c;
  OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  OK(cuMemAllocAsync(&a, 40 * MIB, first));
  spin(first, 50000000, 200);
  OK(cuMemFreeAsync(a, first));
  OK(cuMemAllocAsync(&b, 40 * MIB, second));
  CHECK(b != a);
  OK(cuStreamSynchronize(first));
  OK(cuMemAllocAsync(&c, 40 * MIB, second));
  CHECK(c != b);
}
