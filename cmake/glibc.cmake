# The oldest glibc that products run on. They are linked against stubs of its libraries, so that the linker picks a
# version of each symbol that it had (see tools/package/README.md). So the tested build is the packaged one, and a core
# built on Debian 12 loads in older containers. The thin preloads need none of it
# (tests/unit/runtime/preload/elf_test.py).
set(ROTA_GLIBC 2.28 CACHE STRING "The oldest glibc that products run with, 2.28 or later; OFF: this machine's")
if(ROTA_GLIBC AND (NOT ROTA_GLIBC MATCHES "^2\\.[0-9]+$" OR ROTA_GLIBC VERSION_LESS 2.28))
  message(FATAL_ERROR "ROTA_GLIBC is '${ROTA_GLIBC}': use 2.28 or a later release, or OFF for this machine's")
endif()

set(glibc_stubs ${CMAKE_BINARY_DIR}/glibc)
file(REMOVE ${glibc_stubs}/linked)

add_library(rota_glibc INTERFACE)
if(ROTA_GLIBC AND NOT ROTA_SANITIZE AND NOT CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(glibc_sources ${CMAKE_SOURCE_DIR}/tools/package/glibc)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${glibc_sources}/stubs.py ${glibc_sources}/moved.txt)
  execute_process(COMMAND ${Python3_EXECUTABLE} -B ${glibc_sources}/stubs.py --glibc ${ROTA_GLIBC} --compiler ${CMAKE_C_COMPILER}
      ${glibc_stubs}
    RESULT_VARIABLE glibc_failed ERROR_VARIABLE glibc_error)
  if(NOT glibc_failed)
    # A libstdc++.a other than Debian 12's may need more of the C library than functions.cpp provides.
    try_compile(glibc_links ${glibc_stubs}/check SOURCES ${glibc_sources}/check.cpp ${glibc_sources}/functions.cpp
        ${glibc_sources}/start.cpp
      LINK_OPTIONS -L${glibc_stubs} -static-libstdc++ -Wl,--allow-shlib-undefined -Wl,--wrap=pthread_cond_clockwait -Wl,--wrap=__libc_start_main
      OUTPUT_VARIABLE glibc_error CXX_STANDARD 20)
  endif()
  if(glibc_links)
    message(STATUS "Products run from glibc ${ROTA_GLIBC} on")
    file(WRITE ${glibc_stubs}/linked ${ROTA_GLIBC})  # for tools/package/make
    add_library(rota_glibc_functions OBJECT ${glibc_sources}/functions.cpp)
    add_library(rota_glibc_start OBJECT ${glibc_sources}/start.cpp)
    set(glibc_starts $<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>)
    target_sources(rota_glibc INTERFACE $<TARGET_OBJECTS:rota_glibc_functions> $<${glibc_starts}:$<TARGET_OBJECTS:rota_glibc_start>>)
    set_property(TARGET rota_glibc PROPERTY INTERFACE_LINK_DEPENDS ${glibc_stubs}/libc.so.6 ${glibc_stubs}/libpthread.so.0)
    # libgcc_s itself is this machine's, and needs this machine's glibc.
    target_link_options(rota_glibc INTERFACE -L${glibc_stubs} -Wl,--allow-shlib-undefined -Wl,--wrap=pthread_cond_clockwait
      $<${glibc_starts}:-Wl,--wrap=__libc_start_main>)
  else()
    unset(glibc_links CACHE)  # try again next time
    file(WRITE ${glibc_stubs}/error.log "${glibc_error}")
    message(STATUS "Products need this machine's glibc: linking for ${ROTA_GLIBC} failed (${glibc_stubs}/error.log)")
  endif()
endif()
