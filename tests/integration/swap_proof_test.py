"""What a program moves off the GPU is free for others: asked by a process without rota, before, meanwhile and after."""
import json
import pathlib
import subprocess
import sys
import unittest

from harness import BUILD, Case

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "gpu/swap_proof.py"


class ProvenFromOutside(Case):
    memory = "512M"

    def proof(self, trust):
        program = subprocess.run([sys.executable, "-B", SCRIPT, "--build", BUILD, "--trust", trust, "--room", "0.3", "--size", "0.2", "--other", "0.15",
                                  "--piece", "20M", "--cycles", "4"], env=self.environment, capture_output=True, text=True, timeout=140)
        self.assertEqual(program.returncode, 0, program.stdout + program.stderr)
        said = json.loads(program.stdout)
        self.assertEqual((said["proven"], said["wrong"]), (4, 0))
        self.assertGreater(said["out_bytes"], 4 * 50 * 2**20)
        return said

    # ctest labels: unsanitized
    def test_what_is_free_rises_by_what_has_left_and_falls_by_what_comes_back(self):
        self.assertEqual(self.proof("none")["handed_over_by_rotad"], 0)

    # ctest labels: unsanitized
    def test_the_same_where_memory_is_handed_over_to_another_program(self):
        said = self.proof("user")
        self.assertGreater(said["taken_over_by_the_others"], 0)
        self.assertLessEqual(said["taken_over_by_the_others"], said["handed_over_by_rotad"])


if __name__ == "__main__":
    unittest.main()
