"""Jobs of several processes whose kernels wait for each other (gangs), under rotad."""
import json
import os
import signal
import unittest

from harness import Case, PROGRAMS, ROTA


class Gangs(Case):
    """A machine with two GPUs of 256 MiB, and jobs of two ranks: the first on the first GPU, the second on the second."""

    def setUp(self):
        super().setUp()
        self.environment["ROTA_SIM_GPUS"] = "2"

    def job(self, name, *options, gang=True, ranks=2):
        """Their collective kernels end once all ranks have launched them."""
        started = []
        for rank in range(ranks):
            wrapper = ["--gang", f"{name}:{ranks}"] if gang else []
            started.append(self.start(ROTA, "run", *wrapper, "--", PROGRAMS / "ranks", "--file", self.scratch / name,
                                      "--rank", str(rank), "--ranks", str(ranks), *options))
        return started

    def said(self, rank):
        result = self.finish(rank)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout.splitlines()[-1])

    def check(self, jobs, steps):
        for job in jobs:
            for rank in job:
                said = self.said(rank)
                self.assertEqual((said["steps"], said["wrong"]), (steps, 0))

    def assert_none_was_revoked(self, daemon):
        daemon.terminate()
        self.assertNotIn("did not give its GPU back", self.finish(daemon).stderr)

    def kill_group(self, child):
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def test_two_jobs_on_the_same_gpus_take_turns_and_none_is_revoked(self):
        daemon = self.start_daemon("--mode", "exclusive", "--quantum", "20ms")
        self.check([self.job(name, "--steps", "300", "--ahead", "30", "--pause-us", "3000") for name in ("one", "two")], 300)
        self.assert_none_was_revoked(daemon)

    def test_jobs_whose_memory_does_not_fit_together_take_turns(self):
        self.environment["ROTA_MEMORY"] = "swap"
        daemon = self.start_daemon("--quantum", "20ms")
        self.check([self.job(name, "--steps", "100", "--bytes", "150M", "--ahead", "20") for name in ("one", "two")], 100)
        self.assert_none_was_revoked(daemon)

    def test_a_job_takes_turns_with_programs_on_each_of_its_gpus(self):
        daemon = self.start_daemon("--mode", "exclusive", "--quantum", "20ms")
        job = self.job("job", "--steps", "200", "--ahead", "20")
        beside = [self.start(ROTA, "run", "--", PROGRAMS / "several", "--touch", "1", "--work", "0", "--steps", "100"),
                  self.start(ROTA, "run", "--", PROGRAMS / "several", "--work", "1", "--steps", "100")]
        for program in beside:
            self.assertEqual(self.said(program)["wrong"], 0)
        self.check([job], 200)
        self.assert_none_was_revoked(daemon)

    def test_ranks_that_share_a_gpu_run_at_the_same_time(self):
        daemon = self.start_daemon("--mode", "exclusive", "--quantum", "20ms")
        self.check([self.job(name, "--steps", "100", "--ahead", "20", "--device", "0", ranks=3) for name in ("one", "two")], 100)
        self.assert_none_was_revoked(daemon)

    def test_a_rank_that_has_finished_is_not_waited_for(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "20ms")
        keeper = self.start(ROTA, "run", "--", PROGRAMS / "several", "--touch", "1", "--work", "0", "--hold")
        short, long = (self.start(ROTA, "run", "--gang", "job:2", "--", PROGRAMS / "several", "--touch", "1", "--work", "0", "--steps", steps)
                       for steps in ("20", "500"))
        self.assertEqual(self.said(short)["steps"], 20)
        self.assertEqual(self.said(long)["steps"], 500)
        self.assertEqual(self.said(keeper)["wrong"], 0)

    def test_status_shows_a_gang_and_its_members(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "1000s")
        job = self.job("job", "--steps", "1000000")

        def known():
            status = self.status()
            whole = [gang for gang in status["gangs"] if gang["name"] == "job" and gang["programs"] == 2]
            numbers = [task["gang"] for client in status["clients"] if client["use"] for task in client["use"]["gpus"].values()]
            return bool(whole) and numbers == [whole[0]["number"]] * 2

        self.eventually(known, "both ranks are members")
        text = self.checked(ROTA, "status").stdout
        self.assertIn("job: 2 of 2 programs, named by --gang", text)
        for rank in job:
            self.kill_group(rank)

    def test_ranks_of_one_launch_that_register_shared_memory_are_a_gang_and_take_turns_where_they_fit(self):
        daemon = self.start_daemon("--mode", "automatic")
        jobs = []
        for job in ("one", "two"):
            self.environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=job, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
            jobs.append(self.job(job, "--steps", "1000000", "--ahead", "20", gang=False))

        def in_turns():
            status = self.status()
            sharing = {gpu["sharing"]["candidate"] for gpu in status["gpus"]}
            return [gang["why"] for gang in status["gangs"]] == ["share memory"] * 2 and sharing == {"in turns"}

        self.eventually(in_turns, "both GPUs are shared in turns")
        for job in jobs:
            for rank in job:
                self.kill_group(rank)
        daemon.terminate()

    def test_processes_of_one_rota_run_that_share_memory_are_a_gang_without_any_launcher(self):
        daemon = self.start_daemon("--mode", "exclusive", "--quantum", "20ms")
        both = '"$0" --file "$1" --rank 0 --ranks 2 --steps 200 --ahead 20 & "$0" --file "$1" --rank 1 --ranks 2 --steps 200 --ahead 20; first=$?; wait $! && exit $first'
        jobs = [self.start(ROTA, "run", "--", "/bin/sh", "-c", both, PROGRAMS / "ranks", self.scratch / name) for name in ("one", "two")]
        for job in jobs:
            result = self.finish(job)
            self.assertEqual(result.returncode, 0, result.stderr)
            said = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
            self.assertEqual([(each["steps"], each["wrong"]) for each in said], [(200, 0)] * 2)
        self.assert_none_was_revoked(daemon)

    def test_when_a_rank_is_killed_the_others_turn_ends_and_other_programs_go_on(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "20ms", "--grace", "500ms")
        job = self.job("job", "--steps", "1000000")
        for rank in job:
            self.assertEqual(rank.stdout.readline().strip(), "ready")
        self.kill_group(job[1])
        other = self.start(ROTA, "run", "--", PROGRAMS / "several", "--touch", "1", "--work", "0", "--steps", "50")
        self.assertEqual(self.said(other)["steps"], 50)
        self.kill_group(job[0])


if __name__ == "__main__":
    unittest.main()
