"""Other processes open memory that rota moves, by legacy IPC handles."""
import pathlib
import signal
import sys
import unittest

from harness import PROGRAMS, ROTA, ROTAD, kill
from ipc_case import KIB, LEGACY_IPC, MAPPED, MIB, SERVES, Ipc


class Tensors(Ipc):
    def shared(self, exporter, importer, sizes):
        """The importer opens allocations of these sizes, sees their contents and changes them; the exporter sees the changes."""
        memory = [(size, *self.exported(exporter, size, 1 + index)) for index, size in enumerate(sizes)]
        opened = [self.opened(importer, handle) for _, _, handle in memory]
        for index, ((size, address, _), theirs) in enumerate(zip(memory, opened)):
            self.assertTrue(self.ask(importer, "all_are", theirs, size, 1 + index), (index, size))
            self.ask(importer, "fill", theirs, size, 101 + index)
        for index, ((size, address, _), theirs) in enumerate(zip(memory, opened)):
            self.assertTrue(self.ask(exporter, "all_are", address, size, 101 + index), (index, size))
            self.assertEqual(self.ask(importer, "close", theirs), 0)
            self.assertEqual(self.ask(exporter, "free", address), 0)

    # ctest labels: unsanitized
    def test_another_process_opens_reads_and_changes_what_this_one_has_exported(self):
        exporter, importer = self.program(), self.program()
        self.shared(exporter, importer, [(2 + index % 3) * MIB + index * 4 * KIB for index in range(20)])
        self.ends_well(exporter, importer)

    # ctest labels: unsanitized
    def test_so_it_is_while_a_third_program_needs_the_memory_of_both(self):
        hog = self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "memhog", "--share", "0.6", "--hold", "--ahead", "20",
                         ROTA_SIM_TIME_SCALE="1")
        self.assertEqual(hog.stdout.readline(), "ready\n")
        exporter, importer = self.program(), self.program()
        ours = self.ask(exporter, "allocate", 60 * MIB)
        self.ask(exporter, "fill", ours, 60 * MIB, 200)
        for _ in range(3):
            self.shared(exporter, importer, [(2 + index % 3) * MIB for index in range(6)])
        self.assertTrue(self.ask(exporter, "all_are", ours, 60 * MIB, 200))
        self.ends_well(exporter, importer)
        result = self.finish(hog)
        self.assertIn('"wrong":0', result.stdout)

    # ctest labels: unsanitized
    def test_so_does_one_whose_own_memory_is_unified_or_native(self):
        exporter = self.program()
        for memory in "managed", "native":
            importer = self.program(memory)
            self.shared(exporter, importer, [64 * KIB, 3 * MIB, 40 * MIB])
            self.ends_well(importer)
        self.ends_well(exporter)

    # ctest labels: unsanitized
    def test_a_program_without_rota_is_refused_by_the_driver(self):
        exporter = self.program()
        _, handle = self.exported(exporter, 4 * MIB, 3)
        importer = self.start(sys.executable, "-c", SERVES, ROTA_SIM_TIME_SCALE="1")
        self.assertNotEqual(self.ask(importer, "open_handle", handle)[0], 0)
        self.ends_well(exporter, importer)

    # ctest labels: unsanitized
    def test_an_allocation_of_several_extents_is_opened_as_one(self):
        exporter, importer = self.program(), self.program()
        size = 150 * MIB + 4096
        address, handle = self.exported(exporter, size, 9)
        theirs = self.opened(importer, handle)
        self.assertTrue(self.ask(importer, "all_are", theirs, size, 9))
        self.assertEqual(self.ask(importer, "range_of", theirs + 140 * MIB), [-140 * MIB, size])
        self.ends_well(exporter, importer)


class Small(Ipc):
    """Allocations of less than 2 MiB, which rota cuts from shared spans."""
    memory = "16G"  # so that spans become large

    # ctest labels: unsanitized
    def test_small_allocations_are_opened_each_by_itself(self):
        exporter, importer = self.program(), self.program()
        sizes = [4 * KIB, 1000, 100 * KIB, MIB, 2 * MIB - 512, 4 * KIB]
        memory = [(size, *self.exported(exporter, size, 1 + index)) for index, size in enumerate(sizes)]
        self.assertEqual(len({handle for _, _, handle in memory}), len(sizes))
        self.assertEqual({self.ask(exporter, "attribute", address, LEGACY_IPC) for _, address, _ in memory}, {1})
        opened = [self.opened(importer, handle) for _, _, handle in memory]
        for index, (size, theirs) in enumerate(zip(sizes, opened)):
            self.assertEqual(self.ask(importer, "range_of", theirs), [0, size])
            self.assertTrue(self.ask(importer, "all_are", theirs, size, 1 + index), size)
            self.ask(importer, "fill", theirs, size, 101 + index)
        for index, (size, address, _) in enumerate(memory):
            self.assertTrue(self.ask(exporter, "all_are", address, size, 101 + index), size)
        for theirs in opened:
            self.assertEqual(self.ask(importer, "close", theirs), 0)
        self.ends_well(exporter, importer)

    # ctest labels: unsanitized
    def test_nothing_stays_pinned_once_allocations_that_were_open_are_freed_and_closed(self):
        exporter, importer = self.program(), self.program()
        memory = [self.exported(exporter, 64 * KIB, 1) for _ in range(100)]
        opened = [self.opened(importer, handle) for _, handle in memory]
        def fixed():
            return sum(gpu["fixed_bytes"] for client in self.clients() for gpu in (client["use"] or {"gpus": {}})["gpus"].values())
        self.eventually(lambda: fixed() >= 100 * 64 * KIB, "it is pinned")
        for (address, _), theirs in zip(memory, opened):
            self.assertEqual(self.ask(exporter, "free", address), 0)
            self.assertEqual(self.ask(importer, "close", theirs), 0)
        self.eventually(lambda: fixed() == 0, lambda: f"nothing is pinned: {fixed()}")
        self.ends_well(exporter, importer)

    # ctest labels: unsanitized
    def test_an_opener_sees_no_more_neighbours_than_natively(self):
        exporter, importer = self.program(), self.program()
        for _ in range(170):
            self.ask(exporter, "allocate", MIB + 512 * KIB)
        address, handle = self.exported(exporter, 64 * KIB, 5)
        theirs = self.opened(importer, handle)
        def readable():
            return {each for each in range(-34 * MIB, 34 * MIB, MIB // 2) if self.ask(importer, "is_readable", theirs + each)}
        while_open = readable()
        self.assertEqual(self.ask(importer, "close", theirs), 0)
        mapped = sorted(while_open - readable())  # without the importer's own memory
        self.assertIn(0, mapped)
        self.assertLess(mapped[-1] - mapped[0], 2 * MIB, mapped)
        self.ends_well(exporter, importer)

    # ctest labels: unsanitized
    def test_what_is_allocated_after_an_open_does_not_lie_where_the_opener_sees_it(self):
        exporter, importer = self.program(), self.program()
        freed = self.ask(exporter, "allocate", 128 * KIB)
        address, handle = self.exported(exporter, 64 * KIB, 5)
        theirs = self.opened(importer, handle)
        self.assertEqual(self.ask(exporter, "free", freed), 0)
        later = {self.ask(exporter, "allocate", size * KIB) // (2 * MIB) for size in (64, 128, 4) * 4}
        self.assertNotIn(address // (2 * MIB), later)
        self.assertTrue(self.ask(importer, "all_are", theirs, 64 * KIB, 5))
        self.ends_well(exporter, importer)

    def reused(self, exporter, address):
        """Whether one of the next allocations gets this address."""
        return address in [self.ask(exporter, "allocate", 64 * KIB) for _ in range(8)]

    # ctest labels: unsanitized
    def test_what_was_freed_serves_nothing_else_while_others_have_it_open(self):
        exporter, importer, another = self.program(), self.program(), self.program()
        address, handle = self.exported(exporter, 64 * KIB, 5)
        theirs, its = self.opened(importer, handle), self.opened(another, handle)
        self.assertEqual(self.ask(exporter, "free", address), 0)
        self.assertFalse(self.reused(exporter, address))
        self.assertTrue(self.ask(importer, "all_are", theirs, 64 * KIB, 5))
        self.assertEqual(self.ask(importer, "close", theirs), 0)
        self.assertFalse(self.reused(exporter, address))
        self.assertTrue(self.ask(another, "all_are", its, 64 * KIB, 5))
        def charged():
            return sum(client["bytes"] for client in self.clients())
        before = charged()
        kill(another)
        self.eventually(lambda: charged() == before - 64 * KIB, "nobody is charged for it any more")
        self.ends_well(exporter, importer)

    # ctest labels: unsanitized
    def test_so_it_is_where_the_same_address_was_open_to_others_before_its_context_ended(self):
        exporter, former, importer = self.program(), self.program(), self.program()
        for opener in former, importer:
            self.ask(exporter, "begin_context")
            address, handle = self.exported(exporter, 64 * KIB, 5)
            theirs = self.opened(opener, handle)
            self.assertEqual(self.ask(exporter, "free", address), 0)
            if opener is former:
                ended = address, theirs
                self.ask(exporter, "end_context")
        self.assertEqual(address, ended[0])  # or this test shows nothing
        self.assertEqual(self.ask(former, "close", ended[1]), 0)
        other = self.exported(exporter, 64 * KIB, 6)
        self.assertEqual(self.ask(former, "close", self.opened(former, other[1])), 0)  # so the exporter knows of former's earlier close
        self.assertFalse(self.reused(exporter, address))
        self.assertTrue(self.ask(importer, "all_are", theirs, 64 * KIB, 5))
        self.ends_well(exporter, former, importer)

    # ctest labels: unsanitized
    def test_opening_and_closing_a_thousand_times_takes_no_descriptors_and_no_memory(self):
        exporter, importer = self.program(), self.program()
        memory = [self.exported(exporter, size, 1 + index) for index, size in enumerate((4 * KIB, 4 * MIB))]
        def had():
            return [len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir())) for pid in self.pids]
        self.opened(importer, memory[0][1])  # stays open, and with it the socket
        self.pids = [client["pid"] for client in self.clients()]
        before = None
        for turn in range(500):
            for index, (_, handle) in enumerate(memory):
                theirs = self.opened(importer, handle)
                if turn % 100 == 0:
                    self.assertTrue(self.ask(importer, "all_are", theirs, 4 * KIB, 1 + index))
                self.assertEqual(self.ask(importer, "close", theirs), 0)
            if turn == 0:
                before = had()
        self.assertTrue(all(now < then + 20 for now, then in zip(had(), before)), (had(), before))
        self.ends_well(exporter, importer)


class SmallOnASmallGpu(Ipc):
    # ctest labels: unsanitized
    def test_small_allocations_that_are_opened_one_after_another_share_extents_all_the_same(self):
        exporter, importer = self.program(), self.program()
        for _ in range(100):  # 200 MiB, if each had an extent of its own
            self.opened(importer, self.exported(exporter, 64 * KIB, 5)[1])
        self.ask(exporter, "allocate", 190 * MIB)  # of 256 MiB, next to two contexts of 16 MiB each
        self.ends_well(exporter, importer)


class Answers(Ipc):
    """What the driver answers natively, as measured on an H200 (tests/gpu/ipc_facts.py)."""

    # ctest labels: unsanitized
    def test_a_handle_names_the_allocation(self):
        exporter = self.program()
        address, handle = self.exported(exporter, 4 * MIB, 1)
        self.assertEqual(self.ask(exporter, "export", address), [0, handle])
        self.assertEqual(self.ask(exporter, "export", address + MIB), [0, handle])
        self.assertNotEqual(self.exported(exporter, 4 * MIB, 1)[1], handle)
        self.assertEqual(self.ask(exporter, "attribute", address, LEGACY_IPC), 1)
        self.assertEqual(self.ask(exporter, "open_handle", handle)[0], 201)
        self.ask(exporter, "free", address)
        for _ in range(4):
            again, other = self.exported(exporter, 4 * MIB, 1)
            self.assertNotEqual(other, handle)
            if again == address:
                break
        self.ends_well(exporter)

    # ctest labels: unsanitized
    def test_opening_counts_and_closing_takes_what_was_opened(self):
        exporter, importer = self.program(), self.program()
        _, handle = self.exported(exporter, 4 * MIB, 7)
        theirs = self.opened(importer, handle)
        self.assertEqual(self.opened(importer, handle), theirs)
        self.assertEqual(self.ask(importer, "range_of", theirs + 4096), [-4096, 4 * MIB])
        self.assertEqual([self.ask(importer, "attribute", theirs, each) for each in (LEGACY_IPC, MAPPED)], [0, 1])
        self.assertEqual(self.ask(importer, "close", theirs), 0)
        self.assertTrue(self.ask(importer, "all_are", theirs, MIB, 7))
        self.assertEqual(self.ask(importer, "close", theirs + 4096), 1)
        self.assertEqual(self.ask(importer, "free", theirs), 1)
        self.assertEqual(self.ask(importer, "export", theirs)[0], 1)
        self.assertEqual(self.ask(importer, "close", theirs), 0)
        self.assertEqual(self.ask(importer, "close", theirs), 1)
        self.assertEqual([self.ask(importer, "open_handle", handle, flags)[0] for flags in (0, 2)], [1, 1])
        self.assertTrue(self.ask(importer, "all_are", self.opened(importer, handle), MIB, 7))
        self.ends_well(exporter, importer)

    # ctest labels: unsanitized
    def test_what_is_open_ends_with_its_context_and_can_be_opened_in_another_one_then(self):
        exporter, importer = self.program(), self.program()
        _, handle = self.exported(exporter, 4 * MIB, 7)
        self.assertEqual(self.ask(importer, "ended_context", handle), [0, 1])
        self.assertTrue(self.ask(importer, "all_are", self.opened(importer, handle), MIB, 7))
        self.ends_well(exporter, importer)

    # ctest labels: unsanitized
    def test_what_is_open_stays_readable_after_the_exporter_has_freed_it_or_was_killed(self):
        exporter, importer = self.program(), self.program()
        address, handle = self.exported(exporter, 4 * MIB, 3)
        freed = self.opened(importer, handle)
        self.assertEqual(self.ask(exporter, "free", address), 0)
        _, other = self.exported(exporter, 4 * MIB, 4)
        kept = self.opened(importer, other)
        kill(exporter)
        self.assertTrue(self.ask(importer, "all_are", freed, 4 * MIB, 3))
        self.assertTrue(self.ask(importer, "all_are", kept, 4 * MIB, 4))
        self.assertEqual(self.ask(importer, "open_handle", other), [0, kept])
        self.ends_well(importer)


class Freed(Ipc):
    memory_wait = "1s"

    # ctest labels: unsanitized
    def test_what_was_freed_is_nobody_elses_room_while_others_have_it_open(self):
        exporter, importer, other = self.program(), self.program(), self.program()
        address, handle = self.exported(exporter, 60 * MIB, 3)
        theirs = self.opened(importer, handle)
        self.assertEqual(self.ask(exporter, "free", address), 0)
        self.assertEqual(self.ask(exporter, "free", address), 1)
        # The freed memory, 60 of 256 MiB, stays pinned, as rotad hears a moment later; three contexts take 16 MiB each.
        self.eventually(lambda: not self.ask(other, "may_allocate", 190 * MIB), "the freed memory is in the way")
        self.assertTrue(self.ask(importer, "all_are", theirs, 60 * MIB, 3))
        self.assertEqual(self.ask(importer, "close", theirs), 0)
        self.eventually(lambda: self.ask(other, "may_allocate", 190 * MIB), "the freed memory is available")
        self.ends_well(exporter, importer, other)


class Refused(Ipc):
    def refusal(self, importer, handle):
        self.assertEqual(self.ask(importer, "open_handle", handle)[0], 205)
        result = self.finish(importer)
        [line] = [line for line in result.stderr.splitlines() if "cannot be opened" in line]
        self.assertIn("--memory native", line)
        return line

    # ctest labels: unsanitized
    def test_a_handle_of_a_process_that_has_gone_is_refused_with_one_line(self):
        exporter, importer = self.program(), self.program()
        _, handle = self.exported(exporter, 4 * MIB, 3)
        kill(exporter)
        self.assertIn("no program of that handle", self.refusal(importer, handle))

    # ctest labels: unsanitized
    def test_so_is_one_of_memory_that_has_been_freed(self):
        exporter, importer = self.program(), self.program()
        address, handle = self.exported(exporter, 4 * MIB, 3)
        self.ask(exporter, "free", address)
        self.assertIn("has freed it", self.refusal(importer, handle))
        self.ends_well(exporter)

    # ctest labels: unsanitized
    def test_an_exporter_that_is_stopped_is_waited_for_no_longer_than_five_seconds(self):
        exporter, importer = self.program(), self.program()
        _, handle = self.exported(exporter, 4 * MIB, 3)
        exporter.send_signal(signal.SIGSTOP)
        self.assertIn("does not answer", self.refusal(importer, handle))
        exporter.send_signal(signal.SIGCONT)
        self.ends_well(exporter)

    # ctest labels: unsanitized
    def test_while_one_thread_waits_for_a_stopped_exporter_others_open_and_close_memory_of_another(self):
        stopped, exporter, importer = self.program(), self.program(), self.program()
        _, waits = self.exported(stopped, 4 * MIB, 3)
        _, handle = self.exported(exporter, 4 * MIB, 5)
        address = self.opened(importer, handle)
        stopped.send_signal(signal.SIGSTOP)
        self.ask(importer, "begin", 0, "open_handle", waits)
        (result, again), opening = self.ask(importer, "seconds_of", "open_handle", handle)
        self.assertEqual((result, again), (0, address))
        _, closing = self.ask(importer, "seconds_of", "close", address)
        result, last = self.ask(importer, "seconds_of", "close", address)
        self.assertEqual(result, 0)
        (result, again), anew = self.ask(importer, "seconds_of", "open_handle", handle)
        self.assertEqual(result, 0)
        self.assertLess(opening + closing + last + anew, 3)
        self.assertFalse(self.ask(importer, "has_ended", 0))
        self.assertEqual(self.ask(importer, "end", 0)[0][0], 205)  # MAP_FAILED, after five seconds
        self.assertTrue(self.ask(importer, "all_are", again, 4 * MIB, 5))
        stopped.send_signal(signal.SIGCONT)
        self.ends_well(importer, exporter, stopped)

    # ctest labels: unsanitized
    def test_a_handle_with_another_key_is_refused(self):
        exporter, importer = self.program(), self.program()
        _, handle = self.exported(exporter, 4 * MIB, 3)
        changed = bytearray.fromhex(handle)
        changed[48] ^= 1
        self.refusal(importer, changed.hex())
        self.ends_well(exporter)


class Rotad(Ipc):
    # ctest labels: unsanitized
    def test_a_new_rotad_knows_who_has_exported_before_it_came(self):
        exporter, importer = self.program(), self.program()
        _, handle = self.exported(exporter, 4 * MIB, 3)
        self.ask(importer, "allocate", 4096)
        kill(self.daemon)
        self.start(ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks",
                   "--mode", "exclusive", "--quantum", "50ms", ROTA_SIM_TIME_SCALE="1")
        self.eventually(lambda: len(self.clients()) == 2, "both programs are back")
        theirs = self.opened(importer, handle)
        self.assertTrue(self.ask(importer, "all_are", theirs, 4 * MIB, 3))
        self.ends_well(exporter, importer)


if __name__ == "__main__":
    unittest.main()
