"""`--memory auto`: swap where the GPU can, Unified Memory for a program that may be larger than the GPU."""
from harness import PROGRAMS, ROTA, Case
from sim_case import program

MEMHOG = PROGRAMS / "memhog"
HOLDS = program("""
assert context() == 0
result, block = allocate(4 << 20)
assert result == 0
print("ready", flush=True)
sys.stdin.readline()
""")


class AutoMemory(Case):
    def served(self, *options):
        """How a program's memory is served, as `rota status` says it: its entry in the JSON, and the text."""
        child = self.start(ROTA, "run", "--memory", "auto", *options, "--", *HOLDS)
        self.assertEqual(child.stdout.readline().strip(), "ready")
        [client] = self.eventually(lambda: [each for each in self.status()["clients"] if each["memory"]], "its memory is known")
        text = self.checked(ROTA, "status").stdout
        self.assertEqual(self.finish(child).returncode, 0)
        [memory] = client["memory"].values()
        return memory, text

    # ctest labels: unsanitized
    def test_memory_is_swapped_where_the_gpu_can(self):
        memory, text = self.served()
        self.assertEqual((memory["mode"], memory["reason"]), ("swap", ""))
        self.assertIn("memory: swap", text)

    # ctest labels: unsanitized
    def test_a_program_that_may_be_larger_than_the_gpu_has_unified_memory_and_status_says_why(self):
        memory, text = self.served("--oversubscribe")
        self.assertEqual((memory["mode"], memory["reason"]), ("managed", "--oversubscribe"))
        self.assertIn("memory: Unified Memory (--oversubscribe)", text)

    def test_a_program_larger_than_the_gpu_is_refused_with_the_remedy_and_runs_with_it(self):
        result = self.call(ROTA, "run", "--memory", "auto", "--", MEMHOG, "--bytes", "400M", "--rounds", "1")
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(len([line for line in result.stderr.splitlines() if "--oversubscribe" in line]), 1, result.stderr)
        self.checked(ROTA, "run", "--memory", "auto", "--oversubscribe", "--", MEMHOG, "--bytes", "400M", "--rounds", "2")

    def test_two_programs_that_do_not_fit_together_take_turns(self):
        both = [self.start(ROTA, "run", "--memory", "auto", "--", MEMHOG, "--bytes", "160M", "--rounds", "3") for _ in range(2)]
        for child in both:
            result = self.finish(child)
            self.assertEqual(result.returncode, 0, result.stderr)

    # ctest labels: unsanitized
    def test_what_is_called_free_beside_another_program_can_be_allocated_and_no_more(self):
        self.environment["ROTA_SIM_MEMORY"] = "4G"  # a margin is kept free on GPUs of 2 GiB and more
        self.start_daemon()
        other = self.start(ROTA, "run", "--memory", "auto", "--", *HOLDS)
        self.assertEqual(other.stdout.readline().strip(), "ready")
        takes = self.checked(ROTA, "run", "--memory", "auto", "--", *program("""
assert context() == 0
allocate(1)
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total)) == 0
print(allocate(free.value)[0], allocate(8 << 20)[0], total.value - free.value >= 4 << 20)
"""))
        self.assertEqual(takes.stdout.split(), ["0", "2", "True"])
        self.assertEqual(self.finish(other).returncode, 0)
