"""The rules of the driver API hold under rota, and on a virtual clock, as they hold without."""
import re
import sys
import tomllib

from harness import PROGRAMS, ROOT, ROTA, Case

sys.path.append(str(ROOT / "tests/simgpu/conformance"))
from exceptions import listed

CONFORMANCE = PROGRAMS / "conformance"
MACHINE = dict(ROTA_SIM_GPUS="2", ROTA_SIM_TIME_SCALE="1", ROTA_SIM_MEMORY="1G")
SECOND_GPU = dict(ROTA_CONFORMANCE_OTHER_GPU="1")
SWAP_EXCEPTIONS = ROOT / "tests/simgpu/conformance/swap_exceptions.toml"
MANAGED_EXCEPTIONS = ROOT / "tests/simgpu/conformance/managed_exceptions.toml"


class Conformance(Case):
    def tried(self, *command, expected=(), at_least=800, **environment):
        """All rules that were tried, and those that failed, with the reason. On a busy machine a rule that waits for a while may
        give up: one that is not expected to fail is tried again by itself."""
        environment = dict(MACHINE, **environment)
        record = self.scratch / "record.tsv"
        self.call(*command, "--jobs", "2", "--record", record, timeout=140, **environment)
        results = [line.split("\t") for line in record.read_text().splitlines()]
        self.assertGreater(len(results), at_least)
        self.assertEqual([row for row in results if row[2] == "skip"], [])
        failed = {f"{area}.{name}": why for area, name, result, why in results if result != "ok"}
        for rule in [rule for rule in failed if rule not in expected]:
            if self.call(*command, "--rule", rule, **environment).returncode == 0:
                del failed[rule]
        return [f"{area}.{name}" for area, name, *_ in results], failed

    def failing(self, *command, **options):
        return self.tried(*command, **options)[1]

    # ctest labels: unsanitized
    def test_every_fourth_rule_of_the_driver_holds_under_rota_run(self):
        """Memory is left as it is."""
        self.assertEqual(self.failing(ROTA, "run", "--", CONFORMANCE, "--every", "4", at_least=200, ROTA_MEMORY="native"), {})

    # ctest labels: unsanitized thorough
    def test_every_rule_of_the_driver_holds_under_rota_run(self):
        """Memory is left as it is."""
        self.assertEqual(self.failing(ROTA, "run", "--", CONFORMANCE, ROTA_MEMORY="native"), {})

    def holds_but_for(self, exceptions, every=1, **environment):
        expected = listed(exceptions, "simgpu")
        tried, failed = self.tried(ROTA, "run", "--", CONFORMANCE, "--every", str(every), expected=expected,
                                   at_least=800 // every, **environment)
        self.assertEqual({rule: why for rule, why in failed.items() if rule not in expected}, {})
        holding = [rule for rule in expected if rule not in failed and (every == 1 or rule in tried)]
        self.assertEqual(holding, [], f"they hold: take them out of {exceptions.name}")

    # ctest labels: unsanitized
    def test_every_third_rule_holds_with_managed_memory_but_for_those_that_are_listed(self):
        # The rules allocate little memory, which would otherwise stay native.
        self.holds_but_for(MANAGED_EXCEPTIONS, every=3, ROTA_MEMORY="managed", ROTA_MEMORY_SMALL="0")

    # ctest labels: unsanitized thorough
    def test_every_rule_holds_with_managed_memory_but_for_those_that_are_listed(self):
        self.holds_but_for(MANAGED_EXCEPTIONS, ROTA_MEMORY="managed", ROTA_MEMORY_SMALL="0")

    # ctest labels: unsanitized
    def test_every_third_rule_holds_with_memory_that_is_swapped_but_for_those_that_are_listed(self):
        self.holds_but_for(SWAP_EXCEPTIONS, every=3, ROTA_MEMORY="swap")

    # ctest labels: unsanitized thorough
    def test_every_rule_holds_with_memory_that_is_swapped_but_for_those_that_are_listed(self):
        self.holds_but_for(SWAP_EXCEPTIONS, ROTA_MEMORY="swap")

    # ctest labels: unsanitized
    def test_every_fifth_rule_holds_in_a_process_with_memory_on_a_second_gpu(self):
        """Each call is checked to reach no GPU that it was not let through for (ROTA_CHECK_REACHED)."""
        self.assertEqual(self.failing(ROTA, "run", "--", CONFORMANCE, "--every", "5", at_least=160, ROTA_MEMORY="native", **SECOND_GPU), {})

    # ctest labels: unsanitized thorough
    def test_every_rule_holds_in_a_process_with_memory_on_a_second_gpu(self):
        self.assertEqual(self.failing(ROTA, "run", "--", CONFORMANCE, ROTA_MEMORY="native", **SECOND_GPU), {})
        self.holds_but_for(SWAP_EXCEPTIONS, ROTA_MEMORY="swap", **SECOND_GPU)
        self.holds_but_for(MANAGED_EXCEPTIONS, ROTA_MEMORY="managed", ROTA_MEMORY_SMALL="0", **SECOND_GPU)

    # ctest labels: unsanitized
    def test_what_processes_hand_each_other_works_in_measured_turns(self):
        """A process whose stream waits for another's event runs concurrently with it, although both would take turns."""
        self.start_daemon("--quantum", "automatic", "--grace", "1000s")  # nothing is taken back
        self.assertEqual(self.failing(ROTA, "run", "--", CONFORMANCE, "--area", "ipc", at_least=30, ROTA_MEMORY="native"), {})

    def test_streams_wait_for_and_write_values_in_small_memory(self):
        rules = tomllib.loads(MANAGED_EXCEPTIONS.read_text())["stream_memory_operations"]["rules"]
        chosen = [option for rule in rules for option in ("--rule", rule)]
        self.assertEqual(self.failing(ROTA, "run", "--", CONFORMANCE, *chosen, at_least=len(rules) - 1,
                                      ROTA_MEMORY="managed"), {})

    # ctest labels: unsanitized
    def test_rules_of_memory_and_of_captures_hold_while_their_programs_are_traced(self):
        """Not all rules: each trace takes a megabyte."""
        command = [ROTA, "trace", "--dir", self.scratch / "trace", "--", CONFORMANCE]
        for area in ("capture", "memory", "waiting"):
            command += ["--area", area]
        self.assertEqual(self.failing(*command, at_least=120, ROTA_MEMORY="native"), {})
        self.assertGreater(len(list((self.scratch / "trace").iterdir())), 120)

    # ctest labels: unsanitized thorough
    def test_every_rule_of_one_process_holds_on_a_virtual_clock(self):
        environment = dict(ROTA_SIM_GPUS="2", ROTA_SIM_CLOCK="virtual", ROTA_SIM_MEMORY="1G")
        printed = self.call(CONFORMANCE, "--jobs", "2", timeout=140, **environment).stdout
        reports = re.findall(r"^(ok|FAIL|skip) +([\w.]+)(.*(?:\n +.*)*)", printed, re.MULTILINE)
        self.assertGreater(sum(result == "ok" for result, *_ in reports), 700, printed)
        for result, rule, report in reports:
            # A second process is refused; a rule that may give up on a busy machine is tried again.
            if result == "ok" or "which allows only one process" in report:
                continue
            again = self.call(CONFORMANCE, "--rule", rule, **environment)
            self.assertEqual(again.returncode, 0, again.stdout)
