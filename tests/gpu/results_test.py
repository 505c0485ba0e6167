"""Measured results (results.py): their lines, what programs print made into lines, and the tables in pages. No GPU needed."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import results

LINE = {"program": "swap.py", "row": "switch-8", "gpu": "NVIDIA H100 80GB HBM3", "driver": "580.159.04", "date": "2026-11-25", "figures": {"whole_ms": 181},
        "baseline": {"what": "bare copies", "gb_s": 90}, "ratio": 1.02, "interval": [0.87, 1.07]}
SWITCHES = {"full": 12, "in_gib": [7.4, 7.5, 7.5], "copies_ms": [160, 171, 190], "copies_share": [0.9, 0.98, 1], "whole_ms": [170, 174, 195],
            "whole_share": [0.92, 0.96, 0.99], "drain_ms": [1, 2, 3], "bare_duplex_gb_s": [[45, 44], [46, 45]]}
MARK = "<!-- results of swap.py /^switch/ | preset = row | whole = whole_ms ms | bare = baseline.gb_s | of bare = ratio -->\n"
END = "<!-- end of results -->"


class Results(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def wrote(self, *lines):
        (self.folder / "swap.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def page(self, mark=MARK):
        return results.with_tables(f"before\n{mark}what was there\n{END}\nafter\n", self.folder)

    def test_every_line_is_one_of_results_and_every_table_in_a_page_is_what_they_give(self):
        files = sorted(results.FOLDER.glob("*.jsonl"))
        self.assertTrue(files)
        for file in files:
            results.read(file)
        tables = 0
        for page in results.pages():
            text = page.read_text()
            tables += len(results.MARK.findall(text))
            self.assertEqual(results.with_tables(text), text, f"{page} has another table: tests/gpu/results.py tables")
        self.assertGreater(tables, 0)

    def test_a_line_that_lacks_something_is_named(self):
        for change, why in (({"date": "today"}, "date"), ({"figures": {"ms": "5"}}, "ms"), ({"figures": {}, "ratio": None}, "neither"), ({"baseline": {}}, "baseline"),
                            ({"interval": [2, 1]}, "interval"), ({"colour": 1}, "colour"), ({"program": "share.py"}, "share.py"), ({"ratio": True}, "ratio")):
            self.wrote(LINE, {**LINE, **change})
            with self.assertRaisesRegex(ValueError, f"swap.jsonl:2: .*{why}"):
                results.read(self.folder / "swap.jsonl")

    def test_a_table_has_of_each_row_and_gpu_the_newest_date_with_all_its_runs(self):
        newer = {**LINE, "date": "2026-11-26", "figures": {"whole_ms": 174}, "ratio": 0.96, "interval": None}
        self.wrote(LINE, newer, {**newer, "figures": {"whole_ms": 265}}, {**LINE, "gpu": "NVIDIA H200", "figures": {"whole_ms": 166}}, {**LINE, "row": "totals-50"})
        self.assertEqual(self.page(), f"before\n{MARK}| preset | whole | bare | of bare |\n| --- | --- | --- | --- |\n| switch-8 | 174 ms, 265 ms | 90 | 0.96 |\n"
                                      f"| switch-8 | 166 ms | 90 | 1.02 (0.87 to 1.07) |\n{END}\nafter\n")

    def test_a_column_that_no_line_has_is_refused(self):
        self.wrote(LINE)
        with self.assertRaisesRegex(ValueError, "no line of swap.py has whole_s"):
            self.page(MARK.replace("whole_ms ms", "whole_s"))

    def added(self, *printed, program=None):
        output = self.folder / "output"
        output.write_text("words before\n" + "".join(json.dumps(each) + "\n" for each in printed))
        command = [sys.executable, "-B", HERE / "results.py", "add", output, "--results", self.folder / "made", *(["--program", program] if program else [])]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        return {file.stem: results.read(file) for file in (self.folder / "made").glob("*.jsonl")}

    def test_what_swap_all_ran_becomes_lines_of_each_program(self):
        on = {"gpu": "NVIDIA H200", "driver": "580", "date": "2026-11-26"}
        made = self.added({"preset": "switch-8", "script": "swap.py", "on": on, "took_s": 30, **SWITCHES}, {"preset": "switch-2", "script": "swap.py", "on": on, "problem": "exit 1"},
                          {"preset": "storm", "script": "swap_storm.py", "on": on, "right": True, "moves_out": [50, 53], "out_bytes": [1e11, 5e10]},
                          {"preset": "throughput", "script": "swap_throughput.py", "on": on, "part": "throughput", "program": "torch", "pairs": 10,
                           "step": {"native_time_over_rota": 0.997, "interval": [0.98, 1.01], "pairs": [1]}})
        self.assertEqual(made["swap"], [{"program": "swap.py", "row": "switch-8", **on, "figures": {"in_gib": 7.5, "copies_ms": 171, "copies_share": 0.98, "whole_ms": 174, "drain_ms": 2,
                                                                                                   "switches": 12},
                                         "baseline": {"what": "bare copies in both directions", "gb_s": 90}, "ratio": 0.96, "interval": [0.92, 0.99]}])
        self.assertEqual(made["swap_storm"][0]["figures"], {"wrong": 0, "moves_out": 103, "out_gb": 150})
        self.assertEqual([made["swap_throughput"][0][name] for name in ("row", "ratio", "interval")], ["torch", 0.997, [0.98, 1.01]])

    def test_what_share_prints_becomes_lines_of_it(self):
        made = self.added({"set": "two-half", "automatic": [1.2, 1.1, 1.3], "time_slicing": [1.0, 0.9, 1.1], "ratio": [1.2, 1.0, 1.4]},
                          {"set": "burst", "automatic": {"p50": 20, "p95": 21, "p99": 22, "other_of_remainder": 0.98}, "concurrent": {"p50": 40}},
                          {"set": "hand-over", "count": 700, "p50": 244}, program="share.py")["share"]
        self.assertEqual([(line["row"], line["ratio"]) for line in made], [("two-half", 1.2), ("burst", 0.5), ("hand-over", None)])
        self.assertEqual(made[2]["figures"], {"count": 700, "p50": 244})

    def test_output_of_a_program_that_nobody_names_is_refused(self):
        with self.assertRaises(subprocess.CalledProcessError):
            self.added({"set": "x", "p50": 1})


if __name__ == "__main__":
    unittest.main()
