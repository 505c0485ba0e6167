"""Traces of whole programs: what two runs of one program share, and what a launch records."""
import json
import re
import unittest

from harness import Case, PROGRAMS, ROTA


class TraceTest(Case):
    def trace(self, name, *command):
        folder = self.scratch / name
        self.checked(ROTA, "trace", "--dir", folder, "--", PROGRAMS / command[0], *command[1:])
        return folder

    def show(self, folder, *options):
        return self.checked(ROTA, "trace", "show", *options, folder).stdout

    # ctest labels: drivers
    def test_two_runs_of_one_program_have_the_same_listing(self):
        for command in (["saxpy", "--rounds", "3"], ["capture", "--launches", "2"]):
            with self.subTest(command=command):
                first = self.trace(command[0] + "-1", *command)
                second = self.trace(command[0] + "-2", *command)
                listing = self.show(first, "--no-times")
                self.assertEqual(listing, self.show(second, "--no-times"))
                self.assertIn(f"{command[0]}[1/1] cuInit(", listing)
                # The raw ones differ (address space layout randomization), so the equality above is significant.
                self.assertNotEqual(self.show(first, "--addresses", "raw"), self.show(second, "--addresses", "raw"))

    # ctest labels: drivers
    def test_a_launch_says_kernel_and_geometry(self):
        folder = self.trace("trace", "saxpy", "--count", "2560")
        kernel = "saxpy(int, float, float const*, float*)"
        listing = self.show(folder)
        self.assertIn(f'cuLaunchKernel(kernel="{kernel}" grid=(10,1,1) block=(256,1,1) shared=0 null-stream, f=function#1', listing)
        self.assertIn('kernel="_Z5saxpyifPKfPf" grid=', self.show(folder, "--mangled"))
        self.assertRegex(listing, r"cuMemcpyHtoD_v2\(dstDevice=dptr#1, srcHost=&, ByteCount=10240\)")
        launches = [call["launch"] for call in json.loads(self.show(folder, "--json")) if "launch" in call]
        self.assertEqual(launches, [{"kernel": kernel, "mangled": "_Z5saxpyifPKfPf", "grid": [10, 1, 1], "block": [256, 1, 1],
                                     "shared": 0, "stream": None}])

    # ctest labels: unsanitized
    def test_threads_that_end_in_a_call_end_alone(self):
        for command in (["run"], ["trace", "--dir", self.scratch / "trace"]):
            with self.subTest(command=command):
                self.assertEqual(self.checked(ROTA, *command, "--", PROGRAMS / "cancelled").stdout, "2 threads ended in a call\n")

    def test_memory_and_streams_are_called_the_same_from_creation_to_destruction(self):
        listing = self.show(self.trace("trace", "capture"), "--no-times")
        for name in ("dptr#1", "stream#1", "graph#1", "graphexec#1", "hostptr#1", "function#2"):
            self.assertGreater(len(re.findall(rf"\b{name}\b", listing)), 1, name)
        self.assertNotIn("stream#2", listing)


if __name__ == "__main__":
    unittest.main()
