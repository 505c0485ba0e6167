"""What swap_switches.py makes of rota's logs: no GPU needed."""
import unittest

import swap_switches

EVENTS = """rota-events 1 mode=exclusive quantum=300000000 grace=10000000000 window=2000000000
# 1000 task 6 client 6 pid 15104
1000 join 6
# 1000 task 8 client 8 pid 15105
1000 join 8
1000000000 want 6 1 0
> granted 6 1
> promised 6 1 0 0
1300000000 give_back 6 1
> ended 6 1
> granted 8 1
# 1400000000 moved 6 pid 15104: out 104857600 bytes at 0.5 GB/s, 0 without a copy; back 0 bytes
1800000000 give_back 8 1
> ended 8 1
> granted 6 2
2400000000 give_back 6 2
> ended 6 2
> granted 8 2
3000000000 leave 8
"""
FIRST = """rota: client 6 of rotad 15102
rota: grant 1: given back at the end of the turn after 300000 us, 2000 us of them drained, 1 calls waiting
rota: GPU 0: 8000000000 bytes copied out between 1310000000 and 1500000000 ns
rota: GPU 0: 8000000000 of 8000000000 bytes moved out in 200000 us, 8000000000 of them copied, at 1505000000 ns
rota: grant 2: no room for all memory after 50000 us, 3000000000 bytes of it swapped, 3000000000 of it in memory that others handed over, at 1855000000 ns
rota: GPU 0: 3000000000 bytes copied in between 1806000000 and 1850000000 ns
rota: GPU 0: 5000000000 bytes copied in between 1856000000 and 1960000000 ns
rota: grant 2: memory back after 110000 us, 5000000000 bytes of it swapped, 5000000000 of it in memory that others handed over, at 1970000000 ns
rota: grant 2: given back at the end of the turn after 600000 us, 1000 us of them drained, 1 calls waiting
rota: GPU 0: 8000000000 bytes copied out between 2405000000 and 2565000000 ns
rota: GPU 0: 8000000000 of 8000000000 bytes moved out in 165000 us, 8000000000 of them copied, at 2570000000 ns
"""
SECOND = """rota: client 8 of rotad 15102
rota: grant 1: memory back after 210000 us, 0 bytes of it swapped, 0 of it in memory that others handed over, at 1510000000 ns
rota: grant 1: given back at the end of the turn after 500000 us, 4000 us of them drained, 1 calls waiting
rota: GPU 0: 8000000000 bytes copied out between 1803000000 and 1950000000 ns
rota: GPU 0: 8000000000 of 8000000000 bytes moved out in 160000 us, 8000000000 of them copied; the host has no memory for the rest, at 1963000000 ns
rota: GPU 0: 8000000000 bytes copied in between 2410000000 and 2575000000 ns
rota: grant 2: memory back after 178000 us, 8000000000 bytes of it swapped, 8000000000 of it in memory that others handed over, at 2579000000 ns
"""


class Switches(unittest.TestCase):
    found = swap_switches.switches(EVENTS, [FIRST, SECOND])

    def test_a_grant_with_which_no_memory_came_back_is_no_switch(self):
        self.assertEqual([(each["client"], each["at"]) for each in self.found], [(6, 1800000000), (8, 2400000000)])

    def test_copies_are_timed_from_the_first_byte_in_either_direction_to_the_last(self):
        self.assertEqual(self.found[0]["copies_ns"], 1960000000 - 1803000000)
        self.assertEqual(self.found[1]["copies_ns"], 2575000000 - 2405000000)

    def test_a_whole_switch_begins_with_the_drain_of_the_holder_before_and_ends_with_all_memory_back(self):
        self.assertEqual(self.found[0]["whole_ns"], 170000000 + 4000000)
        self.assertEqual(self.found[1]["whole_ns"], 179000000 + 1000000)

    def test_what_came_in_several_attempts_is_added_up(self):
        self.assertEqual((self.found[0]["in_bytes"], self.found[0]["out_copied"], self.found[0]["taken_over"]), (8000000000,) * 3)

    def test_the_first_move_out_of_a_program_stands_by_itself(self):
        # The first program's was during a grant that is no switch.
        self.assertEqual([each["first"] for each in self.found], [True, False])
        self.assertEqual(swap_switches.full(self.found), self.found[1:])
        later = [dict(each, first=False) for each in self.found]
        self.assertEqual(len(swap_switches.full([*later, dict(later[0], in_bytes=10, out_copied=0)])), 2)

    def test_shares_are_of_what_bare_copies_reach_in_both_directions_before_and_after(self):
        said = swap_switches.report([dict(each, first=False) for each in self.found], [[50, 50], [49, 51]])
        self.assertEqual(said["copies_share"][1], round((0.941 + 1.019) / 2, 3))
        self.assertEqual(said["full"], 2)


if __name__ == "__main__":
    unittest.main()
