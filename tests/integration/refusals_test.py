"""An allocation that rotad refuses is one refusal in its log and metrics, with what the program asked for, however many ways were tried."""
import re
import signal
import socket
import sys
import unittest
import urllib.request

from harness import Case, ROTA

# Allocates each of so many MiB and says the answers; before that, with "freed", 60 MiB that it has freed in a stream. Keeps what it has until its
# standard input ends.
PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, address, answers = ctypes.c_void_p(), ctypes.c_uint64(), []
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
for what in sys.argv[1:]:
    if what == "freed":
        assert cuda.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(60 << 20), None) == 0
        assert cuda.cuMemFreeAsync(address, None) == 0 and cuda.cuStreamSynchronize(None) == 0
    else:
        answers.append(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(what) << 20)))
print(*answers, flush=True)
sys.stdin.read()
"""


class Refusals(Case):
    def rotad(self, limits, *options):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = taken.getsockname()[1]
        config = self.scratch / "rotad.toml"
        config.write_text(f'[metrics]\nlisten = "127.0.0.1:{self.port}"\n[limits]\n{limits}', encoding="utf-8")
        return self.start_daemon("--config", config, *options)

    def program(self, *steps, options=(), memory="swap"):
        self.environment["ROTA_MEMORY"] = memory
        return self.start(ROTA, "run", *options, "--", sys.executable, "-c", PROGRAM, *steps)

    def allocates(self, *steps, **how):
        child = self.program(*steps, **how)
        return child, [int(answer) for answer in child.stdout.readline().split()]

    def refusals(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=20) as answer:
            return {reason: float(number) for reason, number in re.findall(r'^rota_refusals_total\{.*reason="(\w+)".*\} (\S+)$', answer.read().decode(), re.M)}

    def check_counted(self, reason, number):
        self.eventually(lambda: sum(self.refusals().values()) >= number, "refusals are counted")
        self.assertEqual(self.refusals(), {reason: number})

    def check(self, daemon, reason, *sizes):
        self.check_counted(reason, len(sizes))
        daemon.send_signal(signal.SIGTERM)
        lines = [line for line in self.finish(daemon).stderr.splitlines() if "was refused" in line]
        self.assertEqual(len(lines), len(sizes), lines)
        for line, size in zip(lines, sizes):
            self.assertRegex(line, rf"\b{size} MiB more")

    # Another one is refused last, so whatever came before it has been counted by then.
    def check_none(self, daemon):
        self.assertEqual(self.allocates(1000)[1], [2])
        self.eventually(lambda: sum(self.refusals().values()) >= 1, "refusals are counted")
        daemon.send_signal(signal.SIGTERM)
        lines = [line for line in self.finish(daemon).stderr.splitlines() if "was refused" in line]
        self.assertEqual(len(lines), 1, lines)
        self.assertRegex(lines[0], r"\b1000 MiB more")

    def check_host(self, limits, reason, options=()):
        daemon = self.rotad(limits)
        self.assertEqual(self.allocates(150, options=options)[1], [0])
        child, answers = self.allocates(150, 150, options=options)
        self.assertEqual(answers, [2, 2])
        self.check(daemon, reason, 150, 150)
        self.assertIn("too little for 150 MiB more", self.finish(child).stderr)

    # ctest labels: unsanitized
    def test_for_the_sake_of_the_host(self):
        self.check_host('host_memory = "40M"\n', "host_memory")

    # ctest labels: unsanitized
    def test_by_a_sessions_limit_of_host_memory(self):
        self.check_host("", "session_host_limit", ("--host-mem", "60M"))

    # ctest labels: unsanitized
    def test_by_a_sessions_limit(self):
        daemon = self.rotad('session = { gpu = "100M" }\n')
        self.assertEqual(self.allocates(150, 50, 40)[1], [2, 0, 0])
        self.check(daemon, "session_gpu_limit", 150)

    # ctest labels: unsanitized
    def test_by_a_gpu_that_is_smaller(self):
        daemon = self.rotad("")
        self.assertEqual(self.allocates(300, 10, 10)[1], [2, 0, 0])
        self.check(daemon, "gpu_full", 300)

    # ctest labels: unsanitized
    def test_a_small_one_that_could_not_have_a_span_for_it_and_others(self):
        daemon = self.rotad('session = { gpu = "20M" }\n')
        answers = self.allocates(*[1] * 40)[1]
        self.assertEqual(sorted(set(answers)), [0, 2])
        self.check_counted("session_gpu_limit", answers.count(2))
        daemon.send_signal(signal.SIGTERM)
        self.finish(daemon)

    # A program with swap memory has most of the GPU, so rotad itself refuses what is native, and the program waits.
    def waits(self, patience):
        daemon = self.rotad("", "--memory-wait", patience)
        holder, answers = self.allocates(150)
        self.assertEqual(answers, [0])
        return daemon, holder, self.program(130, memory="native")

    # ctest labels: unsanitized
    def test_one_that_waits_in_vain(self):
        daemon, _, waiter = self.waits("1s")
        self.assertEqual(waiter.stdout.readline(), "2\n")
        self.check(daemon, "gpu_full", 130)

    # ctest labels: unsanitized
    def test_one_that_is_granted_after_a_wait_is_none(self):
        daemon, holder, waiter = self.waits("60s")
        self.eventually(lambda: "an allocation of 130 MiB has waited" in self.checked(ROTA, "status").stdout, "it waits")
        self.finish(holder)
        self.assertEqual(waiter.stdout.readline(), "0\n")
        self.check_none(daemon)

    # ctest labels: unsanitized
    def test_one_that_takes_what_the_program_has_freed_is_none(self):
        for memory in "swap", "native":
            with self.subTest(memory=memory):
                daemon = self.rotad('session = { gpu = "100M" }\n')
                child, answers = self.allocates("freed", 70, memory=memory)
                self.assertEqual(answers, [0])
                self.finish(child)
                self.check_none(daemon)


if __name__ == "__main__":
    unittest.main()
