"""Programs whose memory rota moves itself (ROTA_MEMORY=swap): plain device memory, and memory from cuMemCreate, that
does not fit together, in turns."""
import re
import signal
import sys
import textwrap
import unittest

from harness import PROGRAMS, ROTA, ROTAD, Case, kill

SCALE = "5"  # real seconds per modelled second: the turns end while the programs still work


class FullGpu(Case):
    memory = "64M"

    # ctest labels: unsanitized
    def test_programs_that_fill_a_gpu_by_every_route_are_refused_and_neither_waits_for_the_other_for_good(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "20ms", "--grace", "1s")
        refused = 0
        # A program is refused what exceeds the GPU by itself: on a busy machine it may not come so far within a second.
        for seed in range(1, 20):
            if seed > 3 and refused > 0:
                break
            storms = [self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "allocation_storm", "--for", "1",
                                 "--bytes", str(16 << 20), "--seed", str(seed * 10 + number), ROTA_LOG="info") for number in range(3)]
            for storm in storms:
                result = self.finish(storm, timeout=40)
                self.assertEqual(result.returncode, 0, result.stderr[-2000:])
                counts = re.match(r"ok \d+ calls, \d+ a second, (\d+) refused", result.stdout)
                self.assertIsNotNone(counts, result.stdout)
                refused += int(counts[1])
                self.assertNotIn("has not fit on the GPU", result.stderr)
        self.assertGreater(refused, 0)


class Swapping(Case):
    grace = "100ms"

    def rotad(self, *options, mode="exclusive", quantum="50ms", trust="user"):
        daemon = self.start(ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks",
                            "--mode", mode, "--quantum", quantum, "--grace", self.grace, "--trust", trust, *options,
                            ROTA_SIM_TIME_SCALE=SCALE)
        self.eventually(lambda: self.status() is not None, "rotad answers")
        return daemon

    def hog(self, *options, share="0.6", **environment):
        return self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "memhog", "--share", share, *options,
                          ROTA_SIM_TIME_SCALE=SCALE, ROTA_LOG="debug", **environment)

    def hold(self, count, share="0.6", **environment):
        """Programs that work until their standard input closes; each has had its memory on the GPU at least once."""
        hogs = [self.hog("--hold", "--ahead", "20", share=share, **environment) for _ in range(count)]
        for hog in hogs:
            line = hog.stdout.readline()
            self.assertEqual(line, "ready\n", "" if line else self.finish(hog).stderr[-3000:])
        return hogs

    def right(self, hogs):
        """Ends them and checks that every word that each has written is there. Returns their stderr."""
        said = []
        for hog in hogs:
            result = self.finish(hog)
            self.assertEqual(result.returncode, 0, result.stderr[-2000:])
            self.assertIn('"wrong":0', result.stdout)
            said.append(result.stderr)
        return said

    def grants(self):
        return self.status()["daemon"]["grants"]

    def switches(self, count, what):
        before = self.grants()
        self.eventually(lambda: self.grants() >= before + count, what)


class Swap(Swapping):
    def test_two_programs_that_do_not_fit_together_swap_and_lose_nothing(self):
        self.rotad()
        hogs = self.hold(2)
        # Both work, and the GPU never holds more than fits: simgpu would refuse it.
        self.switches(6, "the lease goes to and fro")
        for said in self.right(hogs):
            self.assertRegex(said, r"GPU 0: \d+ of \d+ bytes moved out")
            self.assertIn("memory back after", said)

    def test_room_on_the_host_is_ready_before_memory_has_to_leave_where_programs_do_not_fit_together(self):
        self.rotad(quantum="500ms")
        hogs = self.hold(2)
        self.switches(2, "the lease goes to and fro")
        self.assertTrue(any("bytes of host memory are ready" in said for said in self.right(hogs)))

    def test_three_programs_where_two_fit_move_no_more_than_is_missing(self):
        self.rotad()
        hogs = self.hold(3, share="0.3")
        self.switches(6, "the lease goes round")
        for said in self.right(hogs):
            moved = [int(bytes) for bytes in re.findall(r"GPU 0: (\d+) of \d+ bytes moved out", said)]
            # 80 MiB each of 256, plus 16 for each context: 32 MiB too much, in extents of 10 MiB.
            self.assertTrue(all(bytes <= 50 * 2**20 for bytes in moved), moved)

    def test_programs_that_fit_together_move_nothing(self):
        self.rotad(mode="automatic")
        for said in self.right(self.hold(2, share="0.3")):
            self.assertNotIn("moved out", said)
            self.assertNotIn("bytes of host memory are ready", said)

    def test_a_program_killed_while_it_swaps_harms_nobody(self):
        self.rotad()
        hogs = self.hold(3)
        self.switches(3, "the lease goes round")
        kill(hogs.pop())
        self.switches(4, "the others go on")
        self.right(hogs)

    def test_beside_a_stopped_program_the_others_go_on_with_what_is_left(self):
        self.rotad()
        hogs = self.hold(3, share="0.4")
        hogs[0].send_signal(signal.SIGSTOP)  # `rota run` has become the program
        self.switches(8, "the others take turns")
        hogs[0].send_signal(signal.SIGCONT)
        self.right(hogs)

    def test_a_program_that_grows_beside_a_stopped_one_waits_for_its_room_and_is_not_out_of_memory(self):
        self.rotad()
        stopped, = self.hold(1, share="0.5")
        stopped.send_signal(signal.SIGSTOP)
        grows = self.hog("--rounds", "20", "--grow", "0.4", share="0.3")
        # Until its gate is closed: the driver has no space for its memory.
        self.assertTrue(any("no room for all memory" in line for line in grows.stderr))
        stopped.send_signal(signal.SIGCONT)
        self.right([grows, stopped])

    def test_a_program_that_says_much_while_rotad_does_not_read_keeps_its_rotad(self):
        daemon = self.rotad()
        stopped, = self.hold(1, share="0.5")
        stopped.send_signal(signal.SIGSTOP)
        grows = self.hog("--rounds", "20", "--grow", "0.4", share="0.3")
        tries = (line for line in grows.stderr if "no room for all memory" in line)
        next(tries)
        # With each attempt to get memory its figures rise and fall: more messages than the socket holds.
        daemon.send_signal(signal.SIGSTOP)
        for _ in range(12):
            next(tries)
        daemon.send_signal(signal.SIGCONT)
        stopped.send_signal(signal.SIGCONT)
        for said in self.right([grows, stopped]):
            self.assertNotRegex(said, "rotad is (gone|back)")

    def test_programs_whose_rotad_dies_while_memory_is_out_end_with_right_results(self):
        daemon = self.rotad()
        hogs = self.hold(2)
        self.switches(3, "the lease goes to and fro")
        kill(daemon)
        for hog in hogs:
            hog.stdin.close()
            hog.stdin = None
        self.right(hogs)

    def gpu(self):
        return self.status()["gpus"][0]

    def test_memory_goes_from_program_to_program_without_the_driver_in_between(self):
        self.rotad()
        taken = []
        for _ in range(5):  # on a busy machine it may come only once its recipient has other memory
            hogs = self.hold(2)
            self.switches(6, "the lease goes to and fro")
            self.assertGreater(self.gpu()["handed_over_bytes"], 0)
            taken += [int(bytes) for said in self.right(hogs) for bytes in re.findall(r"(\d+) of it in memory that others handed over", said)]
            if sum(taken) != 0:
                break
        self.assertGreater(sum(taken), 0)

    def test_nothing_is_handed_over_where_nobody_is_trusted(self):
        self.rotad(trust="none")
        hogs = self.hold(2)
        self.switches(6, "the lease goes to and fro")
        self.assertEqual(self.gpu()["handed_over_bytes"], 0)
        for said in self.right(hogs):
            self.assertNotRegex(said, r"[1-9]\d* of it in memory that others handed over")

    def test_programs_for_which_the_driver_pins_too_little_memory_swap_all_the_same(self):
        self.rotad()
        hogs = self.hold(2, ROTA_SIM_FAULTS="cuMemHostRegister@4+=CUDA_ERROR_OUT_OF_MEMORY")
        self.switches(4, "the lease goes to and fro")
        for said in self.right(hogs):
            self.assertIn("the driver cannot pin more host memory", said)

    def test_a_program_whose_memory_the_driver_does_not_bring_back_is_told_so_and_others_go_on(self):
        self.rotad()
        other, = self.hold(1)
        lost = self.hog("--rounds", "1000000", "--ahead", "20", ROTA_SIM_FAULTS="cuMemcpyHtoDAsync@1+=CUDA_ERROR_INVALID_HANDLE")
        result = self.finish(lost)
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(result.stderr.count("this program's memory cannot be restored"), 1, result.stderr[-2000:])
        self.assertIn("CUDA_ERROR_INVALID_HANDLE (400)", result.stderr)
        self.right([other])

    def test_a_program_with_an_error_that_sticks_sees_its_own_error_and_others_go_on(self):
        self.rotad()
        other, = self.hold(1)
        # While its memory is being restored, so that the gate is closed.
        failing = self.hog("--rounds", "1000000", "--ahead", "20",
                           ROTA_SIM_FAULTS="cuMemcpyHtoDAsync@2=sticky:CUDA_ERROR_ILLEGAL_ADDRESS")
        result = self.finish(failing)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("700", result.stderr + result.stdout)
        self.assertNotIn("this program's memory cannot be restored", result.stderr)
        self.right([other])

    # ctest labels: unsanitized
    def test_beside_others_contexts_no_more_is_free_than_can_be_there_at_once(self):
        self.rotad()
        asks = ("import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); context = ctypes.c_void_p(); "
                "free, total = ctypes.c_size_t(), ctypes.c_size_t(); "
                "assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0; "
                "assert cuda.cuCtxSetCurrent(context) == 0; "
                "assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0; print(free.value)")
        def free():
            return int(self.checked(ROTA, "run", "--memory", "swap", "--", sys.executable, "-c", asks).stdout)
        alone = free()
        hogs = self.hold(2, share="0.3")
        self.assertEqual(free(), alone - 2 * 16 * 2**20)  # the others' contexts
        self.right(hogs)

    def test_memory_that_takes_longer_than_turn_and_grace_to_come_back_comes_back(self):
        self.grace = "20ms"
        self.rotad()
        self.right(self.hold(3))

    # ctest labels: unsanitized
    def test_contexts_that_a_full_gpu_has_no_room_for_get_it_from_programs_that_rest(self):
        self.rotad()
        other, = self.hold(1, share="0.7")  # 179 MiB of 256, and 16 for its context
        program = textwrap.dedent("""
            import ctypes
            cuda, word = ctypes.CDLL("libcuda.so.1"), ctypes.c_ulonglong
            def make_context():
                context = ctypes.c_void_p()
                result = cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
                print("context", result, flush=True)
            assert cuda.cuInit(0) == 0
            make_context()
            data = word()
            assert cuda.cuMemAlloc_v2(ctypes.byref(data), word(44 << 20)) == 0
            assert cuda.cuMemsetD8_v2(data, 7, word(44 << 20)) == 0  # 1 MiB is left
            assert cuda.cuCtxSynchronize() == 0  # the copy below is another context's
            make_context()
            make_context()
            byte = ctypes.c_ubyte()
            assert cuda.cuMemcpyDtoH_v2(ctypes.byref(byte), data, word(1)) == 0
            print("right", byte.value == 7)
        """)
        for _ in range(3):
            result = self.finish(self.start(ROTA, "run", "--memory", "swap", "--", sys.executable, "-c", program, ROTA_SIM_TIME_SCALE=SCALE))
            self.assertEqual(result.stdout, "context 0\ncontext 0\ncontext 0\nright True\n", result.stderr)
        self.right([other])

    # ctest labels: unsanitized
    def test_what_the_driver_refuses_for_a_moment_is_not_out_of_memory_by_any_route(self):
        self.rotad()
        start = ("import ctypes; cuda, word = ctypes.CDLL('libcuda.so.1'), ctypes.c_ulonglong; context, got = ctypes.c_void_p(), word(); "
                 "assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0; "
                 "assert cuda.cuCtxSetCurrent(context) == 0; what = (ctypes.c_int * 8)(1, 0, 1, 0); "
                 "assert cuda.cuMemAlloc_v2(ctypes.byref(got), word(2 << 20)) == 0; "  # and its turn begins
                 "assert cuda.cuMemsetD8_v2(got, 0, word(2 << 20)) == 0; ")
        faults = ",".join([f"cuMemCreate@{number}=CUDA_ERROR_OUT_OF_MEMORY" for number in range(2, 10)] +
                          [f"cuArrayCreate@{number}=CUDA_ERROR_OUT_OF_MEMORY" for number in range(1, 9)])
        for route in ("cuMemAlloc_v2(ctypes.byref(got), word(8 << 20))", "cuMemAlloc_v2(ctypes.byref(got), word(1 << 20))",
                      "cuMemAllocAsync(ctypes.byref(got), word(8 << 20), None)",
                      "cuMemCreate(ctypes.byref(got), word(8 << 20), what, word(0))",
                      "cuArrayCreate_v2(ctypes.byref(got), (word * 3)(1024, 1024, 1 << 32 | 1))"):
            with self.subTest(route):
                printed = self.checked(ROTA, "run", "--memory", "swap", "--", sys.executable, "-c",
                                       f"{start}print(cuda.{route})", ROTA_SIM_FAULTS=faults).stdout
                self.assertEqual(printed, "0\n")

    def test_what_rota_itself_asks_of_the_driver_is_simulated(self):
        unknown = self.scratch / "unknown"
        self.rotad()
        hogs = self.hold(2, ROTA_SIM_LOG=str(unknown))
        self.switches(3, "the lease goes to and fro")
        self.right(hogs)
        self.assertEqual(unknown.read_text() if unknown.exists() else "", "")

    def test_the_event_log_shows_moves_as_they_happen_and_can_be_played_all_the_same(self):
        events = self.scratch / "events"
        daemon = self.rotad("--event-log", events)
        hogs = self.hold(2)
        line = r"(?m)^# \d+ moved \d+ pid {}: out [1-9]\d* bytes at \d+\.\d GB/s, \d+ without a copy; back (\d+) bytes"
        for hog in hogs:
            self.eventually(lambda: re.search(line.format(hog.pid), events.read_text()), "a line about its moves")
        self.right(hogs)
        daemon.terminate()
        daemon.wait()
        self.assertIn("all as recorded", self.checked(ROTAD, "--replay", events).stdout)

    def test_status_shows_what_lies_on_the_gpu(self):
        self.rotad()
        hogs = self.hold(2)
        def swapped_out():
            clients = self.clients()
            return len(clients) == 2 and min(client["resident_bytes"] for client in clients) < 0.5 * 256 * 2**20
        self.eventually(swapped_out, "a part of one's memory is out")
        modes = {gpu["memory"] for client in self.clients() for gpu in client.get("gpu_memory", [{"memory": "swap"}])}
        self.assertEqual(modes, {"swap"})
        self.eventually(lambda: any(min(client["moved"][key] for key in ("out_bytes", "out_ns", "in_bytes", "in_ns")) > 0
                                    for client in self.clients()), "one's memory has left and come back")
        self.right(hogs)


class OwnMemory(Swapping):
    """Programs that create physical memory themselves (cuMemCreate), as PyTorch's expandable segments do."""

    # A program that has not drained in time keeps its memory on the GPU for a while.
    grace = "30s"

    def segments(self, *options, **environment):
        return self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "segments", "--share", "0.6", "--ahead", "5",
                          *options, ROTA_SIM_TIME_SCALE=SCALE, ROTA_LOG="debug", **environment)

    def hold_segments(self, count, *options, **environment):
        programs = [self.segments("--hold", *options, **environment) for _ in range(count)]
        for program in programs:
            line = program.stdout.readline()
            self.assertEqual(line, "ready\n", "" if line else self.finish(program).stderr[-3000:])
        return programs

    def test_two_programs_that_make_their_memory_swap_it_and_lose_nothing(self):
        self.rotad()
        programs = self.hold_segments(2)
        self.switches(8, "the lease goes to and fro")
        for said in self.right(programs):
            self.assertRegex(said, r"GPU 0: [1-9]\d* of \d+ bytes moved out")
            self.assertIn("memory back after", said)

    def test_a_program_that_makes_its_memory_swaps_with_one_of_plain_memory(self):
        self.rotad()
        programs = self.hold_segments(1) + self.hold(1)
        self.switches(8, "the lease goes to and fro")
        for said in self.right(programs):
            self.assertRegex(said, r"GPU 0: [1-9]\d* of \d+ bytes moved out")

    def test_memory_that_the_driver_refuses_to_make_again_and_again_comes_back_all_the_same(self):
        self.rotad()
        faults = ",".join(f"cuMemCreate@{call}=CUDA_ERROR_OUT_OF_MEMORY" for call in range(30, 90, 7))
        programs = self.hold_segments(2, "--still", ROTA_SIM_FAULTS=faults)
        self.switches(10, "the lease goes to and fro")
        self.right(programs)

    def test_a_program_that_made_its_memory_and_never_gets_it_back_is_told_so_and_others_go_on(self):
        self.rotad()
        other, = self.hold_segments(1, "--still")
        lost = self.segments("--still", "--rounds", "1000000",
                             ROTA_SIM_FAULTS="cuMemcpyHtoDAsync@1+=CUDA_ERROR_INVALID_HANDLE")
        result = self.finish(lost)
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(result.stderr.count("this program's memory cannot be restored"), 1, result.stderr[-2000:])
        self.assertIn("CUDA_ERROR_INVALID_HANDLE (400)", result.stderr)
        self.right([other])

    # ctest labels: unsanitized
    def test_a_holder_that_rotad_does_not_read_from_for_a_while_still_gets_memory_that_others_move_away(self):
        daemon = self.rotad()
        other, = self.hold(1, share="0.5")
        program = textwrap.dedent("""
            import ctypes, sys, time
            cuda, word = ctypes.CDLL("libcuda.so.1"), ctypes.c_ulonglong
            context, handle, what = ctypes.c_void_p(), word(), (ctypes.c_int * 8)(1, 0, 1, 0)  # pinned memory of GPU 0
            def create(mebibytes):
                return cuda.cuMemCreate(ctypes.byref(handle), word(mebibytes << 20), what, word(0))
            assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert cuda.cuCtxSetCurrent(context) == 0
            data = word()
            assert cuda.cuMemAlloc_v2(ctypes.byref(data), word(1 << 20)) == 0  # and its turn begins
            assert cuda.cuMemsetD8_v2(data, 0, word(1 << 20)) == 0
            for times in 3, 600:
                print("ready", flush=True)
                sys.stdin.readline()
                for _ in range(times):
                    assert create(8) == 0 and cuda.cuMemRelease(handle) == 0
                    time.sleep(.001)  # each time rotad is told of it
            print("said much", flush=True)
            print("created", create(120), flush=True)
        """)
        says_much = self.start(ROTA, "run", "--memory", "swap", "--", sys.executable, "-c", program,
                               ROTA_SIM_TIME_SCALE=SCALE, ROTA_LOG="info")
        for reads in True, False:
            self.assertEqual(says_much.stdout.readline(), "ready\n")
            daemon.send_signal(signal.SIGCONT if reads else signal.SIGSTOP)
            says_much.stdin.write("\n")
            says_much.stdin.flush()
        self.assertEqual(says_much.stdout.readline(), "said much\n")
        daemon.send_signal(signal.SIGCONT)
        created = says_much.stdout.readline()
        said = self.finish(says_much).stderr
        self.assertEqual(created, "created 0\n", said)
        self.assertNotIn("rotad", said)
        self.right([other])


if __name__ == "__main__":
    unittest.main()
