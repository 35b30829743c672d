/* Answers to single calls: names, versions, modules, launches, attributes. */
#include "check.h"

CASE(nothing_works_before_initialisation) {
  int count;
  CUcontext context;
  GIVES(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
  GIVES(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent(&context));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuInit(1));
}

CASE(without_a_context_calls_say_so) {
  CUdeviceptr pointer;
  OK(cuInit(0));
  GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&pointer, 100));
  GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
}

CASE(a_name_means_the_variant_of_the_version_asked_for) {
  void *address, *old;
  CUdriverProcAddressQueryResult status;
  OK(cuGetProcAddress("cuMemAlloc", &address, 13000, 0, &status));
  CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS && address == (void *)cuMemAlloc);
  OK(cuGetProcAddress("cuMemAlloc", &old, 2000, 0, &status));
  CHECK(old && old != address);
  address = &status;
  OK(cuGetProcAddress("cuStreamBeginCapture", &address, 9000, 0, &status));
  CHECK(!address && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  OK(cuGetProcAddress("", &address, 13000, 0, &status));
  CHECK(!address && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress("cuInit", &address, 13000, 4, &status));
}

CASE(private_tables_are_not_found) {
  CUuuid any = {{1, 2, 3}};
  const void *table = &any;
  GIVES(CUDA_ERROR_NOT_FOUND, cuGetExportTable(&table, &any));
  CHECK(!table);
}

CASE(errors_have_names_and_words) {
  const char *text;
  OK(cuGetErrorName(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, &text));
  CHECK(!strcmp(text, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"));
  OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  CHECK(!strcmp(text, "out of memory"));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)12345, &text));
}

CASE(ptx_is_read_for_kernels_parameters_and_globals) {
  begin();
  static const char ptx[] =
      ".version 7.0 // .entry not_this(\n.target sm_70\n.address_size 64\n"
      "/* .visible .entry nor_this() */\n"
      ".visible .global .align 8 .b8 table[1000];\n"
      ".visible .entry first(\n\t.param .u64 .ptr .global .align 4 first_a,\n\t.param .u32 "
      "first_b,\n"
      "\t.param .align 8 .b8 first_c[24]\n)\n.maxntid 128, 1, 1\n{\n\t.shared .align 4 .b8 "
      "buffer[512];\n\tret;\n}\n"
      ".entry second\n{ ret; }\n";
  CUmodule module;
  CUfunction function;
  CUdeviceptr address;
  size_t bytes, offset;
  int value;
  unsigned count;
  OK(cuModuleLoadData(&module, ptx));
  OK(cuModuleGetFunctionCount(&count, module));
  CHECK(count == 2);
  GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "not_this"));
  OK(cuModuleGetFunction(&function, module, "second"));
  OK(cuModuleGetFunction(&function, module, "first"));
  OK(cuFuncGetParamInfo(function, 2, &offset, &bytes));
  CHECK(offset == 16 && bytes == 24);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(function, 3, &offset, &bytes));
  OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
  CHECK(value == 128);
  OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function));
  CHECK(value == 512);
  OK(cuModuleGetGlobal(&address, &bytes, module, "table"));
  CHECK(bytes == 1000);
  OK(cuMemsetD8(address, 1, 1000));
  OK(cuModuleUnload(module));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(module));
}

CASE(texts_that_are_linked_become_one_image) {
  begin();
  CUlinkState link;
  CUmodule module;
  CUfunction function;
  void *image;
  size_t bytes, before = free_bytes();
  char first[] = ".version 8.0\n.target sm_80\n.entry first()\n{ ret; }\n";
  char second[] = ".version 8.0\n.target sm_80\n.entry second()\n{ ret; }";
  char wrong[] = "no image at all";
  OK(cuLinkCreate(0, NULL, NULL, &link));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuLinkComplete(link, &image, &bytes));
  OK(cuLinkAddData(link, CU_JIT_INPUT_PTX, first, sizeof first, "first", 0, NULL, NULL));
  OK(cuLinkAddData(link, CU_JIT_INPUT_PTX, second, sizeof second - 1, "second", 0, NULL, NULL));
  GIVES(CUDA_ERROR_INVALID_PTX,
        cuLinkAddData(link, CU_JIT_INPUT_PTX, wrong, sizeof wrong, "wrong", 0, NULL, NULL));
  GIVES(CUDA_ERROR_FILE_NOT_FOUND,
        cuLinkAddFile(link, CU_JIT_INPUT_PTX, "/no/such/file", 0, NULL, NULL));
  OK(cuLinkComplete(link, &image, &bytes));
  CHECK(free_bytes() == before);
  OK(cuModuleLoadData(&module, image));
  OK(cuLinkDestroy(link));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuLinkDestroy(link));
  OK(cuModuleGetFunction(&function, module, "first"));
  OK(cuModuleGetFunction(&function, module, "second"));
  OK(cuModuleUnload(module));
}

CASE(images_that_do_not_fit_are_refused) {
  begin();
  CUmodule module;
  GIVES(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        cuModuleLoadData(&module, ".version 99.0\n.target sm_70\n"));
  GIVES(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&module, ".version 7.0\n.target sm_120\n"));
  GIVES(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&module, "no image at all"));
  GIVES(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, "\001\002\003\004"));
  GIVES(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&module, "/no/such/file"));
}

CASE(launches_that_cannot_be_are_refused) {
  begin();
  CUfunction f = spin_kernel();
  uint64_t ns = 1000;
  void *p[] = {&ns};
  GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 1025, 1, 1, 0, NULL, p, NULL));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, NULL, p, NULL));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 65536, 1, 1, 1, 1, 0, NULL, p, NULL));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 49153, NULL, p, NULL));
  GIVES(CUDA_ERROR_INVALID_HANDLE,
        cuLaunchKernel((CUfunction)p, 1, 1, 1, 1, 1, 1, 0, NULL, p, NULL));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, (CUstream)&ns, p, NULL));
  GIVES(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        cuLaunchCooperativeKernel(f, 100000, 1, 1, 1024, 1, 1, 0, NULL, p));
  OK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
  OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 100000, NULL, p, NULL));
  OK(cuLaunchCooperativeKernel(f, 200, 1, 1, 1024, 1, 1, 0, NULL, p));
  size_t bytes = 8;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &ns, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
  OK(cuCtxSynchronize());
}

CASE(a_library_kernel_can_be_launched_as_a_function) {
  begin();
  CUlibrary library;
  CUkernel kernel;
  CUfunction function;
  size_t before = free_bytes();
  OK(cuLibraryLoadData(&library, ".version 8.0\n.target sm_80\n.entry work()\n{ ret; }\n", NULL,
                       NULL, 0, NULL, NULL, 0));
  CHECK(free_bytes() == before); /* loaded when it is first used in a context */
  OK(cuLibraryGetKernel(&kernel, library, "work"));
  GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&kernel, library, "other"));
  OK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
  CHECK(before - free_bytes() == 2 * MIB);
  OK(cuKernelGetFunction(&function, kernel));
  OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
  OK(cuLibraryUnload(library));
  CHECK(free_bytes() == before);
}

CASE(occupancy_follows_threads_registers_and_shared_memory) {
  begin();
  int blocks, grid, block;
  CUfunction f = spin_kernel();
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 1024, 0));
  CHECK(blocks == 2);
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 32, 0));
  CHECK(blocks == 32);
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 32, 100000));
  CHECK(blocks == 2);
  OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, f, NULL, 0, 0));
  CHECK(block > 0 && grid % 100 == 0 && grid / 100 * block == 2048);
}
