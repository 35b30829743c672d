# The shim and the simulated driver run with glibc 2.17 and later. Functions that have moved to another library or got a
# new version since would be bound to the new one; the linker is shown empty libraries first, which
# export them as glibc 2.17 did. At run time the libraries of those names are glibc's own.
#
# To bring a new function down: its name and version into the .S and .map of the library that had it
# in 2.17, or, where 2.17 had none, its system call into glibc_floor.c. tests/containers names those
# that are missing. Not for sanitizers, which bring their own, and x86-64 only, as the forwarders.
set(FLOOR_SOURCES "")
set(FLOOR_LIBRARIES "")
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64" AND NOT PENSTOCK_SANITIZE)
  set(FLOOR_SOURCES ${NATIVE}/floor/glibc_floor.c)
  foreach(file libdl.so.2 libpthread.so.0)
    string(REGEX REPLACE "\\.so.*$" "" name ${file})
    add_library(floor_${name} SHARED ${NATIVE}/floor/${name}.S)
    set_target_properties(floor_${name} PROPERTIES NO_SONAME ON LINKER_LANGUAGE C
                          LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/floor)
    target_link_options(floor_${name} PRIVATE -nostdlib -Wl,-soname,${file}
                        -Wl,--version-script=${NATIVE}/floor/${name}.map)
    list(APPEND FLOOR_LIBRARIES floor_${name})
  endforeach()
endif()

function(penstock_glibc_floor)
  if(NOT FLOOR_LIBRARIES)
    return()
  endif()
  foreach(target ${ARGN})
    target_link_libraries(${target} PRIVATE -Wl,--push-state,--as-needed ${FLOOR_LIBRARIES}
                          -Wl,--pop-state)
    # No path to the empty libraries may get into what is built.
    set_target_properties(${target} PROPERTIES SKIP_BUILD_RPATH ON)
  endforeach()
endfunction()
