"""Test runners under a session with a report, on real accounts: what a pytest, a program with rota_test.h's calls and a bazel-like sandbox leave."""
import json
import shutil
import subprocess
import sys
import unittest

import harness

MIB = 1 << 20
GPU = """
import ctypes, functools

@functools.lru_cache(None)
def cuda():
    library = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert library.cuInit(0) == 0
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert library.cuCtxSetCurrent(context) == 0
    return library

def allocate(megabytes):
    address = ctypes.c_uint64()
    assert cuda().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(megabytes << 20)) == 0
    return address

def free(address):
    assert cuda().cuMemFree_v2(address) == 0
"""


def python_with(module):
    for python in (sys.executable, "/usr/bin/python3"):
        if shutil.which(python) and subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0:
            return python
    raise unittest.SkipTest(f"no Python here has {module} (tools/dev setup installs it)")


class Runners(harness.Case):
    def setUp(self):
        super().setUp()
        self.start_daemon()
        self.report = self.scratch / "report"
        (self.scratch / "gpu.py").write_text(GPU, encoding="utf-8")
        self.environment["PYTHONPATH"] = f"{harness.ROOT / 'tools/python'}:{self.scratch}"

    def run_reported(self, *command, **environment):
        self.report.mkdir(exist_ok=True)
        return self.call(harness.ROTA, "run", "--report", f"{self.report}/", "--", *command, **environment)

    def events(self):
        return [json.loads(line) for path in self.report.rglob("*.jsonl") for line in path.read_text(encoding="ascii").splitlines()]

    # ctest labels: unsanitized
    def test_pytests_plugin_reads_the_account_of_its_process(self):
        python = python_with("pytest")
        (self.scratch / "test_it.py").write_text("""
import gpu
def test_before(): pass
def test_keeps():
    gpu.free(gpu.allocate(20))
    gpu.allocate(8)
def test_more(): gpu.free(gpu.allocate(16))
""", encoding="utf-8")
        done = self.run_reported(python, "-m", "pytest", "-p", "rota.pytest_plugin", "-p", "no:cacheprovider", self.scratch / "test_it.py")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        ends = [event for event in self.events() if event["event"] == "end"]
        self.assertEqual([end["outcome"] for end in ends], ["passed"] * 3)
        self.assertIsNone(ends[0]["end"])
        self.assertEqual((ends[1]["end"]["peak_bytes"], ends[1]["end"]["used_bytes"]), (20 * MIB, 8 * MIB))
        self.assertEqual((ends[2]["begin"]["used_bytes"], ends[2]["end"]["peak_bytes"], ends[2]["end"]["used_bytes"]), (8 * MIB, 24 * MIB, 8 * MIB))

    # ctest labels: unsanitized
    def test_rota_ci_knows_the_tests_of_a_ctest(self):
        if shutil.which("ctest") is None:
            self.skipTest("there is no ctest here")
        build = self.scratch / "build"
        build.mkdir()
        memhog = harness.PROGRAMS / "memhog"
        (self.scratch / "forks.sh").write_text(f"#!/bin/sh\n{memhog} --share 0.1 && {memhog} --share 0.2\n", encoding="ascii")
        (self.scratch / "forks.sh").chmod(0o755)
        (build / "CTestTestfile.cmake").write_text(
            f'add_test("a \\"test\\"" {memhog} --share 0.25)\nadd_test(forks {self.scratch}/forks.sh)\nadd_test(none /bin/true)\n'
            f"add_test(fails {memhog} --share 7)\n", encoding="ascii")
        done = self.call(harness.ROTA, "ci", "--report-dir", self.report, "--", "ctest", "--test-dir", build, "--parallel", "4")
        self.assertEqual(done.returncode, 8, done.stdout + done.stderr)  # ctest's own, for the one that fails
        tests = {test["name"]: test for test in json.loads((self.report / "tests.json").read_text(encoding="utf-8"))["tests"]}
        self.assertEqual({name: (test["outcome"], len(test["processes"]), test["ambiguous"]) for name, test in tests.items()}, {
            'a "test"': ("passed", 1, False), "forks": ("passed", 2, False), "none": ("passed", 0, False), "fails": ("failed", 1, False)})

    # ctest labels: unsanitized
    def test_rota_ci_knows_tests_of_a_ctest_by_arguments_that_are_no_utf8(self):
        if shutil.which("ctest") is None:
            self.skipTest("there is no ctest here")
        build = self.scratch / "build"
        build.mkdir()
        # Different bytes that ctest lists as the same; and a long argument, of which an account holds the beginning.
        arguments = {"a": b"\xe4", "b": b"\xf6", "long": b"\xc3\xa4" * 600 + b"\xff", "plain": b"plain"}
        shares = dict(zip(arguments, (10, 20, 30, 40)))
        (build / "CTestTestfile.cmake").write_bytes(b"".join(
            b'add_test(%s /bin/sh -c "\\"$0\\" --bytes $1; exit $?" "%s" %dM "%s")\n' % (
                name.encode(), str(harness.PROGRAMS / "memhog").encode(), shares[name], argument) for name, argument in arguments.items()))
        done = self.call(harness.ROTA, "ci", "--report-dir", self.report, "--", "ctest", "--test-dir", build, "--parallel", "4")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        report = json.loads((self.report / "report.json").read_text(encoding="utf-8"))
        self.assertEqual({test["name"]: (test["use"]["peak_bytes"] // MIB // 10 * 10, test["ambiguous"]) for test in report["tests"]},
                         {name: (share, False) for name, share in shares.items()})

    # ctest labels: unsanitized
    def test_a_clean_environment_that_names_bazels_target_reaches_the_account(self):
        """As bazel runs a test with the recipe's --test_env."""
        passed_on = ("LD_PRELOAD", "ROTA_REPORT", "ROTA_SOCKET", "ROTA_SESSION", "ROTA_GPU_MEM_LIMIT", "ROTA_REAL_LIBCUDA", "LD_LIBRARY_PATH",
                     "ROTA_SIM_STATE", "ROTA_SIM_MEMORY", "ROTA_SIM_TIME_SCALE", "ROTA_SIM_KERNELS", "ROTA_LOCK_DIRECTORY")
        script = " ".join(f'${{{name}:+"{name}=${name}"}}' for name in passed_on)
        done = self.run_reported("/bin/sh", "-c", f"exec env -i PATH=/usr/bin:/bin TEST_TARGET=//gpu:memhog TEST_SHARD_INDEX=1 TEST_TOTAL_SHARDS=2 "
                                 f"TEST_TMPDIR={self.scratch} XML_OUTPUT_FILE={self.scratch}/test.xml {script} "
                                 f"{harness.PROGRAMS}/memhog --share 0.25")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        account, = self.report.rglob("*.account")
        self.assertIn(b"bazel //gpu:memhog shard 1 of 2\0", account.read_bytes())
        self.assertFalse((self.scratch / "test.xml").exists())


if __name__ == "__main__":
    unittest.main()
