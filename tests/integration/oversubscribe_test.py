"""One program with more memory than the GPU: refused in one line that says how to allow it, then allowed."""
from harness import PROGRAMS, ROTA, Case

MEMHOG = PROGRAMS / "memhog"


class Oversubscribe(Case):
    def test_a_program_larger_than_the_gpu_is_refused_with_the_remedy(self):
        result = self.call(ROTA, "run", "--", MEMHOG, "--bytes", "400M", "--rounds", "1")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", result.stderr)
        lines = [line for line in result.stderr.splitlines() if "--oversubscribe" in line]
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertRegex(lines[0], r"^rota: \d+ MiB on GPU 0 refused: this process has \d+ MiB of the 240 MiB that the GPU has for it, .*; `rota run --oversubscribe` allows more$")

    def test_one_with_unified_memory_is_refused_with_the_remedy(self):
        result = self.call(ROTA, "run", "--memory", "managed", "--", MEMHOG, "--bytes", "400M", "--rounds", "1")
        self.assertNotEqual(result.returncode, 0)
        lines = [line for line in result.stderr.splitlines() if "--oversubscribe" in line]
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertRegex(lines[0], r"^rota: \d+ MiB on GPU 0 refused: this process has \d+ (MiB|KiB|bytes) of the GPU's 256 MiB, its contexts 16 MiB\.")

    def test_one_whose_memory_swaps_by_its_own_choice_is_told_what_to_choose_instead(self):
        result = self.call(ROTA, "run", "--memory", "swap", "--", MEMHOG, "--bytes", "400M", "--rounds", "1")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("`rota run --memory managed --oversubscribe` allows more", result.stderr)

    def test_a_program_larger_than_the_gpu_runs_where_that_is_allowed(self):
        self.checked(ROTA, "run", "--oversubscribe", "--", MEMHOG, "--bytes", "400M", "--rounds", "2")

    def test_a_limit_of_its_own_still_holds(self):
        result = self.call(ROTA, "run", "--oversubscribe", "--", MEMHOG, "--bytes", "400M", "--rounds", "1",
                           ROTA_GPU_MEM_LIMIT="300M")
        self.assertNotEqual(result.returncode, 0)
        said = [line for line in result.stderr.splitlines() if line.startswith("rota: ")]
        self.assertEqual(len(said), 1, result.stderr)
        self.assertRegex(said[0], r"this process has \d+ MiB of the 300 MiB that ROTA_GPU_MEM_LIMIT or `rota run --gpu-mem` allows: raise it")
