"""Programs that share one GPU under rotad: who runs, who waits, whose memory counts."""
import json
import unittest

from harness import Case, PROGRAMS, ROTA, kill


class Sharing(Case):
    def spinner(self, *options, **environment):
        """A program that launches kernels forever; ready() waits for its first launch."""
        child = self.start(ROTA, "run", "--", PROGRAMS / "spinner", *options, **environment)
        return child

    def ready(self, child):
        line = child.stdout.readline()
        self.assertEqual(line.strip(), "ready", child.stderr.read() if child.poll() is not None else "")
        return child

    def holders(self):
        return sorted(client["pid"] for client in self.clients() if client["holds"])

    def waiters(self):
        return sorted(client["pid"] for client in self.clients() if client["waits"])

    # ctest labels: drivers
    def test_two_programs_that_do_not_fit_together_both_finish_with_right_contents(self):
        # Without rota the second one is refused: rota exists to prevent that.
        first = self.start(PROGRAMS / "memhog", "--share", "0.6", "--hold")
        self.assertEqual(first.stdout.readline().strip(), "ready")
        refused = self.call(PROGRAMS / "memhog", "--share", "0.6", "--rounds", "1")
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", refused.stderr)
        kill(first)

        self.start_daemon("--mode", "automatic", "--quantum", "50ms")
        both = [self.start(ROTA, "run", "--", PROGRAMS / "memhog", "--share", "0.6", "--rounds", "20") for _ in range(2)]
        for child in both:
            result = self.finish(child)
            self.assertEqual(result.returncode, 0, result.stderr)
            said = json.loads(result.stdout.splitlines()[-1])
            self.assertEqual((said["wrong"], said["rounds"]), (0, 20))

    # ctest labels: drivers
    def test_exclusive_mode_alternates_and_never_has_two_holders(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "30ms")
        both = [self.ready(self.spinner("--hold", ROTA_SIM_TIME_SCALE="1")) for _ in range(2)]
        seen = []

        def alternated():
            seen.append(tuple(self.holders()))
            return sum(1 for before, after in zip(seen, seen[1:]) if before != after) >= 4

        self.eventually(alternated, "the lease goes to and fro")
        self.assertTrue(all(len(pids) <= 1 for pids in seen), seen)
        for child in both:
            result = self.finish(child)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertGreater(json.loads(result.stdout.splitlines()[-1])["launches"], 10)

    def test_programs_that_fit_together_run_together_in_automatic_mode(self):
        self.start_daemon("--mode", "automatic")
        both = [self.ready(self.spinner("--seconds", "60")) for _ in range(2)]
        self.eventually(lambda: sum(client["holds"] and not client["waits"] for client in self.clients()) == 2, "both hold the GPU at once")
        for child in both:
            kill(child)

    def test_nobody_gives_anything_back_while_nobody_waits(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "10ms")
        result = self.checked(ROTA, "run", "--", PROGRAMS / "spinner", "--launches", "2000")
        self.assertEqual(json.loads(result.stdout.splitlines()[-1])["launches"], 2000)
        self.assertEqual(self.status()["daemon"]["grants"], 1)

    # ctest labels: drivers
    def test_a_killed_holders_lease_is_free_at_once(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "1000s")
        first = self.ready(self.spinner("--seconds", "100"))
        second = self.spinner("--seconds", "100")
        self.eventually(lambda: self.waiters(), "the second one waits")
        kill(first)
        self.ready(second)
        self.assertEqual(self.holders(), [second.pid])
        kill(second)

    def test_an_idle_holder_makes_room_for_a_waiter_long_before_its_quantum_ends(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "1000s")
        idle = self.start(ROTA, "run", "--", PROGRAMS / "memhog", "--share", "0.1", "--hold", "--think", "1000")
        self.assertEqual(idle.stdout.readline().strip(), "ready")
        result = self.checked(ROTA, "run", "--", PROGRAMS / "saxpy")
        self.assertIn("ok", result.stdout)
        kill(idle)

    def test_a_holder_that_spawned_another_program_leaves_no_lock_behind(self):
        # As in nvshare issue 9: the socket leaked into the child, which kept its dead parent's lock.
        self.start_daemon("--mode", "exclusive", "--quantum", "1000s")
        parent = self.start(ROTA, "run", "--", PROGRAMS / "forker", "--exec", "echo ready; exec sleep 1000")
        self.assertEqual(parent.stdout.readline().strip(), "ready")
        kill(parent)
        self.checked(ROTA, "run", "--", PROGRAMS / "saxpy")

    def test_a_killed_rotad_does_not_end_the_programs(self):
        daemon = self.start_daemon("--mode", "exclusive", "--quantum", "20ms")
        both = [self.ready(self.spinner("--seconds", "4")) for _ in range(2)]
        kill(daemon)
        for child in both:
            result = self.finish(child)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertGreater(json.loads(result.stdout.splitlines()[-1])["launches"], 10)

    # ctest labels: drivers
    def test_the_memory_limit_holds_on_every_route(self):
        self.start_daemon()
        result = self.call(ROTA, "run", "--", PROGRAMS / "memhog", "--bytes", "48M", "--rounds", "1", ROTA_GPU_MEM_LIMIT="32M")
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", result.stderr)
        managed = self.call(ROTA, "run", "--", PROGRAMS / "memhog", "--managed", "--bytes", "48M", "--rounds", "1",
                            ROTA_GPU_MEM_LIMIT="32M")
        self.assertEqual(managed.returncode, 2, managed.stdout + managed.stderr)
        self.checked(ROTA, "run", "--", PROGRAMS / "memhog", "--bytes", "24M", "--rounds", "1", ROTA_GPU_MEM_LIMIT="32M")

    def test_status_shows_who_holds_who_waits_and_bytes(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "1000s")
        holder = self.start(ROTA, "run", "--", PROGRAMS / "memhog", "--bytes", "32M", "--seconds", "100", "--hold")
        self.assertEqual(holder.stdout.readline().strip(), "ready")
        client = self.eventually(lambda: [c for c in self.clients() if c["pid"] == holder.pid and c["bytes"] >= 32 << 20],
                                 "the holder's bytes show")[0]
        self.assertEqual(client["name"], "memhog")
        text = self.checked(ROTA, "status").stdout
        for word in ("memhog", str(holder.pid), "exclusive"):
            self.assertIn(word, text)
        kill(holder)
        self.eventually(lambda: not self.clients(), "a dead client is gone")


if __name__ == "__main__":
    unittest.main()
