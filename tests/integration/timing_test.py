"""What a program times with pairs of events is left undisturbed: alongside a program that keeps the GPU busy it
measures the same as alone. simgpu's kernels take real time here, so their lengths are chosen so that two programs at
once would be obvious."""
import json
import re

from harness import Case, PROGRAMS, ROTA, ROTAD

KERNEL = 4000  # us


class Timing(Case):
    def busy(self):
        spinner = self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--hold", "--kernel-us", "3000", ROTA_SIM_TIME_SCALE="1")
        self.assertEqual(spinner.stdout.readline(), "ready\n")
        return spinner

    def timed(self, *options, kernel=KERNEL):
        result = self.checked(ROTA, "run", "--", PROGRAMS / "timer", "--kernel-us", kernel, *options, ROTA_SIM_TIME_SCALE="1")
        return json.loads(result.stdout.splitlines()[-1])

    def daemon(self, *options):
        self.log = self.scratch / "events"
        return self.start_daemon(*options, "--event-log", self.log)

    def ends(self, daemon, spinner):
        result = self.finish(spinner)
        self.assertEqual(result.returncode, 0, result.stderr)
        daemon.terminate()
        daemon.wait()
        self.assertIn("all as recorded", self.checked(ROTAD, "--replay", self.log).stdout)
        return self.log.read_text()

    def begun_alone(self, log):
        return len(re.findall(r"^> alone \d+ \d+ [1-9]", log, re.MULTILINE))

    def as_alone(self, *quantum):
        daemon = self.daemon(*quantum)
        spinner = self.busy()
        # One after the other; all at once; and more at once than fit in a quarter of a second.
        for pairs, options in ((30, ("--pairs", "10", "--rounds", "3")), (31, ("--pairs", "15", "--rounds", "2", "--queued")),
                               (81, ("--pairs", "80", "--queued"))):
            with self.subTest(options=options):
                found = self.timed(*options)
                self.assertEqual(found["pairs"], pairs)
                self.assertLess(found["median_us"], 1.25 * KERNEL, found)
        log = self.ends(daemon, spinner)
        self.assertGreaterEqual(self.begun_alone(log), 4)
        self.assertLess(self.begun_alone(log), 50, "pairs that follow each other are one measurement")

    # ctest labels: unsanitized
    def test_beside_a_busy_program_pairs_of_events_say_what_they_say_alone(self):
        self.as_alone()

    # ctest labels: unsanitized
    def test_beside_a_busy_program_pairs_of_events_say_what_they_say_alone_in_measured_turns(self):
        self.as_alone("--quantum", "automatic")

    # ctest labels: unsanitized
    def test_without_it_they_are_those_of_two_programs(self):
        daemon = self.daemon("--mode", "concurrent")
        spinner = self.busy()
        # On a busy machine the other program may not run at all for as long as that takes.
        self.eventually(lambda: self.timed("--pairs", "20")["median_us"] > 1.4 * KERNEL, "the other program's kernels disturb it")
        log = self.ends(daemon, spinner)
        self.assertNotIn("alone", log)

    # ctest labels: unsanitized
    def test_no_turn_of_another_lies_within_a_pair(self):
        daemon = self.daemon("--mode", "exclusive", "--quantum", "10ms")
        spinner = self.busy()
        # A turn ends while a thread waits between two kernels of a pair: the median pair would be over twice as long. Not
        # the longest: on a busy machine a kernel of simgpu's may itself take that long.
        found = self.timed("--pairs", "40", "--kernels", "4", kernel=2000)
        self.assertLess(found["median_us"], 1.5 * 4 * 2000, found)
        log = self.ends(daemon, spinner)
        self.assertGreater(len(re.findall("^> granted", log, re.MULTILINE)), 10)

    # ctest labels: unsanitized
    def test_events_that_nobody_reads_disturb_nobody_after_sixteen_pairs(self):
        daemon = self.daemon()
        spinner = self.busy()
        timer = self.start(ROTA, "run", "--", PROGRAMS / "timer", "--kernel-us", KERNEL, "--pairs", "16", "--rounds", "6", "--unread",
                           ROTA_SIM_TIME_SCALE="1")
        self.assertEqual(self.finish(timer).returncode, 0)
        log = self.ends(daemon, spinner)
        times = [(int(time), alone) for time, alone in re.findall(r"^(\d+) want \d+ \d+ 0( alone)?$", log, re.MULTILINE)]
        last_alone = max(time for time, alone in times if alone)
        left = int(re.findall(r"^(\d+) leave", log, re.MULTILINE)[0])
        first_alone = min(time for time, alone in times if alone)
        self.assertLess(last_alone - first_alone, (left - first_alone) / 3)
