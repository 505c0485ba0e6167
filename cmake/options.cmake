# Options that every target of ours shares: link rota_options. Includes are written from the repository's root.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Everything is built where it will be looked for at run time, so that the build tree works like a prefix.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/archive)
# Shims lie in lib/rota, a folder that ldconfig does not scan: they carry the SONAME libcuda.so.1.
set(ROTA_SHIM_DIRECTORY ${CMAKE_BINARY_DIR}/lib/rota)
set(ROTA_SHIM_DESTINATION ${CMAKE_INSTALL_LIBDIR}/rota)

find_program(ROTA_CCACHE ccache)
if(ROTA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${ROTA_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ROTA_CCACHE})
endif()

set(ROTA_SANITIZE "" CACHE STRING "Sanitizers: empty, address (with undefined) or thread")

add_library(rota_options INTERFACE)
target_include_directories(rota_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(rota_options INTERFACE -Wall -Wextra -Werror -Wno-unused-parameter)
if(ROTA_SANITIZE STREQUAL "address")
  set(ROTA_SANITIZE_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
    -Wno-maybe-uninitialized)  # g++ 12 sees ghosts in <regex> when it instruments it
elseif(ROTA_SANITIZE STREQUAL "thread")
  set(ROTA_SANITIZE_FLAGS -fsanitize=thread -fno-omit-frame-pointer)
elseif(ROTA_SANITIZE)
  message(FATAL_ERROR "ROTA_SANITIZE is '${ROTA_SANITIZE}': use address, thread or nothing")
endif()
# Not part of rota_options: the thin preload lives in every process and is never instrumented.
add_library(rota_sanitize INTERFACE)
target_compile_options(rota_sanitize INTERFACE ${ROTA_SANITIZE_FLAGS})
target_link_options(rota_sanitize INTERFACE ${ROTA_SANITIZE_FLAGS})

# A compiled fmt halves the time that a sanitizer build takes. Products carry their own: a machine that only runs rota has none.
set(ROTA_FMT fmt::fmt-header-only)
if(ROTA_SANITIZE)
  set(ROTA_FMT fmt::fmt)
endif()

# Products must run on machines with another libstdc++ than the one they were built with. The unwinder (libgcc_s) is the
# process's: a thread that is cancelled, or ends, inside of a call is unwound by the C library with that one, and frames
# that bring another one abort.
add_library(rota_static_runtime INTERFACE)
if(NOT ROTA_SANITIZE)
  target_link_options(rota_static_runtime INTERFACE -static-libstdc++)
endif()
