# Read by ctest: what cannot work under qemu-user, by name and with the reason. ctest shows each as not run (disabled), and
# tools/dev names them and counts them as skipped.
macro(skip_under_qemu name why)
  set_tests_properties("${name}" PROPERTIES DISABLED TRUE)
endmacro()

skip_under_qemu("monitor_test:the monitor takes none of the program's signals" "the kernel shows which signals qemu-user blocks, not the emulated thread")
skip_under_qemu("simgpu_driver_test:a pool that can be exported allocates more in its life than its file is long" "it maps 50 GiB at once, and qemu-user keeps a record of every page")
skip_under_qemu("swap_moves_test:memory of the host is no part of a forked child, and begins where huge pages do" "qemu-user does not know MADV_DONTFORK")
skip_under_qemu("swap_moves_test:a block that the host could not spare is not begun again at once" "the kernel shows how much memory qemu-user has, not the program")
skip_under_qemu("swap_moves_test:memory of the host is in no core dump and in no forked child, and in huge pages where there are any" "qemu-user does not know MADV_DONTDUMP and MADV_DONTFORK")
skip_under_qemu("swap_moves_test:a block that nothing has prepared is in memory when it is taken, whatever its size is" "qemu-user does not know MADV_POPULATE_WRITE, and says that it did it")
skip_under_qemu("memory_test:a debugger that is there at the first allocation makes what would be swapped native, one that comes later does not" "under qemu-user no process can trace another")
skip_under_qemu("rota_try_test:what a copy leaves running is ended, however it detached itself" "qemu-user does not know PR_SET_CHILD_SUBREAPER")
skip_under_qemu("scheduler_server_test:of several descriptors beside one message rotad keeps none" "qemu-user takes descriptors that the program has no room for, and keeps them")

# rota refuses, as it should, to reach into a program for another processor.
skip_under_qemu("rota_run_test:an ordinary dynamic program is covered" "this machine's sh is not for aarch64")
skip_under_qemu("rota_run_test:scripts are judged by the interpreter that runs them in the end" "this machine's sh is not for aarch64")
skip_under_qemu("rota_run_test:a program's exit status and its arguments pass through" "this machine's sh is not for aarch64")
skip_under_qemu("rota_run_test:librota.so is preloaded, an existing LD_PRELOAD kept, and the program told where its rotad is" "this machine's sh is not for aarch64")
skip_under_qemu("rota_run_test:many rota run at once start one rotad between them, which ends after its last program" "this machine's sh is not for aarch64")
skip_under_qemu("rota_run_test:where no rotad can be started the program runs all the same, after one line" "this machine's sh is not for aarch64")
skip_under_qemu("rota_run_test:a folder that somebody else made under the user's own name in /tmp does not keep the user from a rotad" "this machine's sh is not for aarch64")
skip_under_qemu("rota_run_test:a starter that never finishes is named after a while, and the program runs without turns" "this machine's sh is not for aarch64")
skip_under_qemu("rota_run_test:a rotad that never says it listens is given up after a while, and the program runs without turns" "this machine's sh is not for aarch64")
skip_under_qemu("rota_run_test:where one may not talk to the rotad the program runs all the same, after one line" "this machine's sh is not for aarch64")
skip_under_qemu("rota_run_test:a shim that is missing is one line, and the program runs" "this machine's sh is not for aarch64")
skip_under_qemu("rota_run_test:a mode that a running rotad does not have is said, not obeyed" "this machine's sh is not for aarch64")
