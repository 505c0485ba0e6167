"""What `rota trace` selects from a record, sums up and exports, and what it refuses."""
import json
import os
import sys

from harness import Case, PROGRAMS, ROTA

# Its own streams and a named thread; memory that is never freed, and calls that fail.
PROGRAM = """
import ctypes, sys, threading
cuda = ctypes.CDLL("libcuda.so.1")
libc = ctypes.CDLL(None)
assert cuda.cuInit(0) == 0
context, module, function, stream = (ctypes.c_void_p() for _ in range(4))
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
def allocate(size):
    address = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), address
given = [allocate(1 << 20)[1] for _ in range(3)]
assert cuda.cuMemFree_v2(given.pop()) == 0
assert allocate(1 << 40)[0] == 2
host = ctypes.create_string_buffer(1 << 20)
assert cuda.cuMemcpyHtoD_v2(given[0], host, ctypes.c_size_t(1 << 20)) == 0
assert cuda.cuMemcpyDtoH_v2(host, given[0], ctypes.c_size_t(4096)) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), open(sys.argv[1], "rb").read()) == 0
assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"_Z4spinm") == 0
duration = ctypes.c_uint64(2_000_000)
arguments = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
def work():
    # It makes its first call before it gets its name, as in programs that name their threads late.
    assert cuda.cuCtxSetCurrent(context) == 0
    libc.prctl(15, b"loader", 0, 0, 0)
    for _ in range(2):
        assert cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None) == 0
    assert cuda.cuStreamSynchronize(stream) == 0
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""

PTX = """.version 7.0
.target sm_52
.address_size 64
.visible .entry _Z4spinm(.param .u64 duration) { ret; }
"""


class TraceReading(Case):
    def trace(self, *options, command=None, **environment):
        (self.scratch / "spin.ptx").write_bytes(PTX.encode() + b"\0")
        command = command or [sys.executable, "-c", PROGRAM, self.scratch / "spin.ptx"]
        return self.call(ROTA, "trace", "--dir", self.scratch / "trace", *options, "--", *command, **environment)

    def traced(self, **environment):
        result = self.trace(**environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def show(self, *options):
        return self.call(ROTA, "trace", "show", *options, self.scratch / "trace")

    def functions(self, *options):
        result = self.show("--json", *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [call["function"] for call in json.loads(result.stdout)]

    # ctest labels: unsanitized
    def test_a_base_name_stands_for_all_versions_and_errors_and_exclude_pick_calls(self):
        self.traced()
        self.assertEqual(self.functions("--function", "cuMemAlloc"), ["cuMemAlloc_v2"] * 4)
        self.assertEqual(self.functions("--function", "cuMemAlloc_v2"), ["cuMemAlloc_v2"] * 4)
        self.assertEqual(set(self.functions("--function", "cuMemcpy*")), {"cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2"})
        self.assertEqual(self.functions("--errors"), ["cuMemAlloc_v2"])
        rest = self.functions("--exclude", "cuMemAlloc", "--exclude", "cuMemcpy*")
        self.assertIn("cuLaunchKernel", rest)
        self.assertFalse([name for name in rest if name.startswith(("cuMemAlloc", "cuMemcpy"))])

    # ctest labels: unsanitized
    def test_names_and_processes_that_are_not_there_are_errors(self):
        self.traced()
        for options, named in {
            ("--function", "cuMemAllocc"): "no CUDA function is called 'cuMemAllocc': did you mean cuMemAlloc?",
            ("--exclude", "nothing*"): "no CUDA function's name begins with 'nothing'",
            ("--pid", "1"): "no process 1 in",
        }.items():
            with self.subTest(options=options):
                result = self.show(*options)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertIn(named, result.stderr)
        unused = self.show("--function", "cuGraphCreate")
        self.assertEqual((unused.returncode, unused.stdout), (0, ""))
        self.assertIn("note: no call matches", unused.stderr)

    # ctest labels: unsanitized
    def test_lookups_are_folded_unless_asked_for(self):
        ask = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
address, status = ctypes.c_void_p(), ctypes.c_int()
for name in [b"cuMemAlloc", b"cuMemFree", b"cuNoSuchFunction", b"cuLaunchKernel"]:
    cuda.cuGetProcAddress_v2(name, ctypes.byref(address), 12000, ctypes.c_uint64(0), ctypes.byref(status))
assert cuda.cuInit(0) == 0
"""
        result = self.trace(command=[sys.executable, "-c", ask])
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = self.show().stdout.splitlines()
        self.assertEqual(len(lines), 3, lines)
        self.assertIn("cuGetProcAddress_v2: 4 look-ups, 1 found nothing (--lookups lists them)", lines[1])
        self.assertEqual(len(self.show("--lookups").stdout.splitlines()), 6)
        self.assertEqual(len(self.show("--function", "cuGetProcAddress").stdout.splitlines()), 4)
        self.assertEqual(len(self.functions()), 6, "for scripts all are there")

    # ctest labels: unsanitized
    def test_a_folder_with_another_run_is_refused_without_append(self):
        self.traced()
        again = self.trace()
        self.assertEqual(again.returncode, 125)
        self.assertRegex(again.stderr, r"rota trace: .*/trace already holds another run: name another folder, or add to it with --append\n")
        self.assertEqual(len(list((self.scratch / "trace").glob("*.rotatrace"))), 1)
        appended = self.trace("--append")
        self.assertEqual(appended.returncode, 0, appended.stderr)
        self.assertEqual(len(list((self.scratch / "trace").glob("*.rotatrace"))), 2)

    # ctest labels: unsanitized
    def test_a_run_that_recorded_nothing_leaves_nothing(self):
        for command in ["true"], ["no-such-command-anywhere"]:
            result = self.trace(command=command)
            self.assertFalse((self.scratch / "trace").exists(), result.stderr)
        (self.scratch / "trace").mkdir()
        (self.scratch / "trace/mine").write_text("")
        self.trace(command=["true"])
        self.assertEqual([path.name for path in (self.scratch / "trace").iterdir()], ["mine"])

    def test_an_unknown_option_is_no_program(self):
        result = self.call(ROTA, "trace", "--folder", "x", "--", "true")
        self.assertEqual(result.returncode, 125)
        self.assertEqual(result.stderr, "rota trace: --folder is not an option of rota trace: `rota trace --help` lists them; the program comes after --\n")

    # ctest labels: unsanitized
    def test_the_size_cap_holds_for_all_that_a_process_leaves(self):
        result = self.trace("--max-bytes", "128K", command=[PROGRAMS / "saxpy", "--rounds", "1500"])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("has reached 131072 bytes", result.stderr)
        for path in (self.scratch / "trace").iterdir():
            self.assertLessEqual(path.stat().st_size, 128 << 10, path)

    # ctest labels: unsanitized
    def test_a_size_cap_that_cannot_be_kept_is_refused(self):
        for text in "much", "-1", "64K":
            with self.subTest(text=text):
                for options, environment in ((("--max-bytes", text), {}), ((), {"ROTA_TRACE_MAX_BYTES": text})):
                    result = self.trace(*options, command=["touch", self.scratch / "touched"], **environment)
                    self.assertEqual(result.returncode, 125, result.stderr)
                    self.assertIn(f"'{text}' is not a size for a trace: give 128K or more", result.stderr)
                    self.assertFalse((self.scratch / "touched").exists())

    # ctest labels: unsanitized
    def test_the_summary_names_errors_kernels_copies_and_what_was_kept(self):
        summary = self.traced().stderr
        self.assertIn("errors:\n         1  CUDA_ERROR_OUT_OF_MEMORY: cuMemAlloc_v2\n", summary)
        self.assertRegex(summary, r"kernels:.*\n +2 .* spin\(unsigned long\)\n")
        self.assertRegex(summary, r"copied: host to device 1\.00 MiB \(1 copy\), device to host 4\.00 KiB \(1 copy\)\n")
        self.assertRegex(summary, r"not released at the end: .*2 allocations of device memory \(2\.00 MiB\)")
        self.assertRegex(summary, r"not released at the end: .*1 stream\b")

    def exported(self):
        result = self.checked(ROTA, "trace", "export", self.scratch / "trace")
        return json.loads(result.stdout)["traceEvents"]

    # ctest labels: unsanitized
    def test_the_timeline_has_streams_with_kernels_arrows_memory_and_thread_names(self):
        self.traced(ROTA_SIM_TIME_SCALE="1")
        events = self.exported()
        threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        self.assertIn("loader", threads.values())
        [stream] = [tid for tid, name in threads.items() if name.startswith("stream#1")]
        kernels = [event for event in events if event["ph"] == "X" and event["tid"] == stream]
        self.assertEqual([event["name"] for event in kernels], ["spin(unsigned long)"] * 2)
        launches = {event["ts"]: event for event in events if event["name"] == "cuLaunchKernel"}
        for kernel in kernels:
            self.assertGreater(kernel["dur"], 1000, "2 ms")
            self.assertEqual(kernel["args"]["duration"], "as simulated")
            [end] = [event for event in events if event["ph"] == "f" and event["tid"] == stream and event["ts"] == kernel["ts"]]
            [begin] = [event for event in events if event["ph"] == "s" and event["id"] == end["id"]]
            self.assertIn(begin["ts"], launches)
            self.assertEqual(threads[begin["tid"]], "loader")
        memory = [event["args"]["bytes"] for event in events if event["ph"] == "C" and event["name"] == "device memory"]
        self.assertEqual(memory, [1 << 20, 2 << 20, 3 << 20, 2 << 20])

    # ctest labels: unsanitized
    def test_where_durations_are_not_known_the_timeline_says_so(self):
        self.traced()
        for path in (self.scratch / "trace").glob("*.activity"):
            path.unlink()  # as on a GPU, whose driver does not say when a kernel ran
        events = self.exported()
        threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        [stream] = [tid for tid, name in threads.items() if name.startswith("stream#1")]
        self.assertEqual(threads[stream], "stream#1 (launches; it is not known when they ran)")
        kernels = [event for event in events if event["ph"] == "X" and event["tid"] == stream]
        self.assertEqual([event["name"] for event in kernels], ["spin(unsigned long)"] * 2)
        self.assertEqual({event["args"]["duration"] for event in kernels}, {"of the launching call"})


if __name__ == "__main__":
    import unittest
    unittest.main()
