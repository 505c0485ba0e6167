# Documentation in the installed prefix, in the same folders as here, so that its links work. tests/pages.py checks that all
# pages that a page here leads to are here.
set(ROTA_PAGES LICENSE COVERAGE.md README.md cuda_headers/README.md runtime/README.md runtime/memory/README.md
  runtime/memory/ALLOCATIONS.md runtime/memory/SERVED.md runtime/memory/swap/README.md runtime/memory/swap/FIGURES.md
  runtime/memory/swap/PINNED.md
  runtime/preload/nvml/README.md
  runtime/trace/README.md runtime/turn/README.md runtime/turn/GANGS.md scheduler/CONFIGURATION.md scheduler/ISOLATION.md scheduler/README.md
  scheduler/core/README.md scheduler/metrics/README.md scheduler/server/README.md tests/README.md tests/aarch64/README.md tests/fuzz/README.md
  tests/gpu/README.md tests/gpu/results/README.md tests/scenarios/README.md tools/README.md tools/guides/ADMINISTRATION.md
  tools/guides/CONTAINERS.md tools/guides/NOTEBOOKS.md tools/guides/SHARED-SERVER.md tools/guides/SLURM.md tools/package/README.md tools/rota/ci/README.md
  tools/rota/report/README.md
  tools/simgpu/README.md tools/simgpu/profiles/README.md)
install(FILES tools/rota/ci/examples/github-actions.yml tools/rota/ci/examples/Jenkinsfile
  DESTINATION ${CMAKE_INSTALL_DOCDIR}/tools/rota/ci/examples)
install(FILES tools/guides/examples/compose.yaml DESTINATION ${CMAKE_INSTALL_DOCDIR}/tools/guides/examples)
install(FILES tools/guides/examples/kernel/kernel.json DESTINATION ${CMAKE_INSTALL_DOCDIR}/tools/guides/examples/kernel)
install(PROGRAMS tools/guides/examples/task-prolog DESTINATION ${CMAKE_INSTALL_DOCDIR}/tools/guides/examples)
install(FILES tools/rota/status/status.schema.json DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/rota)
install(FILES tools/metrics/rota-alerts.yaml tools/metrics/rota-dashboard.json
  DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/rota/metrics)
# Written by tools/pages/write from the programs' own help.
install(FILES tools/pages/rota.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES tools/pages/rotad.toml.5 DESTINATION ${CMAKE_INSTALL_MANDIR}/man5)
install(FILES tools/pages/rotad.8 DESTINATION ${CMAKE_INSTALL_MANDIR}/man8)
install(FILES tools/pages/rota.bash DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions RENAME rota)
install(FILES tools/pages/_rota DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/zsh/site-functions)
install(FILES tools/pages/rota.fish DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/fish/vendor_completions.d)
foreach(page IN LISTS ROTA_PAGES)
  get_filename_component(folder ${page} DIRECTORY)
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder})
endforeach()
