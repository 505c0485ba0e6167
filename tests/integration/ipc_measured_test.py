"""What rotad measures of programs that have opened each other's memory: the driver counts that for its maker only."""
from harness import kill
from ipc_case import MIB, Ipc


class Measured(Ipc):
    nvml = True

    def row(self, program):
        return next((gpu for client in self.status()["clients"] if client["pid"] == program.pid for gpu in client["memory"].values()), {})

    def after_two_readings(self):
        """Each program that comes is measured by a reading of all."""
        for _ in range(2):
            newcomer = self.program()
            self.eventually(lambda: self.row(newcomer).get("source") == "measured", "the program is measured")
            self.ends_well(newcomer)

    # ctest labels: unsanitized
    def test_contexts_are_measured_without_what_is_open_also_once_its_maker_was_killed(self):
        exporter, importer = self.program(), self.program()
        self.eventually(lambda: self.row(importer).get("source") == "measured", "the importer is measured")
        before = self.row(importer)["context_bytes"]
        _, handle = self.exported(exporter, 60 * MIB, 4)
        theirs = self.opened(importer, handle)
        self.after_two_readings()
        self.assertEqual(self.row(importer)["context_bytes"], before)
        kill(exporter)
        self.eventually(lambda: self.row(importer)["bytes"] >= 60 * MIB, "what it has open is charged to it")
        self.after_two_readings()
        self.assertEqual(self.row(importer)["context_bytes"], before)
        self.assertTrue(self.ask(importer, "all_are", theirs, 60 * MIB, 4))
        self.ends_well(importer)
