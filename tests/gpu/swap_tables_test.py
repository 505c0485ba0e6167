"""Which of the driver's private tables runs under forced swaps have shown (tables/evidence.py): no GPU needed."""
import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "tables"))

import evidence

ONE, TWO = "1734dc26-800d-4745-8726-c0f1e7dd8bca", "21318c60-9714-3248-8ca6-41ff7324c8f2"
POLICY = f"""
[driver]
cuInit = {{ context = "init" }}
[export_tables]
"{ONE}" = {{ bytes = 136, asked_by = ["libcublasLt"], evidence = "" }}
"""


def program(moves_out, wrong=0, size=136, **more):
    return {"moves_out": moves_out, "wrong": wrong, "tables": {ONE: {"bytes": size, "rota": "known", "asked_by": ["libcublasLt.so.13"]}}, **more}


def file(**programs):
    return evidence.merged({}, {"driver": "580", "programs": programs})


class Lacking(unittest.TestCase):
    def test_a_table_is_shown_by_a_program_that_used_it_and_was_moved_out_with_nothing_wrong(self):
        self.assertEqual(evidence.lacking(POLICY, [file(cublas=program(12))]), {})

    def test_a_table_that_no_program_asked_for_is_lacking(self):
        self.assertIn("no program in an evidence file", evidence.lacking(POLICY, [])[ONE])

    def test_a_program_that_was_never_moved_out_shows_nothing(self):
        self.assertIn("moved out", evidence.lacking(POLICY, [file(cublas=program(0))])[ONE])

    def test_one_wrong_result_is_enough(self):
        self.assertIn("wrong in other", evidence.lacking(POLICY, [file(cublas=program(12), other=program(3, wrong=1))])[ONE])

    def test_a_table_of_another_length_is_another_table(self):
        self.assertIn("136 bytes", evidence.lacking(POLICY, [file(cublas=program(12, size=128))])[ONE])

    def test_a_program_that_did_not_end_well_shows_nothing(self):
        self.assertIn(ONE, evidence.lacking(POLICY, [file(cublas=program(12, problem="exit 1"))]))

    def test_a_later_run_replaces_what_a_program_showed_and_keeps_the_others(self):
        both = evidence.merged(file(cublas=program(0), other=program(2)), {"driver": "580", "programs": {"cublas": program(7)}})
        self.assertEqual({name: row["moves_out"] for name, row in both["tables"][0]["programs"].items()}, {"cublas": 7, "other": 2})

    def test_a_file_says_all_that_was_merged_with_a_row_on_each_line(self):
        found = file(cublas=program(12, parts=["direct"]), other=program(0, wrong=1, stays="an IPC handle"), failing=program(1, problem="exit 1"))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "swap-580.json"
            path.write_text(evidence.text(found))
            self.assertEqual(evidence.files(folder), [found])
            lines = path.read_text().splitlines()
        self.assertEqual(sum(line.startswith('{"program"') for line in lines), 3)
        self.assertEqual(sum(line.startswith('{"uuid"') for line in lines), 1)  # three programs asked for the same

    def test_every_table_that_programs_may_use_without_being_pinned_is_shown_by_a_file_here(self):
        files = evidence.files()
        if not files:
            self.skipTest("no run on a GPU has been recorded yet (tests/gpu/swap_tables.py)")
        self.assertEqual(evidence.lacking((HERE.parents[1] / "cuda_headers/policy.toml").read_text(), files), {})


if __name__ == "__main__":
    unittest.main()
