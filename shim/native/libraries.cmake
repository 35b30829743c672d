# The libraries and their sources. A new file in one of the folders is compiled without an entry here.
find_package(Threads REQUIRED)
include(${NATIVE}/floor/floor.cmake)

# The mechanism: pages and arithmetic, without CUDA. Part of all libraries.
file(GLOB MECHANISM_SOURCES CONFIGURE_DEPENDS ${NATIVE}/mechanism/*.c)

# The time-slice scheduler: the owner of a device runs it, not the shim.
file(GLOB SLICES_SOURCES CONFIGURE_DEPENDS ${NATIVE}/slices/*.c)

# The shim. SONAME libcuda.so.1: glibc gives it to every program that asks for that name.
file(GLOB COMMON_SOURCES CONFIGURE_DEPENDS ${NATIVE}/common/*.c) # of both libraries
file(GLOB SHIM_SOURCES CONFIGURE_DEPENDS ${NATIVE}/process/*.c ${NATIVE}/loading/*.c ${NATIVE}/loading/*.S
     ${NATIVE}/devices/*.c ${NATIVE}/images/*.c ${NATIVE}/memory/*.c ${NATIVE}/contexts/*.c ${NATIVE}/hooks/*.c)
add_library(penstock_cuda SHARED ${SHIM_SOURCES} ${COMMON_SOURCES} ${MECHANISM_SOURCES} ${GEN}/cuda_forwarders.S
            ${GEN}/cuda_names.c)
set_target_properties(penstock_cuda PROPERTIES OUTPUT_NAME penstock NO_SONAME ON)
set_source_files_properties(${NATIVE}/process/handshake.c PROPERTIES
  COMPILE_DEFINITIONS "PENSTOCK_VERSION=\"${SKBUILD_PROJECT_VERSION}\"") # empty in builds of C tests
# Never unloaded: its thread-local data is freed by its own code when a thread ends.
target_link_options(penstock_cuda PRIVATE -Wl,-soname,libcuda.so.1 -Wl,-z,nodelete)

file(GLOB SHIM_NVML_SOURCES CONFIGURE_DEPENDS ${NATIVE}/nvml/*.c)
add_library(penstock_nvml SHARED ${SHIM_NVML_SOURCES} ${COMMON_SOURCES} ${MECHANISM_SOURCES} ${GEN}/nvml_forwarders.S
            ${GEN}/nvml_names.c)
set_target_properties(penstock_nvml PROPERTIES OUTPUT_NAME penstock-nvml NO_SONAME ON)
target_link_options(penstock_nvml PRIVATE -Wl,-soname,libnvidia-ml.so.1)

# The simulated GPU.
file(GLOB MACHINE_SOURCES CONFIGURE_DEPENDS ${NATIVE}/sim/machine/*.c)
file(GLOB SIM_CUDA_SOURCES CONFIGURE_DEPENDS ${NATIVE}/sim/cuda/*.c)
file(GLOB SIM_NVML_SOURCES CONFIGURE_DEPENDS ${NATIVE}/sim/nvml/*.c)
add_library(sim_cuda SHARED ${SIM_CUDA_SOURCES} ${MACHINE_SOURCES} ${NATIVE}/common/log.c
            ${GEN}/cuda_stubs.S ${GEN}/cuda_variants.c)
set_target_properties(sim_cuda PROPERTIES OUTPUT_NAME cuda SOVERSION 1
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/sim)
add_library(sim_nvml SHARED ${SIM_NVML_SOURCES} ${MACHINE_SOURCES} ${NATIVE}/common/log.c
            ${GEN}/nvml_stubs.S)
set_target_properties(sim_nvml PROPERTIES OUTPUT_NAME nvidia-ml SOVERSION 1
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/sim)
# Never unloaded: threads of the simulated driver run on after a dlclose, and the shim's state of a
# process must outlive a program's last handle.
foreach(library penstock_cuda penstock_nvml sim_cuda)
  target_link_options(${library} PRIVATE -Wl,-z,nodelete)
endforeach()
target_include_directories(sim_cuda PRIVATE ${NATIVE}/sim)
target_include_directories(sim_nvml PRIVATE ${NATIVE}/sim)

foreach(library penstock_cuda penstock_nvml sim_cuda sim_nvml)
  add_dependencies(${library} generated)
  target_sources(${library} PRIVATE ${FLOOR_SOURCES})
  penstock_glibc_floor(${library})
  target_compile_definitions(${library} PRIVATE __CUDA_API_VERSION_INTERNAL NVML_NO_UNVERSIONED_FUNC_DEFS)
  target_link_options(${library} PRIVATE -Wl,-Bsymbolic -Wl,-z,relro)
  if(NOT PENSTOCK_SANITIZE)
    target_link_options(${library} PRIVATE -Wl,-z,defs)
  endif()
  target_link_libraries(${library} PRIVATE Threads::Threads ${CMAKE_DL_LIBS} rt)
endforeach()

# Preloaded libraries have room in the static TLS block, and a launch must not pay for a TLS call. A shim
# that is opened late must fit into the rest (tests/interposition/test_late.py). The simulated libraries
# are always opened late.
foreach(library penstock_cuda penstock_nvml)
  target_compile_options(${library} PRIVATE $<$<COMPILE_LANGUAGE:C>:-ftls-model=initial-exec>)
endforeach()

# A launch calls small functions of many files. Values stored as a vector are read word by word soon
# after, which would stall on the store.
if(NOT PENSTOCK_SANITIZE)
  set_target_properties(penstock_cuda PROPERTIES INTERPROCEDURAL_OPTIMIZATION ON)
  target_compile_options(penstock_cuda PRIVATE $<$<COMPILE_LANGUAGE:C>:-fno-tree-slp-vectorize>)
endif()

# The same C files for the agent and the tests: a cffi module, never preloaded.
add_custom_command(OUTPUT ${GEN}/_native.c
  COMMAND ${Python_EXECUTABLE} ${CMAKE_SOURCE_DIR}/shim/penstock_shim/_build_native.py ${NATIVE} ${GEN}/_native.c
  DEPENDS ${CMAKE_SOURCE_DIR}/shim/penstock_shim/_build_native.py
          ${NATIVE}/abi/quota.h ${NATIVE}/abi/usage.h ${NATIVE}/abi/ledger.h ${NATIVE}/abi/gate.h ${NATIVE}/abi/asked.h
          ${NATIVE}/abi/handshake.h
          ${NATIVE}/mechanism/gate.h ${NATIVE}/mechanism/cost.h ${NATIVE}/mechanism/recent.h
          ${NATIVE}/mechanism/survey.h ${NATIVE}/mechanism/binding.h
          ${NATIVE}/slices/account.h ${NATIVE}/slices/scheduler.h ${NATIVE}/sim/machine/binding.h)
Python_add_library(native MODULE WITH_SOABI ${GEN}/_native.c ${MECHANISM_SOURCES} ${SLICES_SOURCES}
                   ${MACHINE_SOURCES})
set_target_properties(native PROPERTIES OUTPUT_NAME _native)
target_include_directories(native PRIVATE ${NATIVE}/sim)
target_compile_options(native PRIVATE -Wno-unused-parameter -Wno-sign-compare)
target_link_libraries(native PRIVATE Threads::Threads rt)

install(TARGETS penstock_cuda penstock_nvml LIBRARY DESTINATION lib)
install(TARGETS sim_cuda sim_nvml LIBRARY DESTINATION sim)
install(TARGETS native LIBRARY DESTINATION .)

# Ordinary CUDA programs for `penstock bench`: they know nothing of the shim.
foreach(workload churn collective costs latency launcher launches start steps traced)
  add_executable(penstock_${workload} ${NATIVE}/workload/${workload}.c)
  set_target_properties(penstock_${workload} PROPERTIES OUTPUT_NAME penstock-${workload})
  target_link_libraries(penstock_${workload} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  install(TARGETS penstock_${workload} RUNTIME DESTINATION bin)
endforeach()

# What `penstock doctor` starts: the same program, without and with a need for the libraries.
add_executable(penstock_probe ${NATIVE}/workload/probe.c)
add_executable(penstock_probe_linked ${NATIVE}/workload/probe.c)
target_compile_definitions(penstock_probe_linked PRIVATE LINKED)
target_link_libraries(penstock_probe_linked PRIVATE -Wl,--no-as-needed sim_cuda sim_nvml)
foreach(probe penstock_probe penstock_probe_linked)
  string(REPLACE _ - program ${probe})
  set_target_properties(${probe} PROPERTIES OUTPUT_NAME ${program} SKIP_BUILD_RPATH ON)
  target_compile_definitions(${probe} PRIVATE NVML_NO_UNVERSIONED_FUNC_DEFS)
  target_link_libraries(${probe} PRIVATE ${CMAKE_DL_LIBS})
  install(TARGETS ${probe} RUNTIME DESTINATION bin)
endforeach()

# The hook that container runtimes start. Static if possible, because it changes its root directory.
add_executable(penstock_container_hook ${NATIVE}/container/hook.c ${NATIVE}/container/bundle.c
               ${NATIVE}/container/json.c)
set_target_properties(penstock_container_hook PROPERTIES OUTPUT_NAME penstock-container-hook)
include(CheckCSourceCompiles)
set(CMAKE_REQUIRED_LINK_OPTIONS -static)
check_c_source_compiles("int main(void) { return 0; }" PENSTOCK_CAN_LINK_STATIC)
unset(CMAKE_REQUIRED_LINK_OPTIONS)
if(PENSTOCK_CAN_LINK_STATIC AND NOT PENSTOCK_SANITIZE)
  target_link_options(penstock_container_hook PRIVATE -static)
endif()
install(TARGETS penstock_container_hook RUNTIME DESTINATION bin)

# Does operations that may never return for the agent: see aside/aside.c.
add_executable(penstock_aside ${NATIVE}/aside/aside.c)
set_target_properties(penstock_aside PROPERTIES OUTPUT_NAME penstock-aside)
target_link_libraries(penstock_aside PRIVATE Threads::Threads)
install(TARGETS penstock_aside RUNTIME DESTINATION bin)
