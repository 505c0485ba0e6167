"""A driver that refuses for good to make or to export memory: each call ends in time, with the driver's error and a line, and nobody hangs."""
import json
import sys
import textwrap
import unittest

from harness import Case, PROGRAMS, ROTA
from ipc_case import MIB, Ipc

# What the allocation and the first use of its memory answer, and how long both take.
USES = textwrap.dedent(r"""
    import ctypes, json, time
    cuda, word = ctypes.CDLL("libcuda.so.1"), ctypes.c_ulonglong
    context, address = ctypes.c_void_p(), word()
    assert cuda.cuInit(0) == 0
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    begun = time.monotonic()
    answers = [cuda.cuMemAlloc_v2(ctypes.byref(address), word(40 << 20))]
    if answers[0] == 0:
        answers.append(cuda.cuMemsetD8_v2(address, 7, word(40 << 20)))
    print(json.dumps([answers[-1], time.monotonic() - begun]))
""")


class Denied(Case):
    def setUp(self):
        super().setUp()
        self.start_daemon("--mode", "exclusive", "--quantum", "50ms")

    def uses(self, fault, timeout):
        result = self.checked(ROTA, "run", "--memory", "swap", "--", sys.executable, "-c", USES, timeout=timeout, ROTA_SIM_TIME_SCALE="1",
                              ROTA_SIM_FAULTS=fault)
        return (*json.loads(result.stdout), result.stderr)

    # ctest labels: unsanitized
    def test_memory_that_the_driver_never_makes_for_another_reason_than_a_lack_of_it_is_refused_within_seconds(self):
        for function in "cuMemCreate", "cuMemMap":
            answer, seconds, said = self.uses(f"{function}@1+=CUDA_ERROR_OPERATING_SYSTEM", 30)
            self.assertEqual(answer, 304)
            self.assertLess(seconds, 20)
            self.assertIn("the driver has returned CUDA_ERROR_OPERATING_SYSTEM (304) for 3 s", said)

    # ctest labels: unsanitized thorough
    def test_memory_that_the_driver_never_makes_although_it_has_enough_free_is_refused_after_five_minutes(self):
        for other in False, True:
            if other:
                hog = self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "memhog", "--share", "0.6", "--hold", "--ahead", "20",
                                 ROTA_SIM_TIME_SCALE="1")
                self.assertEqual(hog.stdout.readline(), "ready\n")
            answer, seconds, said = self.uses("cuMemCreate@1+=CUDA_ERROR_OUT_OF_MEMORY", 400)
            self.assertEqual(answer, 2)
            self.assertLess(seconds, 400)
            self.assertIn("the driver has returned CUDA_ERROR_OUT_OF_MEMORY (2) for 300 s, although it has enough free", said)
        self.assertIn('"wrong":0', self.finish(hog).stdout)

    # ctest labels: unsanitized
    def test_programs_whose_driver_exports_no_memory_take_turns_all_the_same(self):
        programs = [self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "memhog", "--share", "0.6", "--seconds", "2",
                               ROTA_SIM_TIME_SCALE="1", ROTA_SIM_FAULTS="cuMemExportToShareableHandle@1+=CUDA_ERROR_OPERATING_SYSTEM")
                    for _ in range(2)]
        for program in programs:
            result = self.finish(program)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn('"wrong":0', result.stdout)


class Exporter(Ipc):
    # ctest labels: unsanitized
    def test_an_exporter_whose_driver_exports_nothing_refuses_each_opener_at_once_and_keeps_nothing_pinned(self):
        exporter = self.program(ROTA_SIM_FAULTS="cuMemExportToShareableHandle@1+=CUDA_ERROR_OPERATING_SYSTEM")
        importer = self.program()
        address, handle = self.exported(exporter, 4 * MIB, 3)
        for _ in range(3):
            (result, _), seconds = self.ask(importer, "seconds_of", "open_handle", handle)
            self.assertEqual(result, 205)
            self.assertLess(seconds, 3)
        def pinned():
            return sum(gpu["fixed_bytes"] for client in self.clients() for gpu in (client["use"] or {"gpus": {}})["gpus"].values())
        self.eventually(lambda: pinned() == 0, "nothing is pinned")
        self.assertTrue(self.ask(exporter, "all_are", address, 4 * MIB, 3))
        self.ends_well(exporter, importer)


if __name__ == "__main__":
    unittest.main()
