"""Programs with several GPUs under rotad: a task for each, coupled where they have to run at the same time."""
import json
import sys
import unittest

from harness import Case, PROGRAMS, ROOT, ROTA, kill


class Tasks(Case):
    """A machine with two GPUs of 256 MiB."""

    def setUp(self):
        super().setUp()
        self.environment["ROTA_SIM_GPUS"] = "2"

    def program(self, *options, **environment):
        return self.start(ROTA, "run", "--", PROGRAMS / "several", *options, **environment)

    def ready(self, child):
        line = child.stdout.readline()
        self.assertEqual(line.strip(), "ready", child.stderr.read() if child.poll() is not None else "")
        return child

    def said(self, child):
        result = self.finish(child)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout.splitlines()[-1])

    def test_a_program_does_not_wait_on_one_gpu_for_its_turn_on_another(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "1000s")
        # It keeps the second GPU, with work in all of its steps.
        keeper = self.ready(self.program("--touch", "2", "--work", "1", "--hold"))
        other = self.said(self.program("--touch", "1", "--work", "0", "--steps", "50"))
        self.assertEqual((other["steps"], other["wrong"]), (50, 0))
        self.assertEqual(self.said(keeper)["wrong"], 0)

    def test_two_programs_that_work_on_one_gpu_each_do_not_take_turns(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "50ms")
        one = self.ready(self.program("--touch", "2", "--work", "0", "--hold"))
        two = self.ready(self.program("--touch", "2", "--work", "1", "--hold"))

        def both_hold():
            return {(one.pid, 0), (two.pid, 1)} <= self.doing("holds") and not self.doing("waits")

        self.eventually(both_hold, "each holds the GPU that it works on, and nobody waits")
        for child in (one, two):
            self.assertEqual(self.said(child)["wrong"], 0)

    def test_graphs_on_one_gpu_each_do_not_take_turns(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "50ms")
        one, two = [self.ready(self.program("--work", work, "--graphs", "own", "--hold")) for work in ("0", "1")]

        def both_hold():
            return {(one.pid, 0), (two.pid, 1)} <= self.doing("holds") and not self.doing("waits")

        self.eventually(both_hold, "each holds the GPU that its graphs work on, and nobody waits")
        for child in (one, two):
            self.assertEqual(self.said(child)["wrong"], 0)

    def test_a_graph_with_work_on_two_gpus_waits_for_both(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "20ms")
        for kind in "both", "child", "changed":
            with self.subTest(kind=kind):
                other = self.ready(self.program("--work", "1", "--hold"))
                # The driver refuses mapped memory as what "changed" changes to.
                memory = {"ROTA_MEMORY": "managed"} if kind == "changed" else {}
                graphs = self.ready(self.program("--work", "0", "--graphs", kind, "--hold", **memory))
                self.eventually(lambda pid=graphs.pid: (pid, 1) in self.doing("waits"), "it waits for the GPU of the other's kernels, too")
                for child in (graphs, other):
                    self.assertEqual(self.said(child)["wrong"], 0)

    def test_a_copy_from_one_gpu_to_the_other_waits_for_both(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "20ms")
        crossing = self.program("--work", "0,1", "--cross", "5", "--steps", "100")
        beside = [self.program("--touch", "1", "--work", "0", "--steps", "300"), self.program("--work", "1", "--steps", "300")]
        for child in (crossing, *beside):
            self.assertEqual(self.said(child)["wrong"], 0)

    def test_memory_that_does_not_fit_moves_on_one_gpu_only(self):
        self.environment["ROTA_MEMORY"] = "swap"
        self.start_daemon("--mode", "automatic", "--quantum", "50ms")
        both = self.ready(self.program("--bytes", "150M", "--work", "0", "--hold"))
        two = self.program("--touch", "2", "--bytes", "100M", "--work", "1", "--steps", "200")
        three = self.program("--touch", "2", "--bytes", "100M", "--work", "1", "--steps", "200")
        self.assertEqual(self.said(two)["wrong"], 0)
        self.assertEqual(self.said(three)["wrong"], 0)
        self.assertEqual(self.said(both)["wrong"], 0)

    def test_memory_that_work_of_the_other_gpu_may_use_does_not_move_during_that(self):
        self.environment["ROTA_MEMORY"] = "swap"
        self.start_daemon("--mode", "exclusive", "--quantum", "20ms")
        programs = [self.program("--bytes", "150M", "--peers", "--cross", "7", "--work", work, "--steps", "100") for work in ("0", "1", "0,1")]
        for child in programs:
            self.assertEqual(self.said(child)["wrong"], 0)

    def doing(self, what):
        """(pid, number of the GPU) of each task that does this: "holds" or "waits"."""
        status = self.status()
        number = {gpu["uuid"]: gpu["index"] for gpu in status["gpus"]}
        return {(client["pid"], number[uuid]) for client in status["clients"] if client["use"] for uuid, task in client["use"]["gpus"].items() if task[what]}

    def test_copies_between_gpus_are_right_in_each_memory_mode(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "20ms")
        for mode in "native", "managed", "swap":
            for peers in [], ["--peers"]:
                with self.subTest(mode=mode, peers=peers):
                    program = self.start(ROTA, "run", "--memory", mode, "--", PROGRAMS / "several", "--work", "0,1", "--cross", "5", "--steps", "20", *peers)
                    result = self.finish(program)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertEqual(json.loads(result.stdout.splitlines()[-1])["wrong"], 0)

    # ctest labels: unsanitized
    def test_copies_and_sets_with_any_context_current_do_what_the_driver_does(self):
        """As simgpu, which does what two H200s did (580.159.04, 2026-11-28, tests/gpu/across.py)."""
        def refused(*prefix):
            result = self.call(*prefix, sys.executable, ROOT / "tests/gpu/across.py")
            self.assertEqual(result.returncode, 0, result.stderr)
            rows = [json.loads(line) for line in result.stdout.splitlines()]
            self.assertEqual(len(rows), 216)
            self.assertEqual([row for row in rows if (row["error"] == 0) != row["right"] or row["error"] not in (0, 1)], [])
            return {kind: {(row["call"], row["current"]) for row in rows if row["memory"] == kind and row["error"] != 0} for kind in ("plain", "mapped")}

        def both(*calls):
            return {(call + form, current) for call in calls for form in ("", "Async") for current in (0, 1)}

        sets = {("cuMemsetD8", 0), ("cuMemsetD8Async", 0)}  # with another context than the memory's
        shaped = both("cuMemcpy2D", "cuMemcpy3D")
        with_another = {(call + form, current) for kind in ("cuMemcpy", "cuMemcpy2D", "cuMemcpyUnified") for call, current in ((kind + "HtoD", 0), (kind + "DtoH", 1)) for form in ("", "Async")}
        within = {(f"cuMemcpy{call}Async", 0) for call in ("DtoDWithin", "Within", "BatchWithin", "BatchHtoD")} | {("cuMemcpyDtoDWithin", 0), ("cuMemcpyWithin", 0)}
        within |= {(f"cuMemcpy{call}{what}Async", 0) for call in ("3DBatch", "Attributes", "3DAttributes") for what in ("Within", "HtoD")}
        across = {(f"cuMemcpy{call}Async", current) for call in ("Batch", "3DBatch", "Attributes", "3DAttributes") for current in (0, 1)}
        # Those that name the context of GPU 0 for memory of GPU 1 are refused there, too.
        unowned = {(kind + form, 0) for kind in ("managed", "pinned") for form in ("DtoD", "DtoDAsync", "Unified")}
        unowned |= {(kind + form, current) for kind in ("managed", "pinned") for form in ("PeerFirst", "PeerFirstAsync", "PeerBoth") for current in (0, 1)}
        native = {"plain": sets, "mapped": sets | shaped | across | both("cuMemcpyDtoD", "cuMemcpy") | with_another | within | unowned}
        self.assertEqual(refused(), native)
        self.assertEqual(refused(ROTA, "run", "--memory", "native", "--"), native)
        self.assertEqual(refused(ROTA, "run", "--memory", "managed", "--")["plain"], set())
        self.assertEqual(refused(ROTA, "run", "--memory", "swap", "--")["plain"], sets)

    # ctest labels: unsanitized
    def test_streams_graphs_and_arrays_of_another_gpu_do_what_the_driver_does(self):
        """As simgpu, which does what two H200s did (580.159.04, 2026-11-28, tests/gpu/across_streams.py)."""
        def said(*prefix):
            result = self.call(*prefix, sys.executable, ROOT / "tests/gpu/across_streams.py", "--together")
            self.assertEqual(result.returncode, 0, result.stderr)
            rows = [json.loads(line) for line in result.stdout.splitlines()]
            self.assertEqual(len(rows), 464)
            return {(row["memory"], row["case"]): (row["error"], row["capture"], row["after"], row["right"]) for row in rows}

        native = said()
        self.assertEqual(said(ROTA, "run", "--memory", "native", "--"), native)
        swapped = said(ROTA, "run", "--memory", "swap", "--")
        differ = {case for (memory, case), row in native.items() if memory == "plain" and swapped[memory, case] != row}
        # No graph copies what is mapped for one GPU only to another one.
        self.assertEqual(differ, {case for _, case in native if case.split()[0] in ("DtoD", "Unified") and "captured" in case})

    def test_swapped_memory_is_copied_between_gpus_while_another_program_competes(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "20ms")
        other = self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "several", "--work", "0,1", "--seconds", "60", "--hold")
        self.ready(other)
        program = self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "several", "--work", "0", "--cross", "1", "--steps", "200")
        self.assertEqual(self.said(program)["wrong"], 0)
        kill(other)

    def test_programs_whose_work_on_one_gpu_waits_for_their_work_on_the_other_go_on_beside_each_other(self):
        """In opposite orders: each holds a GPU whose work ends only once the program has had the other one."""
        for mode in "exclusive", "automatic":
            with self.subTest(mode=mode):
                daemon = self.start_daemon("--mode", mode)
                programs = [self.program("--work", order, "--chain", "--steps", "400") for order in ("0,1", "1,0")]
                said = [self.said(program) for program in programs]
                self.assertEqual([one["wrong"] for one in said], [0, 0])
                self.assertLess(max(one["longest_s"] for one in said), 15)
                daemon.terminate()
                self.finish(daemon)


if __name__ == "__main__":
    unittest.main()
