"""A driver that keeps refusing to restore memory: whatever its error is, the program ends, and is told why."""
import unittest

from harness import PROGRAMS, ROTA, Case

# Errors that rota itself deals with elsewhere, and one of another kind.
ERRORS = {709: "CUDA_ERROR_CONTEXT_IS_DESTROYED", 201: "CUDA_ERROR_INVALID_CONTEXT", 600: "CUDA_ERROR_NOT_READY", 1: "CUDA_ERROR_INVALID_VALUE"}


class UnlikeErrors(Case):
    # ctest labels: unsanitized
    def test_memory_that_the_driver_never_lets_back_is_lost_whatever_its_error_is(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "20ms")
        # Enough that the two do not fit together.
        other = self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "renewer", "--bytes", "150M", "--piece", "20M", "--hold")
        self.assertEqual(other.stdout.readline(), "ready\n")
        for error, name in ERRORS.items():
            with self.subTest(error=name):
                program = self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "renewer", "--bytes", "140M", "--piece", "6M", "--own",
                                     "--seconds", "60", ROTA_SIM_FAULTS=f"cuMemSetAccess@60+={error}")
                result = self.finish(program)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn("cannot be restored to the GPU", result.stderr)
                self.assertIn(name, result.stderr)
        result = self.finish(other)
        self.assertEqual((result.returncode, '"wrong":0' in result.stdout), (0, True), result.stderr)


if __name__ == "__main__":
    unittest.main()
