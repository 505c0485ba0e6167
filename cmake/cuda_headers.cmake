# Finds the CUDA headers (an installed toolkit, else what cuda_headers/fetch unpacked). Only the generator, the signature
# test and the sample programs need them; the product itself compiles from generated/ alone.
# Sets ROTA_CUDA_INCLUDE (empty if none) and ROTA_NVCC (empty if none).
set(ROTA_CUDA_INCLUDE "" CACHE PATH "Folder that holds cuda.h")
if(NOT ROTA_CUDA_INCLUDE)
  find_path(ROTA_CUDA_INCLUDE_FOUND cuda.h
    HINTS $ENV{CUDA_HOME}/include $ENV{CUDA_PATH}/include /usr/local/cuda/include ${CMAKE_SOURCE_DIR}/cuda_headers/fetched/13.0/include)
  if(ROTA_CUDA_INCLUDE_FOUND)
    set(ROTA_CUDA_INCLUDE ${ROTA_CUDA_INCLUDE_FOUND} CACHE PATH "Folder that holds cuda.h" FORCE)
  endif()
endif()
find_program(ROTA_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
if(ROTA_CUDA_INCLUDE)
  message(STATUS "CUDA headers: ${ROTA_CUDA_INCLUDE}")
else()
  message(STATUS "CUDA headers: none (run tools/dev setup); what needs them is left out")
endif()
add_library(rota_cuda_headers INTERFACE)
if(ROTA_CUDA_INCLUDE)
  target_include_directories(rota_cuda_headers SYSTEM INTERFACE ${ROTA_CUDA_INCLUDE})
endif()
