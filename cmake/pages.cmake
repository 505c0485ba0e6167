# What people read, in the installed prefix: in the folders that it lies in here, so that its links lead somewhere.
set(ROTA_PAGES README.md COVERAGE.md LICENSE scheduler/README.md runtime/memory/README.md runtime/preload/nvml/README.md
  tools/simgpu/README.md cuda_headers/README.md)
foreach(page IN LISTS ROTA_PAGES)
  get_filename_component(folder ${page} DIRECTORY)
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder})
endforeach()
