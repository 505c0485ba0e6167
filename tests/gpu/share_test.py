"""What share.py makes of the times of kernels: no GPU needed."""
import unittest

import share


def in_ns(*kernels):
    """From ms, in the order in which they began."""
    return sorted((round(begun * 1e6), round(ended * 1e6), who) for begun, ended, who in kernels)


class HandOvers(unittest.TestCase):
    def test_the_gpu_is_idle_from_the_end_of_one_program_s_last_kernel_to_the_begin_of_the_next_one_s_first(self):
        overs, within, overlapping = share.hand_overs(in_ns((0, 1, 0), (1.002, 2, 0), (2.14, 3, 1), (3.003, 4, 1), (5.5, 6, 0)))
        self.assertEqual(overs, [(2_140_000, 140.0), (5_500_000, 1500.0)])
        self.assertEqual([round(gap) for gap in within], [2, 3])
        self.assertEqual(overlapping, 0)

    def test_a_kernel_that_the_driver_interrupted_is_no_idle_time(self):
        # The second program's first kernel is interrupted as it begins, and goes on once the first program waits for its
        # own: until 4.1 ms the GPU is busy.
        overs, within, overlapping = share.hand_overs(in_ns((0, 1, 0), (1.0, 4.1, 1), (2.0, 3.0, 0), (4.1, 5.1, 1)))
        self.assertEqual([gap for _, gap in overs if gap > 0], [])
        self.assertEqual(overlapping, 1)
        self.assertEqual(within, [0.0])

    def test_kernels_of_both_under_way_are_no_hand_over(self):
        overs, _, overlapping = share.hand_overs(in_ns((0, 3, 0), (1, 4, 1), (3, 6, 0), (4.1, 7, 1)))
        self.assertEqual(overs, [])
        self.assertEqual(overlapping, 3)


if __name__ == "__main__":
    unittest.main()
