#!/usr/bin/env python3
"""cuda_headers/new-release and verify-releases: a repository in a folder, wheels of our own, and a stub of rota-codegen."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest

from local_index import CUDA_HEADERS, HEADERS, LocalIndex, cuda_h, write_toolkit

sys.path.insert(0, str(CUDA_HEADERS))
from packages import release_entry, wanted_packages

# Does what rota-codegen does as far as the routine can tell. Files in stub/ change its mind: fail-STEP holds what the step
# says when it fails, problems what check finds.
STUB = '''#!{python}
import pathlib, sys
step, words = sys.argv[1], sys.argv[2:]
root = pathlib.Path("{root}")
options = dict(zip(words[::2], words[1::2]))
with open(root / "stub" / "calls", "a") as calls:
    print(step, *words, file=calls)
fail = root / "stub" / ("fail-" + step)
if fail.exists():
    sys.exit(fail.read_text())
if step == "extract":
    text = (pathlib.Path(options["--include"]) / "cuda.h").read_text()
    assert pathlib.Path(options["--cudart"]).exists()
    pathlib.Path(options["--output"]).write_text(text)
    print(options["--output"] + ": CUDA " + options["--release"] + ", 7 driver functions")
elif step == "diff":
    print("+ driver function cuNew")
elif step == "report":
    print("### Added", "- `cuNew`", sep="\\n\\n")
elif step == "generate":
    (root / "generated" / "made").write_text("made")
    print("1 files, 1 of them new or changed")
elif step == "check":
    problems = root / "stub" / "problems"
    print("all counted")
    if problems.exists():
        sys.exit(problems.read_text())
'''


class RepositoryTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name) / "repository"
        self.headers = self.root / "cuda_headers"
        (self.headers / "api").mkdir(parents=True)
        for name in ("fetch", "packages.py", "new-release", "verify-releases"):
            shutil.copy(CUDA_HEADERS / name, self.headers / name)
        (self.headers / "releases.toml").write_text("# the head\n")
        (self.headers / "api" / "99.0.json").write_text("")
        (self.headers / "api" / "98.9.json").write_text("")
        (self.root / "generated").mkdir()
        (self.root / "stub").mkdir()
        self.codegen = self.root / "stub" / "rota-codegen"
        self.codegen.write_text(STUB.format(python=sys.executable, root=self.root))
        self.codegen.chmod(0o755)
        self.index = LocalIndex(pathlib.Path(holder.name) / "index")

    def publish(self, release, patch="37", cupti=True, index=None):
        """The packages of a release appear on the index; returns their checksums."""
        index = index or self.index
        runtime = {f"nvidia/cu99/include/{name}": name for name in HEADERS if not name.startswith("crt/")}
        runtime["nvidia/cu99/include/cuda.h"] = cuda_h(release)
        runtime["nvidia/cu99/lib/libcudart.so.99"] = "cudart"
        contents = {"nvidia-cuda-runtime": runtime, "nvidia-cuda-crt": {"nvidia/cu99/include/crt/host_defines.h": "crt"},
                    "nvidia-cuda-profiler-api": {"nvidia/cu99/include/cuda_profiler_api.h": "profiler"}}
        if cupti:
            contents["nvidia-cuda-cupti"] = {"nvidia/cu99/include/cupti_driver_cbid.h": "cbid"}
        return {name: index.add(name, files, f"{release}.{patch}") for name, files in contents.items()}

    def list_and_download(self, *releases):
        """As if an earlier run had found the packages: saves pip's time where finding them is not the point."""
        downloads = LocalIndex(self.headers / "fetched" / "wheels")
        for release in releases:
            checksums = self.publish(release, index=downloads)
            entry = {"release": release, "packages": [], "oracles": []}
            for key, name, gives in wanted_packages(release):
                entry[key].append({"name": name, "version": f"{release}.37", "gives": gives, "sha256": checksums[name]})
            with open(self.headers / "releases.toml", "a") as file:
                file.write("\n" + release_entry(entry))

    def call(self, script, *arguments):
        return subprocess.run([sys.executable, str(self.headers / script), "--root", str(self.root), "--codegen",
                               str(self.codegen), *map(str, arguments)],
                              env=self.index.environment(), capture_output=True, text=True)

    def make_stub_say(self, name, text):
        (self.root / "stub" / name).write_text(text)

    def calls(self):
        path = self.root / "stub" / "calls"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def releases(self):
        return tomllib.loads((self.headers / "releases.toml").read_text()).get("release", [])

    def model(self):
        return self.headers / "api" / "99.1.json"


class NewReleaseTest(RepositoryTest):
    def test_brings_a_release_in_and_reports(self):
        self.publish("99.1", patch="9")
        self.publish("99.1", patch="10")
        self.publish("99.2")
        ran = self.call("new-release", "99.1", "-o", self.root / "report.md")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        [entry] = self.releases()
        self.assertEqual([(package["name"], package["version"], package["gives"]) for package in entry["packages"]],
                         [("nvidia-cuda-runtime", "99.1.10", ["include", "lib"]), ("nvidia-cuda-crt", "99.1.10", ["crt"]),
                          ("nvidia-cuda-profiler-api", "99.1.10", ["include"])])
        self.assertEqual([package["name"] for package in entry["oracles"]], ["nvidia-cuda-cupti"])
        self.assertTrue((self.headers / "releases.toml").read_text().startswith("# the head\n"))
        self.assertEqual(self.model().read_text(), cuda_h("99.1"))
        self.assertEqual(self.calls(), ["extract", "diff", "report", "generate", "check"])
        report = ran.stdout
        self.assertEqual((self.root / "report.md").read_text(), report)
        for part in ("# CUDA 99.1", f"| nvidia-cuda-crt | 99.1.10 | crt | `{entry['packages'][1]['sha256']}` |",
                     "## What changed since CUDA 99.0\n\n### Added\n\n- `cuNew`", "7 driver functions",
                     "## Problems\n\nNone."):
            self.assertIn(part, report)
        self.assertNotIn(str(self.root), report)

    def test_missing_decisions_are_listed_and_are_no_failure(self):
        self.list_and_download("99.1")
        self.make_stub_say("problems", "rota-codegen: cuNew (cuda.h) is unreviewed: suggested: submits\n"
                                       "rota-codegen: cuda_headers/policy.toml:9: cuOld: no version has old\n")
        ran = self.call("new-release", "99.1")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("1 functions unreviewed, 1 other decisions", ran.stderr)
        self.assertIn("- [ ] cuda_headers/policy.toml:9: cuOld: no version has old\n", ran.stdout)
        self.assertTrue((self.root / "generated" / "made").exists())

    def test_function_that_cupti_does_not_name_wants_an_explanation(self):
        self.list_and_download("99.1")
        self.make_stub_say("problems", "rota-codegen: CUDA 99.1: CUPTI does not know cuNew\n"
                                       "rota-codegen: CUDA 99.1: CUPTI does not know __cudaInitModule\n")
        ran = self.call("new-release", "99.1")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn('`unnumbered = ["cuNew"]`', ran.stdout)
        self.assertNotIn("__cudaInitModule", ran.stdout)

    def test_problem_is_reported_and_is_a_failure(self):
        self.list_and_download("99.1")
        self.make_stub_say("problems", "rota-codegen: libcudart exports cudaNew, which no header declares\n")
        ran = self.call("new-release", "99.1")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("## Problems\n\n- libcudart exports cudaNew", ran.stdout)

    def test_release_that_is_not_out_changes_nothing(self):
        self.publish("99.2")
        ran = self.call("new-release", "99.1")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("nvidia-cuda-runtime", ran.stderr)
        self.assertIn("--from FOLDER", ran.stderr)
        self.assertEqual((self.releases(), self.calls()), ([], []))

    def test_release_with_a_package_missing_changes_nothing(self):
        self.publish("99.1")
        self.index.withdraw("nvidia-cuda-crt")
        ran = self.call("new-release", "99.1")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("nvidia-cuda-crt: ", ran.stderr)
        self.assertEqual((self.releases(), self.calls()), ([], []))

    def test_release_without_an_oracle_is_brought_in_and_says_so(self):
        self.publish("99.1", cupti=False)
        ran = self.call("new-release", "99.1")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("Not on the index: nvidia-cuda-cupti", ran.stdout)
        self.assertNotIn("oracles", self.releases()[0])

    def test_failing_step_ends_it_and_the_next_run_goes_on_from_there(self):
        self.list_and_download("99.1")
        self.make_stub_say("fail-extract", "cuda.h:3: unknown type\n")
        ran = self.call("new-release", "99.1")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("rota-codegen extract failed:\ncuda.h:3: unknown type", ran.stderr)
        self.assertEqual((ran.stdout, self.calls(), self.model().exists()), ("", ["extract"], False))
        (self.root / "stub" / "fail-extract").unlink()
        ran = self.call("new-release", "99.1")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(len(self.releases()), 1)

    def test_oldest_covered_release_is_brought_in_again_and_compared_with_none(self):
        self.list_and_download("98.9")
        ran = self.call("new-release", "98.9")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("## What changed\n\nNo covered release is older.\n", ran.stdout)
        self.assertEqual(self.calls(), ["extract", "generate", "check"])
        ran = self.call("new-release", "97.1")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("has no model of a release before 97.1", ran.stderr)

    def test_failing_generation_is_named(self):
        self.list_and_download("99.1")
        self.make_stub_say("fail-generate", "two releases contradict each other\n")
        ran = self.call("new-release", "99.1")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("rota-codegen generate failed:\ntwo releases contradict each other", ran.stderr)
        self.assertEqual(self.calls()[-1], "generate")

    def test_installed_toolkit_comes_before_the_packages_and_gives_way_to_them(self):
        write_toolkit(self.root / "toolkit", "99.1")
        ran = self.call("new-release", "99.1", "--from", self.root / "toolkit")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(self.releases(), [])
        self.assertIn("Not in `releases.toml` yet", ran.stdout)
        self.publish("99.1")
        ran = self.call("new-release", "99.1")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(len(self.releases()), 1)
        self.assertEqual((self.headers / "fetched/99.1/include/crt/host_defines.h").read_text(), "crt")

    def test_toolkit_of_another_release_ends_it(self):
        write_toolkit(self.root / "toolkit", "99.2")
        ran = self.call("new-release", "99.1", "--from", self.root / "toolkit")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("is that of CUDA 99.2, not 99.1", ran.stderr)
        self.assertEqual(self.calls(), [])


class VerifyReleasesTest(RepositoryTest):
    def only_with_cupti(self):
        """The stub's problems are a release's, and not general ones."""
        stub = self.codegen.read_text()
        self.codegen.write_text(stub.replace("problems.exists()", 'problems.exists() and "--cupti" in options'))

    def test_one_line_for_each_release(self):
        self.list_and_download("99.1", "99.2")
        ran = self.call("verify-releases")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertRegex(ran.stdout, r"\ACUDA 99\.1: 7 driver functions, extracted in .*\nCUDA 99\.2: 7 .*\nall counted\n\Z")

    def test_release_that_differs_is_named_with_what_differs(self):
        self.list_and_download("99.1")
        self.make_stub_say("problems", "rota-codegen: cuda_headers/api/99.1.json is not what the headers declare\n")
        self.only_with_cupti()
        ran = self.call("verify-releases", "99.1")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("CUDA 99.1: FAILED\n  cuda_headers/api/99.1.json is not what", ran.stdout)

    def test_gaps_in_cupti_s_lists_are_explained_in_releases_toml_or_wrong(self):
        self.list_and_download("99.1")
        with open(self.headers / "releases.toml", "a") as file:
            file.write('unnumbered = ["cuNew", "cuOld"]\n')
        self.make_stub_say("problems", "rota-codegen: CUDA 99.1: CUPTI does not know cuNew\n"
                                       "rota-codegen: CUDA 99.1: CUPTI does not know cuOther\n")
        self.only_with_cupti()
        ran = self.call("verify-releases", "99.1")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("CUDA 99.1: FAILED\n  CUDA 99.1: CUPTI does not know cuOther\n"
                      "  CUDA 99.1: CUPTI does know cuOld: take it out", ran.stdout)
        self.assertNotIn("cuNew", ran.stdout)

    def test_what_is_no_release_s_fault_is_said_once_at_the_end(self):
        self.list_and_download("99.1")
        self.make_stub_say("problems", "rota-codegen: generated/made is stale\n")
        ran = self.call("verify-releases")
        self.assertEqual(ran.returncode, 1)
        self.assertRegex(ran.stdout, r"\ACUDA 99\.1: 7 driver functions.*\nall counted\n  generated/made is stale\n\Z")

    def test_release_that_cannot_be_had_is_a_failure(self):
        self.list_and_download("99.1")
        shutil.rmtree(self.headers / "fetched")
        ran = self.call("verify-releases")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("CUDA 99.1: FAILED\n  not fetched: headers, libcudart, CUPTI", ran.stdout)
        self.assertIn("could not get CUDA 99.1: nvidia-cuda-runtime", ran.stderr)


if __name__ == "__main__":
    unittest.main()
