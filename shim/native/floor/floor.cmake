# The shim and the simulated driver run with glibc 2.17 and later. A function that has since moved to
# another library or received a new version would be bound to that new version. The linker therefore
# first reads empty libraries that export such functions as glibc 2.17 did. At run time, glibc's own
# libraries are used.
#
# To add a function, put its name and version into the .S and .map files of the library that had it in
# glibc 2.17. If 2.17 lacked it, put its system call into glibc_floor.c. tests/containers reports
# missing functions. The empty libraries are not used with sanitizers, which have their own versions of
# these functions, and only on x86-64, like the forwarders.
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
    # The built libraries must not contain the path of the empty libraries.
    set_target_properties(${target} PROPERTIES SKIP_BUILD_RPATH ON)
  endforeach()
endfunction()
