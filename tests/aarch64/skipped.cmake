# Read by ctest: what cannot work under qemu-user, by name and with the reason. ctest shows each as not run (disabled), and
# tools/dev counts them as skipped.
macro(skip_under_qemu name why)
  set_tests_properties("${name}" PROPERTIES DISABLED TRUE)
endmacro()
