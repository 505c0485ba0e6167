"""What the driver refuses while memory is exported, opened and closed: the call fails or is made up for, nothing stays behind, and it can be
repeated. And opening for long leaves nothing behind either."""
import pathlib
import time
import unittest

from harness import kill
from ipc_case import MIB, Ipc


class Faults(Ipc):
    SIZE = 130 * MIB  # several extents

    def nothing_stays(self, exporter, address, other):
        """Once it is freed, the driver has the memory back."""
        self.assertEqual(self.ask(exporter, "free", address), 0)
        # Of 256 MiB, next to three contexts of 16.
        self.eventually(lambda: self.ask(other, "may_allocate", 190 * MIB), "the memory is there for others")

    def opens_with(self, function, number, of_exporter=False):
        """That call of the function is refused: the open fails, and the next one does not."""
        fault = {"ROTA_SIM_FAULTS": f"{function}@{number}=CUDA_ERROR_UNKNOWN"}
        exporter, other = self.program(**(fault if of_exporter else {})), self.program()
        importer = self.program("native", **({} if of_exporter else fault))
        address, handle = self.exported(exporter, self.SIZE, 7)
        self.assertEqual(self.ask(importer, "open_handle", handle)[0], 205, function)
        theirs = self.opened(importer, handle)
        self.assertTrue(self.ask(importer, "all_are", theirs, self.SIZE, 7), function)
        self.assertEqual(self.ask(importer, "close", theirs), 0, function)
        self.assertFalse(self.ask(importer, "is_readable", theirs), function)
        self.nothing_stays(exporter, address, other)
        self.all_end(exporter, importer, other)

    def all_end(self, *programs):
        for each in programs:
            kill(each)
        self.eventually(lambda: self.status()["clients"] == [], lambda: f"they are gone: {self.clients()}")

    # ctest labels: unsanitized
    def test_a_descriptor_that_the_exporters_driver_refuses_fails_the_open_and_the_next_one_works(self):
        for number in 1, 2:
            self.opens_with("cuMemExportToShareableHandle", number, of_exporter=True)

    # ctest labels: unsanitized
    def test_an_import_that_the_driver_refuses_fails_the_open_and_the_next_one_works(self):
        for number in 1, 2:
            self.opens_with("cuMemImportFromShareableHandle", number)
            self.opens_with("cuMemGetAllocationPropertiesFromHandle", number)

    # ctest labels: unsanitized
    def test_a_mapping_that_the_driver_refuses_fails_the_open_and_the_next_one_works(self):
        self.opens_with("cuMemAddressReserve", 1)
        self.opens_with("cuMemMap", 1)
        self.opens_with("cuMemMap", 2)
        self.opens_with("cuMemSetAccess", 1)

    def closes_with(self, fault):
        exporter, importer, other = self.program(), self.program("native", ROTA_SIM_FAULTS=fault), self.program()
        address, handle = self.exported(exporter, self.SIZE, 7)
        theirs = self.opened(importer, handle)
        self.assertEqual(self.ask(importer, "close", theirs), 0)
        self.assertFalse(self.ask(importer, "is_readable", theirs))
        self.nothing_stays(exporter, address, other)
        self.all_end(exporter, importer, other)

    # ctest labels: unsanitized
    def test_what_the_driver_refuses_once_to_take_back_it_gets_all_the_same(self):
        for number in 1, 2:
            for function in "cuMemUnmap", "cuMemRelease":
                self.closes_with(f"{function}@{number}=CUDA_ERROR_UNKNOWN")
        self.closes_with("cuMemAddressFree@1=CUDA_ERROR_UNKNOWN")


    # ctest labels: unsanitized
    def test_what_it_refuses_again_it_gets_later(self):
        fault = ",".join(f"cuMemUnmap@{number}=CUDA_ERROR_UNKNOWN" for number in (1, 2, 3))
        exporter, importer, other = self.program(), self.program("native", ROTA_SIM_FAULTS=fault), self.program()
        address, handle = self.exported(exporter, self.SIZE, 7)
        theirs = self.opened(importer, handle)
        self.assertEqual(self.ask(importer, "close", theirs), 0)
        self.eventually(lambda: not self.ask(importer, "is_readable", theirs), "it is unmapped")
        self.nothing_stays(exporter, address, other)
        self.all_end(exporter, importer, other)


class Endurance(Ipc):
    # ctest labels: unsanitized thorough
    def test_a_hundred_opens_a_second_for_a_minute_leave_nothing_behind(self):
        exporter, importer = self.program(), self.program()
        memory = [self.exported(exporter, size, 1 + index) for index, size in enumerate((4096, 4 * MIB))]
        self.ask(importer, "allocate", 4096)
        pids = [client["pid"] for client in self.clients()]
        def had():
            return {pid: (len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir())),
                          int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 // MIB)
                    for pid in [*pids, self.daemon.pid]}
        def charged():
            return sorted((client["bytes"], client["use"]["gpus"].popitem()[1]["fixed_bytes"]) for client in self.clients())
        begun, opens, before = time.monotonic(), 0, None
        while time.monotonic() < begun + 60:
            for _, handle in memory:  # each by a new connection, since nothing is open meanwhile
                self.assertEqual(self.ask(importer, "close", self.opened(importer, handle)), 0)
                opens += 1
            if opens == 200:
                before, of_each = had(), charged()
        self.assertGreaterEqual(opens, 6000)
        self.eventually(lambda: charged() == of_each, lambda: f"nothing is pinned: {charged()}, {of_each}")
        for pid, (descriptors, megabytes) in had().items():
            self.assertLessEqual(descriptors, before[pid][0] + 3)
            self.assertLessEqual(megabytes, before[pid][1] + 4)
        self.ends_well(exporter, importer)


if __name__ == "__main__":
    unittest.main()
