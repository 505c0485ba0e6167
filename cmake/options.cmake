# Options shared by all of rota's targets: link rota_options. Includes are relative to the repository root.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Everything is built where it is looked for at run time, so that the build tree works like a prefix.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/archive)
# Shims are in lib/rota, a folder that ldconfig does not scan, because their SONAME is libcuda.so.1.
set(ROTA_SHIM_DIRECTORY ${CMAKE_BINARY_DIR}/lib/rota)
set(ROTA_SHIM_DESTINATION ${CMAKE_INSTALL_LIBDIR}/rota)

find_program(ROTA_CCACHE ccache)
if(ROTA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What ccache must ignore to cache compilations that use a precompiled header. Its other condition is
  # -fpch-preprocess, for g++.
  set(CMAKE_C_COMPILER_LAUNCHER ${ROTA_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${ROTA_CCACHE})
endif()

set(ROTA_SANITIZE "" CACHE STRING "Sanitizers: empty, address (with undefined), thread, or fuzzer (by clang; see tests/fuzz)")

option(ROTA_SANITIZE_ALL "Build and test in the sanitizer builds too what costs much there: rota-codegen, rotad and simgpu under TSan, most rounds and processes" OFF)

add_library(rota_options INTERFACE)
target_include_directories(rota_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(rota_options INTERFACE -Wall -Wextra -Werror -Wno-unused-parameter
  # libstdc++ 12 deprecates a function that its own std::stable_sort uses.
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-declarations>)
if(ROTA_SANITIZE STREQUAL "address")
  set(ROTA_SANITIZE_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
    # g++ 12 gives false warnings in <regex> when it instruments it.
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>
    # Slots are called through the types of the functions that they stand for. g++ defines the macro too; tests that
    # cannot run under this sanitizer check it.
    $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=function> $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-D__SANITIZE_ADDRESS__=1>)
elseif(ROTA_SANITIZE STREQUAL "thread")
  set(ROTA_SANITIZE_FLAGS -fsanitize=thread -fno-omit-frame-pointer
    # g++ defines this too; tests that cannot run under this sanitizer check it.
    $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-D__SANITIZE_THREAD__=1>)
elseif(ROTA_SANITIZE STREQUAL "fuzzer")
  # Only the usual compiler's warnings count.
  set(ROTA_SANITIZE_FLAGS -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
    -fno-sanitize=function,vptr -fno-omit-frame-pointer)
  target_compile_options(rota_options INTERFACE -Wno-error)
elseif(ROTA_SANITIZE)
  message(FATAL_ERROR "ROTA_SANITIZE is '${ROTA_SANITIZE}': use address, thread, fuzzer or nothing")
endif()
# Not part of rota_options: the thin preload is in every process and is never instrumented.
add_library(rota_sanitize INTERFACE)
target_compile_options(rota_sanitize INTERFACE ${ROTA_SANITIZE_FLAGS})
target_link_options(rota_sanitize INTERFACE ${ROTA_SANITIZE_FLAGS})
# What code is compiled with that works for seconds in a sanitized build.
set(ROTA_SANITIZED_BUSY "")
if(ROTA_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(ROTA_SANITIZED_BUSY -O1 -finline-functions)
endif()
# Linked last by what is not itself what is tested: of its own code only what AddressSanitizer or ThreadSanitizer sees, by
# the names of functions. That is compiled in two thirds of the time.
add_library(rota_lightly_sanitized INTERFACE)
if(ROTA_SANITIZE MATCHES "^(address|thread)$" AND NOT ROTA_SANITIZE_ALL)
  target_compile_options(rota_lightly_sanitized INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-g0>
    $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=undefined>)
endif()

# Up to `files` of a target's sources are compiled as one, since parsing headers takes most of the time. Names in the
# unnamed namespaces of such a target must therefore differ. OFF is better while you edit a single file.
option(ROTA_JOIN_SOURCES "Compile several sources of a target as one where that is quicker" ON)
function(rota_join_sources files)
  set_target_properties(${ARGN} PROPERTIES UNITY_BUILD ${ROTA_JOIN_SOURCES} UNITY_BUILD_BATCH_SIZE ${files})
endfunction()

# The same for sources whose names meet those of others: the sources of each of these lists, given by its name.
function(rota_join_lists target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${ROTA_JOIN_SOURCES} UNITY_BUILD_MODE GROUP)
  foreach(list IN LISTS ARGN)
    set_source_files_properties(${${list}} PROPERTIES UNITY_GROUP ${list})
  endforeach()
endfunction()

# Headers that most of a target's sources include, parsed once for all of them; each still includes what it uses. The
# names of rota's headers are relative to the repository root, as in the sources.
function(rota_read_once target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)  # for ccache
  target_precompile_headers(${target} PRIVATE ${ARGN})
endfunction()

# Code that runs briefly, or waits most of the time, is hardly optimized in a release.
function(rota_seldom_busy)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  endforeach()
endfunction()

# For sources that parse a command line and call the code that does the work: optimizing CLI11 takes longer than it ever
# saves.
function(rota_never_busy)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE
      $<$<AND:$<OR:$<CONFIG:Release>,$<CONFIG:RelWithDebInfo>>,$<COMPILE_LANGUAGE:CXX>>:-O0>)
    target_link_libraries(${target} PRIVATE rota_lightly_sanitized)
  endforeach()
endfunction()

# fmt, static and hidden, since products carry their own: a machine that only runs rota has none, and a program may have
# a different one. Compiled once if its release is the one with a known list of instantiations; otherwise in every file.
find_package(fmt REQUIRED)
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  add_library(rota_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/compiled_fmt.cpp)
  target_include_directories(rota_fmt SYSTEM PUBLIC ${CMAKE_CURRENT_LIST_DIR}/fmt
    $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
else()
  add_library(rota_fmt INTERFACE)
  target_link_libraries(rota_fmt INTERFACE fmt::fmt-header-only)
endif()

# Products must run on machines with another libstdc++ than the one they were built with. The unwinder (libgcc_s) is the
# process's own: if a thread is cancelled or exits inside a call, the C library unwinds it with that one, and frames
# with another unwinder would abort.
add_library(rota_static_runtime INTERFACE)
if(NOT ROTA_SANITIZE)
  target_link_options(rota_static_runtime INTERFACE -static-libstdc++)
endif()
target_link_libraries(rota_static_runtime INTERFACE rota_glibc)
