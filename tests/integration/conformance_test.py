"""The rules of the driver API hold under `rota run`, and on a virtual clock, as they hold without."""
import re

from harness import PROGRAMS, ROTA, Case


class Conformance(Case):
    # ctest labels: unsanitized
    def test_every_rule_of_the_driver_holds_under_rota_run(self):
        """Memory is left as it is: what Unified Memory changes is said in the README."""
        conformance = [ROTA, "run", "--", PROGRAMS / "conformance"]
        environment = dict(ROTA_MEMORY="native", ROTA_SIM_GPUS="2", ROTA_SIM_TIME_SCALE="1", ROTA_SIM_MEMORY="1G")
        record = self.scratch / "record.tsv"
        self.call(*conformance, "--jobs", "2", "--record", record, timeout=140, **environment)
        results = [line.split("\t") for line in record.read_text().splitlines()]
        self.assertGreater(len(results), 700)
        self.assertEqual([row for row in results if row[2] == "skip"], [])
        # On a busy machine a rule that waits for a while may give up; one that fails twice is broken.
        for area, name, result, *_ in results:
            if result != "ok":
                again = self.call(*conformance, "--rule", f"{area}.{name}", **environment)
                self.assertEqual(again.returncode, 0, again.stdout)

    # ctest labels: unsanitized thorough
    def test_every_rule_of_one_process_holds_on_a_virtual_clock(self):
        conformance = PROGRAMS / "conformance"
        environment = dict(ROTA_SIM_GPUS="2", ROTA_SIM_CLOCK="virtual", ROTA_SIM_MEMORY="1G")
        printed = self.call(conformance, "--jobs", "2", timeout=140, **environment).stdout
        reports = re.findall(r"^(ok|FAIL|skip) +([\w.]+)(.*(?:\n +.*)*)", printed, re.MULTILINE)
        self.assertGreater(sum(result == "ok" for result, *_ in reports), 700, printed)
        for result, rule, report in reports:
            # A second process is refused; a rule that may give up on a busy machine is tried again.
            if result == "ok" or "which is for one process" in report:
                continue
            again = self.call(conformance, "--rule", rule, **environment)
            self.assertEqual(again.returncode, 0, again.stdout)
