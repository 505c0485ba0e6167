"""What the next rotad knows of gangs, and of how programs share a GPU, and which versions of its books it understands."""
import unittest

import books_test
from harness import PROGRAMS, ROTA, kill


class Kept(books_test.Books):
    # ctest labels: unsanitized
    def test_a_gang_that_has_had_more_than_its_share_is_no_newcomer_after_a_restart(self):
        daemon = self.rotad()
        gang, little, holder = [self.client(), self.client()], self.client(), self.client()
        self.connect(little, holder)
        for member in gang:
            self.tell(member, "connect", "job", "2")
            self.want(member)
        for member in gang:
            self.becomes_holder(member, "the gang holds")
        self.want(little, holder)
        self.waits(little, holder)
        self.eventually(lambda: any(row["use"]["held_ns"] > 1e9 for row in self.clients() if row["pid"] == gang[0].pid),
                        "it has had the GPU for a second while others waited")
        for member in gang:
            self.tell(member, "give_back")
        for client in little, holder:
            self.becomes_holder(client, "it is its turn")
            if client is little:
                self.tell(little, "give_back")
        daemon, left = self.replace(daemon)
        words = {int(line.split()[1]): line.split()[6] for line in left.splitlines() if line.startswith("task ")}
        self.assertEqual(words, {**{member.pid: "1" for member in gang}, little.pid: "0", holder.pid: "0"}, left)
        newcomer = self.client()
        self.connect(holder, newcomer)
        self.want(holder, running=True)
        self.becomes_holder(holder, "it holds again")
        for member in gang:
            self.tell(member, "connect", "job", "2")
            self.want(member)
        self.waits(*gang)
        self.want(newcomer)
        self.waits(newcomer)
        self.tell(holder, "give_back")
        self.becomes_holder(newcomer, "the one that has had nothing is next")
        self.assertFalse(self.has_it(gang[0]))
        daemon.terminate()
        self.finish(daemon)
        self.replays()

    def sharing(self):
        status = self.status()
        return status["gpus"][0]["sharing"] if status and status["gpus"] else {}

    # ctest labels: unsanitized
    def test_what_was_measured_of_programs_is_not_measured_again(self):
        self.log += 1
        daemon = self.start_daemon("--event-log", self.scratch / f"events{self.log}")
        programs = [self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--hold", "--kernel-us", "2000", ROTA_SIM_TIME_SCALE="1")
                    for _ in range(2)]
        self.eventually(lambda: self.sharing().get("reason") in ("trial", "few contend"), "it is known how they share the GPU best")
        for _ in range(2):  # the second time they may not be back yet
            daemon.terminate()
            self.assertEqual(self.finish(daemon).returncode, 0)
            left = self.books.read_text(encoding="utf-8")
            measured = [line.split()[2:] for line in left.splitlines() if line.startswith("measured ")]
            self.assertEqual({int(words[0]) for words in measured}, {program.pid for program in programs}, left)
            self.assertEqual(len(measured), 2, left)
            self.log += 1
            daemon = self.start_daemon("--event-log", self.scratch / f"events{self.log}")
        log = self.scratch / f"events{self.log}"
        self.eventually(lambda: log.read_text(encoding="utf-8").count(" measured_before ") == 2, "both are back")
        told = [line.split()[4:] for line in log.read_text(encoding="utf-8").splitlines() if " measured_before " in line]
        self.assertEqual(sorted(words[:5] for words in told), sorted(words[3:8] for words in measured))
        for program in programs:
            kill(program)
        daemon.terminate()
        self.finish(daemon)
        self.replays()

    # ctest labels: unsanitized
    def test_books_of_a_later_version_with_more_in_them_and_of_an_earlier_one_with_less_are_read(self):
        daemon, _, _ = self.one_holds_and_one_waits()
        for change in "later", "earlier":
            daemon.terminate()
            self.finish(daemon)
            lines = self.books.read_text(encoding="utf-8").splitlines()
            if change == "later":
                lines[3:3] = ["weather fine 7"]
                lines = [line + " 17 more" if line.split()[0] in ("task", "on", "had", "written") else line for line in lines]
            else:
                lines = [" ".join(line.split()[:6]) if line.startswith("task ") else line for line in lines]
            lines[-1] = f"end {len(lines) - 1}"
            self.written("\n".join(lines) + "\n")
            # No program comes back: it leaves to the next rotad what it has read.
            daemon = self.rotad("--log", "info")
            daemon.terminate()
            said = self.finish(daemon).stderr
            self.assertNotIn("is ignored", said)
            self.assertIn("waiting for 2 programs that held GPUs or waited for them", said)
            daemon = self.rotad()


if __name__ == "__main__":
    unittest.main()
