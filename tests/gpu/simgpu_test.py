"""The driver part of programs of several CUDA releases (build-releases) on the simulated GPU: the same natively and under
rota, and traced as each release has it. Their libcudart needs a real driver: tests/gpu/run."""
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "integration")]

import release_checks
from bench import Bench, Skip
from harness import BUILD, Case


class Programs(Case):
    def of_release(self, release):
        bench = Bench(BUILD, self.scratch, releases=BUILD / "tests/releases" / release)
        bench.environment = self.environment
        try:
            release_checks.driver_part(bench, release)
        except Skip as missing:
            self.skipTest(f"no {missing}")

    def test_a_program_of_cuda_11_8(self):
        self.of_release("11.8")

    def test_a_program_of_cuda_12_4(self):
        self.of_release("12.4")

    def test_a_program_of_cuda_13_0(self):
        self.of_release("13.0")


if __name__ == "__main__":
    unittest.main()
