"""Memory that others may open stays on the GPU from the first open to the last close; and what rotad says of that."""
import signal
import sys
import time
import unittest

from harness import PROGRAMS, ROTA, kill
from ipc_case import KIB, MIB, SERVES, Ipc


class Pins(Ipc):
    def hog(self, share):
        """Holds the GPU and works, with memory that does not fit next to all of the others'."""
        hog = self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "memhog", "--share", share, "--hold", "--ahead", "20",
                         ROTA_SIM_TIME_SCALE="1")
        self.assertEqual(hog.stdout.readline(), "ready\n")
        return hog

    def on_gpu(self, program, what):
        [client] = [client for client in self.clients() if client["pid"] == program.pid]
        [gpu] = (client["use"] or {"gpus": {"": {}}})["gpus"].values()
        return gpu[what]

    def resident(self, program):
        [client] = [client for client in self.clients() if client["pid"] == program.pid]
        return client["resident_bytes"]


    def charged(self, program):
        [client] = [client for client in self.clients() if client["pid"] == program.pid]
        return client["bytes"]


class Reasons(Pins):
    # ctest labels: unsanitized
    def test_status_says_how_much_is_pinned_and_why(self):
        exporter, importer = self.program(), self.program()
        self.assertEqual(self.ask(exporter, "descriptor"), 0)
        _, handle = self.exported(exporter, 6 * MIB, 1)
        self.opened(importer, handle)
        def said():
            return {why: bytes for why, bytes in self.on_gpu(exporter, "pinned_bytes").items() if bytes}
        self.eventually(lambda: said() == {"descriptor": 4 * MIB, "ipc": 6 * MIB}, lambda: f"it says {said()}")
        self.assertIn("10 MiB cannot be evicted (4 MiB exported by descriptor; 6 MiB opened by IPC handles)",
                      self.checked(ROTA, "status").stdout)
        self.assertEqual(set(self.on_gpu(importer, "pinned_bytes").values()), {0, None})
        self.ends_well(exporter, importer)


class NativelyRefused(Pins):
    # ctest labels: unsanitized
    def test_what_the_driver_refuses_natively_too_changes_nothing_and_is_not_explained(self):
        program = self.program()
        address = self.ask(program, "allocate", 4 * MIB)
        pooled = self.ask(program, "allocate_async", 4 * MIB)
        # simgpu has neither GPUDirect RDMA nor dma-bufs, as its attributes say; and no driver has IPC handles of pools' memory.
        self.assertEqual(self.ask(program, "tokens", address), 801)
        self.assertEqual(self.ask(program, "dma_buf", address, 2 * MIB), 801)
        self.assertEqual(self.ask(program, "export", pooled)[0], 1)
        self.assertEqual(self.ask(program, "write_value", address + 2), 1)
        self.assertEqual(self.ask(program, "write_value", address + 4), 0)
        self.ask(program, "allocate", 4 * MIB)
        [client] = self.clients()
        [memory] = client["memory"].values()
        self.assertEqual(memory["mode"], "swap")
        result = self.finish(program)
        self.assertNotIn("was refused", result.stderr)
        self.assertEqual(result.returncode, 0, result.stderr)


class FromTheFirstOpenToTheLastClose(Pins):
    # ctest labels: unsanitized
    def test_memory_that_is_exported_moves_and_is_pinned_only_while_it_is_open(self):
        exporter, importer, another = self.program(), self.program(), self.program()
        address, handle = self.exported(exporter, 60 * MIB, 7)
        hog = self.hog("0.65")
        self.eventually(lambda: self.resident(exporter) == 0, "what nobody has open leaves the GPU")
        theirs, its = self.opened(importer, handle), self.opened(another, handle)
        self.assertTrue(self.ask(importer, "all_are", theirs, 60 * MIB, 7))
        self.ask(importer, "fill", theirs, 60 * MIB, 8)
        self.assertEqual(self.ask(importer, "close", theirs), 0)
        self.eventually(lambda: self.on_gpu(exporter, "fixed_bytes") == 60 * MIB, "it stays while one has it open")
        self.assertEqual(self.resident(exporter), 60 * MIB)
        kill(another)
        self.eventually(lambda: self.resident(exporter) == 0, "it leaves once nobody has it open")
        self.assertTrue(self.ask(exporter, "all_are", address, 60 * MIB, 8))
        self.assertIn('"wrong":0', self.finish(hog).stdout)
        self.ends_well(exporter, importer)

    # ctest labels: unsanitized
    def test_what_was_never_on_the_gpu_comes_there_when_it_is_opened(self):
        exporter, importer = self.program(), self.program()
        hog = self.hog("0.65")
        self.ask(exporter, "allocate", 4 * MIB)  # so that all GPUs are known
        address = self.ask(exporter, "allocate", 60 * MIB)
        result, handle = self.ask(exporter, "export", address)
        self.assertEqual(result, 0)
        theirs = self.opened(importer, handle)
        self.ask(importer, "fill", theirs, 60 * MIB, 9)
        self.assertEqual(self.ask(importer, "close", theirs), 0)
        self.assertTrue(self.ask(exporter, "all_are", address, 60 * MIB, 9))
        self.assertIn('"wrong":0', self.finish(hog).stdout)
        self.ends_well(exporter, importer)

    # ctest labels: unsanitized
    def test_what_comes_back_for_an_opener_that_is_killed_meanwhile_leaves_again(self):
        exporter, importer = self.program(), self.program()
        _, handle = self.exported(exporter, 60 * MIB, 7)
        hog = self.hog("0.65")
        self.eventually(lambda: self.resident(exporter) == 0, "it leaves the GPU")
        hog.send_signal(signal.SIGSTOP)  # so that nothing comes back
        importer.stdin.write(f'["open_handle", "{handle}"]\n')
        importer.stdin.flush()
        self.eventually(lambda: any(client["waits"] for client in self.clients() if client["pid"] == exporter.pid), "it waits for its turn")
        kill(importer)
        hog.send_signal(signal.SIGCONT)
        self.eventually(lambda: not any(client["waits"] for client in self.clients() if client["pid"] == exporter.pid), "it had its turn")
        self.eventually(lambda: self.on_gpu(exporter, "fixed_bytes") == 0 and self.resident(exporter) == 0,
                        lambda: f"nothing stays: {self.checked(ROTA, 'status').stdout}")
        self.assertIn('"wrong":0', self.finish(hog).stdout)
        self.ends_well(exporter)

    # ctest labels: unsanitized
    def test_what_was_freed_while_it_was_open_can_be_opened_anew(self):
        exporter, importer, another = self.program(), self.program(), self.program()
        address, handle = self.exported(exporter, 4 * MIB, 7)
        theirs = self.opened(importer, handle)
        self.assertEqual(self.ask(exporter, "free", address), 0)
        its = self.opened(another, handle)
        self.assertEqual(self.ask(importer, "close", theirs), 0)
        self.assertTrue(self.ask(another, "all_are", its, 4 * MIB, 7))
        self.assertEqual(self.ask(another, "close", its), 0)
        # Heard by then: nobody has it any more.
        self.eventually(lambda: self.on_gpu(exporter, "fixed_bytes") == 0, "nothing stays")
        self.assertEqual(self.ask(another, "open_handle", handle)[0], 205)
        self.ends_well(exporter, importer)
        self.finish(another)


class Freed(Pins):
    """While others have it open, by other calls than cuMemFree."""

    # ctest labels: unsanitized
    def test_what_was_freed_in_stream_order_serves_nothing_else_and_stays_charged_while_it_is_open(self):
        exporter, importer = self.program(), self.program()
        address, handle = self.exported(exporter, 4 * MIB, 7)
        theirs = self.opened(importer, handle)
        self.assertEqual(self.ask(exporter, "free_async", address), 0)
        self.assertNotIn(address, [self.ask(exporter, "allocate", 4 * MIB) for _ in range(4)])
        self.assertTrue(self.ask(importer, "all_are", theirs, 4 * MIB, 7))
        self.assertEqual(self.charged(exporter), 20 * MIB)
        self.assertEqual(self.ask(importer, "close", theirs), 0)
        self.eventually(lambda: self.charged(exporter) == 16 * MIB, "it is charged no longer")
        self.ends_well(exporter, importer)

    # ctest labels: unsanitized
    def test_what_was_freed_during_a_capture_stays_charged_while_it_is_open(self):
        exporter, importer = self.program(), self.program()
        address, handle = self.exported(exporter, 4 * MIB, 7)
        theirs = self.opened(importer, handle)
        self.assertEqual(self.ask(exporter, "begin_capture"), 0)
        self.assertEqual(self.ask(exporter, "free", address), 0)
        self.assertEqual(self.ask(exporter, "end_capture"), 0)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            self.assertEqual(self.charged(exporter), 4 * MIB)
        self.assertTrue(self.ask(importer, "all_are", theirs, 4 * MIB, 7))
        self.assertEqual(self.ask(importer, "close", theirs), 0)
        self.eventually(lambda: self.charged(exporter) == 0, "it is charged no longer")
        self.ends_well(exporter, importer)


class Orphans(Pins):
    # ctest labels: unsanitized
    def test_who_has_memory_open_is_charged_for_it_once_the_exporter_has_ended(self):
        exporter, importer = self.program(), self.program()
        handles = [self.exported(exporter, size, 7)[1] for size in (4 * MIB, 8 * MIB, 16 * MIB)]
        first, second = (self.opened(importer, handle) for handle in handles[:2])
        self.assertEqual(self.charged(importer), 0)
        kill(exporter)
        self.eventually(lambda: self.charged(importer) == 12 * MIB, lambda: f"it is charged for both: {self.charged(importer)}")
        self.assertEqual(self.on_gpu(importer, "fixed_bytes"), 12 * MIB)
        self.assertTrue(self.ask(importer, "all_are", first, 4 * MIB, 7))
        self.assertEqual(self.ask(importer, "close", first), 0)
        self.eventually(lambda: self.charged(importer) == 8 * MIB, "only what is open")
        self.assertTrue(self.ask(importer, "all_are", second, 8 * MIB, 7))
        self.assertEqual(self.ask(importer, "close", second), 0)
        self.eventually(lambda: self.charged(importer) == 0, "nothing")
        self.ends_well(importer)

    # ctest labels: unsanitized
    def test_a_limit_counts_such_memory(self):
        exporter = self.program()
        importer = self.start(ROTA, "run", "--memory", "swap", "--gpu-mem", "32M", "--", sys.executable, "-c", SERVES, ROTA_SIM_TIME_SCALE="1")
        theirs = self.opened(importer, self.exported(exporter, 20 * MIB, 7)[1])
        ours = self.ask(importer, "allocate", 8 * MIB)
        kill(exporter)
        self.eventually(lambda: self.charged(importer) == 28 * MIB, "it is charged")
        self.assertFalse(self.ask(importer, "may_allocate", 8 * MIB))
        self.assertEqual(self.ask(importer, "close", theirs), 0)
        self.assertEqual(self.ask(importer, "free", ours), 0)
        self.assertTrue(self.ask(importer, "may_allocate", 8 * MIB))
        self.ends_well(importer)


class WithoutRotad(Ipc):
    # ctest labels: unsanitized
    def test_without_a_rotad_a_handle_is_refused_at_once(self):
        exporter = self.program()
        _, handle = self.exported(exporter, 4 * MIB, 7)
        importer = self.start(ROTA, "run", "--memory", "swap", "--", "env", f"ROTA_SOCKET={self.scratch / 'none.sock'}", sys.executable, "-c", SERVES,
                              ROTA_SIM_TIME_SCALE="1")
        self.ask(importer, "allocate", KIB)
        begun = time.monotonic()
        self.assertEqual(self.ask(importer, "open_handle", handle)[0], 205)
        self.assertLess(time.monotonic() - begun, 0.9)
        self.assertIn("--memory native", self.finish(importer).stderr)
        self.ends_well(exporter)


if __name__ == "__main__":
    unittest.main()
