# Interposing: unit tests of the core's side, and process tests of the built librota.so under a small driver of their own.
set(interpose_directory ${CMAKE_BINARY_DIR}/tests/interpose)

rota_unit_test(interpose_ld_cache_test
  SOURCES interpose/ld_cache_test.cpp ${CMAKE_SOURCE_DIR}/runtime/interpose/thin/ld_cache.cpp
  LIBRARIES rota_options rota_sanitize)

rota_unit_test(interpose_attach_test SOURCES interpose/attach_test.cpp LIBRARIES rota_core_objects)
target_compile_definitions(interpose_attach_test PRIVATE ROTA_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")

# What the preload may need and may show, read from the built files.
add_test(NAME interpose_elf COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/interpose_elf_test.py)
# The other processor's thunks at least assemble, where a compiler for it is found.
find_program(ROTA_CLANG NAMES clang-19 clang)
set_tests_properties(interpose_elf PROPERTIES LABELS unit TIMEOUT 60 ENVIRONMENT
  "ROTA_SHIM_DIRECTORY=${ROTA_SHIM_DIRECTORY};ROTA_SOURCE_DIRECTORY=${CMAKE_SOURCE_DIR};ROTA_CLANG=${ROTA_CLANG};ROTA_SANITIZED=${ROTA_SANITIZE}")

# Under a sanitizer its runtime would have to come first, and its dlopen wrapper breaks what is tested here (see the facts);
# the thin preload is never instrumented, so the release build says all there is to say.
if(ROTA_SANITIZE)
  return()
endif()

function(interpose_library name folder output source)
  add_library(${name} SHARED ${source})
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX "" OUTPUT_NAME ${output} NO_SONAME ON
    LIBRARY_OUTPUT_DIRECTORY ${interpose_directory}/${folder})
  target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS})
endfunction()

foreach(variant driver driver_old driver_11)
  interpose_library(interpose_${variant} ${variant} libcuda.so.1 interpose/driver.cpp)
  target_link_options(interpose_${variant} PRIVATE -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic)
endforeach()
target_compile_definitions(interpose_driver_old PRIVATE TEST_DRIVER_OLD)
target_compile_definitions(interpose_driver_11 PRIVATE TEST_DRIVER_11)

interpose_library(interpose_foreign foreign libforeign.so interpose/foreign.cpp)
target_link_libraries(interpose_foreign PRIVATE interpose_driver)
interpose_library(interpose_plugin probe/plugins libinterpose_plugin.so interpose/plugin.cpp)
set_target_properties(interpose_plugin PROPERTIES BUILD_RPATH "$ORIGIN/inner")
interpose_library(interpose_inner probe/plugins/inner libinterpose_inner.so interpose/inner.cpp)
interpose_library(interpose_constructor constructor libconstructor.so interpose/constructor.cpp)

add_executable(interpose_probe interpose/probe.cpp)
target_link_libraries(interpose_probe PRIVATE ${CMAKE_DL_LIBS} Threads::Threads)
add_executable(interpose_direct interpose/direct.cpp)
target_link_libraries(interpose_direct PRIVATE interpose_driver ${CMAKE_DL_LIBS})
foreach(program interpose_probe interpose_direct)
  set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${interpose_directory}/probe
    BUILD_RPATH "$ORIGIN/plugins")
  target_link_options(${program} PRIVATE -Wl,--enable-new-dtags)
endforeach()

add_test(NAME interpose_process COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/interpose_process_test.py)
set_tests_properties(interpose_process PROPERTIES LABELS unit TIMEOUT 120 ENVIRONMENT
  "ROTA_SHIM_DIRECTORY=${ROTA_SHIM_DIRECTORY};ROTA_TEST_DIRECTORY=${interpose_directory}")

# What a real driver was recorded to answer, replayed through the shim on the simulated one, which answers alike.
if(TARGET simgpu_cuda)
  add_executable(interpose_replay interpose/replay.cpp)
  target_link_libraries(interpose_replay PRIVATE ${CMAKE_DL_LIBS})
  set_target_properties(interpose_replay PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${interpose_directory}/probe)
  add_test(NAME interpose_replay_table
    COMMAND interpose_replay table ${CMAKE_SOURCE_DIR}/tests/data/cugetprocaddress-580.159.txt)
  add_test(NAME interpose_replay_cudart
    COMMAND interpose_replay cudart ${CMAKE_SOURCE_DIR}/tests/data/cudart-13.0-lookups.txt)
  foreach(replay table cudart)
    set_tests_properties(interpose_replay_${replay} PROPERTIES LABELS unit TIMEOUT 60 ENVIRONMENT
      "LD_PRELOAD=${ROTA_SHIM_DIRECTORY}/librota.so;ROTA_REAL_LIBCUDA=${ROTA_SHIM_DIRECTORY}/simgpu/libcuda.so.1;ROTA_SOCKET=${interpose_directory}/no.sock;ROTA_SIM_STATE=${interpose_directory}/replay-${replay}.state")
  endforeach()
endif()
