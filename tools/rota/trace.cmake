# `rota trace`: the reader of trace files (also for tests), the name tables, and the command itself.
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

add_library(rota_names STATIC ${CMAKE_SOURCE_DIR}/generated/driver_names.cpp ${CMAKE_SOURCE_DIR}/generated/runtime_names.cpp)
target_link_libraries(rota_names PUBLIC rota_options PRIVATE rota_sanitize)

add_library(rota_trace_reader STATIC
  ${CMAKE_CURRENT_LIST_DIR}/trace_file.cpp ${CMAKE_CURRENT_LIST_DIR}/trace_tables.cpp ${CMAKE_CURRENT_LIST_DIR}/trace_unions.cpp
  ${CMAKE_CURRENT_LIST_DIR}/trace_objects.cpp ${CMAKE_CURRENT_LIST_DIR}/trace_render.cpp ${CMAKE_CURRENT_LIST_DIR}/trace_call.cpp
  ${CMAKE_CURRENT_LIST_DIR}/trace_decode.cpp ${CMAKE_CURRENT_LIST_DIR}/trace_output.cpp)
target_link_libraries(rota_trace_reader PUBLIC rota_options rota_names
  PRIVATE rota_sanitize ${ROTA_FMT} nlohmann_json::nlohmann_json)

add_library(rota_trace_tool STATIC ${CMAKE_CURRENT_LIST_DIR}/trace.cpp)
target_link_libraries(rota_trace_tool PUBLIC rota_trace_reader rota_tool CLI11::CLI11 PRIVATE rota_sanitize ${ROTA_FMT})
