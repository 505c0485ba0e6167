"""A program that nvcc compiled with the shared cudart: unchanged, under rota, traced at both levels."""
import json
import unittest

from harness import Case, PROGRAMS, ROTA


class NvccCase(Case):
    def setUp(self):
        super().setUp()
        self.program = PROGRAMS / "vectoradd_shared"
        if not self.program.exists():
            self.skipTest("no nvcc on this machine")


class Compiled(NvccCase):
    # ctest labels: unsanitized
    def test_an_nvcc_program_gives_the_same_under_rota_run(self):
        native = self.checked(self.program)
        shared = self.checked(ROTA, "run", "--", self.program)
        self.assertEqual(shared.stdout, native.stdout)

    # ctest labels: unsanitized
    def test_an_nvcc_program_is_traced_at_both_levels(self):
        native = self.checked(self.program)
        folder = self.scratch / "trace"
        traced = self.checked(ROTA, "trace", "--dir", folder, "--", self.program)
        self.assertIn(native.stdout, traced.stdout)
        listing = self.checked(ROTA, "trace", "show", folder).stdout
        for call in ("cudaMalloc(", "cudaLaunchKernel(", "cuLaunchKernel(", "cuMemAlloc_v2("):
            self.assertIn(call, listing)
        timeline = self.scratch / "trace.json"
        self.checked(ROTA, "trace", "export", "--format", "chrome", "-o", timeline, folder)
        events = json.loads(timeline.read_text())["traceEvents"]
        self.assertIn("cudaMalloc", {event["name"] for event in events})


class RuntimePrograms(Case):
    """tests/programs/runtime: compiled by nvcc if available, and by the C++ compiler with nvcc's generated code written out."""

    names = ("copies", "devices", "errors", "functions", "graphs", "memory", "per_thread", "streams", "symbols")

    def run_all(self, folder, suffix, *command):
        programs = [PROGRAMS / "runtime" / folder / (name + suffix) for name in self.names]
        programs = [program for program in programs if program.exists()]
        if not programs:
            self.skipTest("no nvcc of CUDA 13 on this machine" if folder == "nvcc" else "no headers of CUDA 13")
        self.assertEqual(len(programs), len(self.names))
        for program in programs:
            with self.subTest(program.name):
                # One after the other on one GPU: leftovers of one would show in the next.
                self.assertEqual(self.checked(*command, program).stdout, "ok\n")

    # ctest labels: unsanitized
    def test_runtime_programs_of_nvcc_run_under_rota(self):
        self.run_all("nvcc", "_shared", ROTA, "run", "--")

    # ctest labels: unsanitized
    def test_runtime_programs_run_under_rota(self):
        self.run_all("host", "", ROTA, "run", "--")

    # ctest labels: unsanitized
    def test_runtime_programs_run_under_rota_with_a_neighbour(self):
        self.start_daemon()
        hog = self.start(ROTA, "run", "--", PROGRAMS / "memhog", "--share", "0.6", "--hold")
        self.assertIn("ready", hog.stdout.readline())
        self.run_all("host", "", ROTA, "run", "--")

    # ctest labels: unsanitized
    def test_runtime_programs_run_on_every_card(self):
        for gpu in ("h200x2", "h100", "a100", "l4", "t4", "rtx4090", "mig-1g"):
            self.run_all("host", "", ROTA, "sim", "--gpu", gpu, "--memory", "512M", "--")

    # ctest labels: unsanitized
    def test_a_runtime_program_is_traced_at_both_levels(self):
        program = PROGRAMS / "runtime/host/graphs"
        if not program.exists():
            self.skipTest("no headers of CUDA 13")
        folder = self.scratch / "trace"
        self.checked(ROTA, "trace", "--dir", folder, "--", program)
        listing = self.checked(ROTA, "trace", "show", folder).stdout
        for call in ("cudaGraphAddMemsetNode(", "cuGraphAddMemsetNode(", "cudaGraphExecUpdate(", "cuGraphExecUpdate_v2("):
            self.assertIn(call, listing)


class OnAnOlderDriver(NvccCase):
    driver = "12.4"

    # ctest labels: unsanitized
    def test_an_nvcc_program_of_a_newer_major_is_told_the_same_as_without_rota(self):
        native = self.call(self.program)
        self.assertIn("driver version is insufficient", native.stderr)
        shared = self.call(ROTA, "run", "--", self.program)
        self.assertEqual((shared.returncode, shared.stdout, shared.stderr), (native.returncode, native.stdout, native.stderr))


if __name__ == "__main__":
    unittest.main()
