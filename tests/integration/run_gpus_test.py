"""`rota run --gpus N`: a program gets the GPUs with most free memory, and two that start at once get different ones."""
import json
import signal
import socket
import struct
import unittest

from harness import Case, PROGRAMS, ROTA, kill
from sim_case import program

# Says what it sees, then uses its GPU, says so, and stays.
SAYS = program("""
import os
visible = os.environ.get("CUDA_VISIBLE_DEVICES")
print(json.dumps(visible), flush=True)
sys.stdin.readline()
assert context() == 0
print("came", flush=True)
sys.stdin.readline()
""")


class RunGpus(Case):
    memory = "1G"

    def setUp(self):
        super().setUp()
        self.environment["ROTA_SIM_GPUS"] = "4"

    def sees(self, *options, **environment):
        """A program that was started, and the GPUs that it was given; it has not used them yet."""
        child = self.start(ROTA, "run", *options, "--", *SAYS, **environment)
        line = child.stdout.readline()
        self.assertTrue(line, child.poll() is not None and child.stderr.read())
        visible = json.loads(line)
        return child, visible and visible.split(",")

    def comes(self, child):
        child.stdin.write("\n")
        child.stdin.flush()
        self.assertEqual(child.stdout.readline(), "came\n")

    def refused(self, text, *options, **environment):
        result = self.call(ROTA, "run", *options, "--", "touch", self.scratch / "touched", **environment)
        self.assertEqual(result.returncode, 125, result.stderr)
        self.assertRegex(result.stderr, text)
        self.assertFalse((self.scratch / "touched").exists())

    # ctest labels: unsanitized
    def test_those_that_start_at_the_same_time_differ(self):
        self.start_daemon()
        for _ in range(6):  # those of all rounds live to the end
            children = [self.start(ROTA, "run", "--gpus", "1", "--", *SAYS) for _ in range(4)]
            seen = [json.loads(child.stdout.readline()) for child in children]
            self.assertEqual(len(set(seen)), 4, seen)
            for visible in seen:
                self.assertRegex(visible, r"^GPU-[0-9a-f-]{36}$")

    # ctest labels: unsanitized
    def test_the_gpu_with_most_room_is_chosen_and_a_program_that_has_come_counts_with_what_it_has(self):
        self.start_daemon()
        first, [gpu] = self.sees("--gpus", "1")
        self.comes(first)
        hog = self.start(ROTA, "run", "--gpus", "1", "--", PROGRAMS / "memhog", "--bytes", "600M", "--hold")
        self.assertEqual(hog.stdout.readline(), "ready\n")
        full = [row["uuid"] for row in self.status()["gpus"] if row["used_bytes"] > 500 << 20]
        self.assertEqual(len(full), 1)
        self.assertNotEqual(full[0], gpu)
        _, three = self.sees("--gpus", "3")
        self.assertNotIn(full[0], three)
        self.assertEqual(len(set(three)), 3)

    # ctest labels: unsanitized
    def test_only_gpus_that_cuda_visible_devices_leaves_are_chosen(self):
        self.start_daemon()
        _, everything = self.sees("--gpus", "4")
        self.assertEqual(len(set(everything)), 4)
        _, [second] = self.sees("--gpus", "1", CUDA_VISIBLE_DEVICES="1")
        self.assertEqual(second, everything[1])
        _, two = self.sees("--gpus", "2", CUDA_VISIBLE_DEVICES="3,1")
        self.assertEqual(set(two), {everything[1], everything[3]})
        # Within a program that has been given some.
        inner = self.call(ROTA, "run", "--gpus", "2", "--", ROTA, "run", "--gpus", "1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        self.assertIn(inner.stdout.strip(), everything, inner.stderr)

    # ctest labels: unsanitized
    def test_the_default_is_in_rotad_toml_and_stops_no_program(self):
        configuration = self.scratch / "rotad.toml"
        configuration.write_text("gpus = 1\n")
        daemon = self.start_daemon("--config", configuration)
        pair = [self.sees(), self.sees()]
        self.assertEqual([len(gpus) for _, gpus in pair], [1, 1])
        self.assertNotEqual(*[gpus for _, gpus in pair])
        self.assertIsNone(self.sees("--gpus", "all")[1])
        self.assertEqual(len(self.sees("--gpus", "2")[1]), 2)
        self.assertEqual(self.sees(CUDA_VISIBLE_DEVICES="2")[1], ["2"])
        configuration.write_text("gpus = 3\n")
        self.assertIn("gpus changed", self.checked(ROTA, "control", "reload").stdout)
        self.assertEqual(len(self.sees()[1]), 3)
        self.assertEqual(self.sees(CUDA_VISIBLE_DEVICES="2,1")[1], ["2", "1"])
        # There is no GPU at all: it is no error of who asked for none.
        self.assertEqual(self.sees(CUDA_VISIBLE_DEVICES="")[1], "")
        for wrong in "-1", "17", '"1"':
            configuration.write_text(f"gpus = {wrong}\n")
            self.assertIn("gpus is a number from 1 to 16", self.call(ROTA, "control", "reload").stderr)
        self.assertIsNone(daemon.poll())

    # ctest labels: unsanitized
    def test_more_than_there_are_is_an_error_that_says_how_many(self):
        self.start_daemon()
        self.refused(r"--gpus 5: the program sees 4 GPUs; use at most 4; the program is not started", "--gpus", "5")
        self.refused(r"--gpus 2: the program sees 1 GPU; use 1", "--gpus", "2", CUDA_VISIBLE_DEVICES="0")
        self.refused(r"--gpus 1: the program sees no GPU; `rota doctor` says why", "--gpus", "1", CUDA_VISIBLE_DEVICES="")
        for wrong in "0", "-1", "two", "1.5", "":
            self.refused(r"is not a number of GPUs: use 1 or more, or all", f"--gpus={wrong}")

    # ctest labels: unsanitized
    def test_without_a_rotad_that_answers_they_are_chosen_and_a_line_says_that_nothing_is_reserved(self):
        daemon = self.start_daemon()
        daemon.send_signal(signal.SIGSTOP)
        child, gpus = self.sees("--gpus", "1")
        self.assertEqual(len(gpus), 1)
        daemon.send_signal(signal.SIGCONT)
        kill(child)
        self.assertRegex(child.stderr.read(), r"no rotad answers: the GPU is chosen by what is in use now, and not reserved")

    # ctest labels: unsanitized
    def test_a_rotad_that_rota_run_starts_itself_chooses_too(self):
        seen = [gpu for _, [gpu] in (self.sees("--gpus", "1") for _ in range(4))]
        self.assertEqual(len(set(seen)), 4, seen)

    # ctest labels: unsanitized
    def test_a_choice_that_makes_no_sense_is_refused_and_what_is_left_out_of_a_message_is_zero(self):
        daemon = self.start_daemon()
        header = lambda kind: struct.pack("<IHH", 0x41544F52, 9, kind)

        def choose(count, candidates, length=None):
            gpus = b"".join(struct.pack("<16sII", bytes([number]) * 16, 1000, 0) for number in range(16))
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rotad:
                rotad.settimeout(60)
                rotad.connect(self.environment["ROTA_SOCKET"])
                rotad.send((header(17) + struct.pack("<II64s", count, candidates, b"session") + gpus)[:length])
                answer = rotad.recv(1024)
            return struct.unpack("<H", answer[6:8])[0], answer[8:]

        refused, chosen = 103, 113
        for wrong in (0, 4), (1, 0), (5, 4), (1, 17), (2**32 - 1, 2**32 - 1):
            kind, text = choose(*wrong)
            self.assertEqual((kind, b"that many GPUs cannot be chosen" in text), (refused, True), wrong)
        kind, body = choose(16, 16)
        self.assertEqual((kind, struct.unpack("<I", body[:4])[0], len({body[at:at + 16] for at in range(8, 8 + 16 * 16, 16)})), (chosen, 16, 16))
        self.assertEqual(choose(1, 16, length=8 + 8 + 64 + 24)[0], chosen)
        self.assertEqual(choose(1, 1, length=8)[0], refused)
        self.assertIsNone(daemon.poll())
        self.assertIsNotNone(self.status())

    # ctest labels: unsanitized
    def test_a_report_of_the_program_names_the_gpu_and_its_end_ends_the_reservation(self):
        self.start_daemon()
        report = self.scratch / "report.json"
        shows = ("--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        self.assertRegex(self.checked(ROTA, "run", "--gpus", "1", "--report", report, *shows).stdout, r"^GPU-")
        one = lambda: self.checked(ROTA, "run", "--gpus", "1", *shows).stdout
        self.eventually(lambda: one() == one(), "what was reserved for a program that has ended can be chosen again")


if __name__ == "__main__":
    unittest.main()
