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
