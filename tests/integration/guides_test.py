"""The guides (tools/guides): their examples work, and their text is that of the examples and of this rota."""
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import unittest

from harness import Case, PROGRAMS, ROOT, ROTA, ROTAD

GUIDES = ROOT / "tools/guides"
EXAMPLES = GUIDES / "examples"
PAGES = sorted(GUIDES.glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_LINES = 60
MIB = 1 << 20


def commands(page):
    """What a page has a reader type, without comments and with continued lines joined."""
    for line in re.sub(r"\\\n +", "", page.read_text(encoding="utf-8")).splitlines():
        if line.startswith("    "):
            yield re.sub(r"\s+# .*", "", line.strip())


class Guides(Case):
    def test_each_fits_a_screen(self):
        self.assertEqual(len(PAGES), 5)
        for page in PAGES:
            self.assertLessEqual(len(page.read_text(encoding="utf-8").splitlines()), MOST_LINES, page.name)

    def test_each_is_linked_from_the_first_page(self):
        first = (ROOT / "README.md").read_text(encoding="utf-8")
        for page in PAGES:
            self.assertIn(f"(tools/guides/{page.name})", first)

    def test_options_of_rota_exist(self):
        helps, found = {}, 0
        for page in (*PAGES, ROOT / "README.md"):
            for line in commands(page):
                for call in re.findall(r"(?<![\w/.-])rota (?:run|status|control|doctor|ci|try|trace|sim|demo)\b[^|;]*", line):
                    words = call.split(" -- ")[0].split()
                    if words[1] not in helps:
                        helps[words[1]] = self.checked(ROTA, words[1], "--help").stdout
                    for option in (word for word in words[2:] if word.startswith("--")):
                        self.assertIn(option, helps[words[1]], f"{page.name}: {line}")
                    found += 1
        self.assertGreater(found, 30)

    def test_settings_can_be_read(self):
        found = 0
        for page in PAGES:
            for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
                if language != "toml":
                    continue
                found += 1
                file = self.scratch / f"{page.stem}.toml"
                file.write_text(text, encoding="utf-8")
                checked = self.checked(ROTAD, "--check", "--config", file)
                # The users of the examples are nobody here.
                complaints = [line for line in checked.stderr.splitlines() if "alice" not in line and "no cgroup" not in line]
                self.assertEqual(complaints, [], f"{page.name}: {checked.stderr}")
        self.assertGreaterEqual(found, 2)

    def test_the_page_about_notebooks_shows_the_kernel(self):
        shown = [text for language, text in BLOCK.findall((GUIDES / "NOTEBOOKS.md").read_text(encoding="utf-8")) if language == "json"]
        self.assertEqual(shown, [(EXAMPLES / "kernel/kernel.json").read_text(encoding="utf-8")])

    def test_containers_are_given_the_same_by_each_way(self):
        mounted = set(re.findall(r"^ +- (/\S+:/\S+)$", (EXAMPLES / "compose.yaml").read_text(encoding="utf-8"), re.MULTILINE))
        self.assertEqual(mounted, {"/usr/bin/rota:/usr/bin/rota:ro", "/usr/lib/rota:/usr/lib/rota:ro", "/run/rota:/run/rota"})
        runs = [line for line in commands(GUIDES / "CONTAINERS.md") if re.match(r"(docker|podman) run .*python train.py", line)]
        self.assertEqual(len(runs), 2)
        for line in runs:
            self.assertEqual(set(re.findall(r"-v (\S+)", line)), mounted, line)


class TaskProlog(Case):
    """Slurm's part is done here: its variables are set, and what the script exports is given to the task."""

    memory = "1G"

    def setUp(self):
        super().setUp()
        self.environment["PATH"] = f"{ROTA.parent}:{os.environ['PATH']}"
        self.script = self.scratch / "task-prolog"
        text = (EXAMPLES / "task-prolog").read_text(encoding="utf-8")
        self.assertIn("\nshard=10240\n", text)
        self.assertIn("    shard=10240\n", (GUIDES / "SLURM.md").read_text(encoding="utf-8"))
        self.script.write_text(text.replace("\nshard=10240\n", "\nshard=100\n"), encoding="utf-8")
        self.script.chmod(0o755)

    def exported(self, **environment):
        """What a task has in its environment after the script, on top of what it had."""
        done = self.checked(self.script, SLURM_JOB_ID="4711", **environment)
        self.assertEqual(done.stderr, "")
        lines = done.stdout.splitlines()
        for line in lines:
            self.assertRegex(line, r"^export \w+=.")
        return dict(line.removeprefix("export ").split("=", 1) for line in lines)

    def test_a_step_of_a_job_has_the_memory_of_its_shards(self):
        self.start_daemon()
        task = self.exported(SLURM_SHARDS_ON_NODE="2", SLURM_STEP_ID="0")
        self.assertEqual(task["ROTA_SESSION"], f"slurm-4711.0,gpu={200 * MIB}")
        self.assertTrue(task["LD_PRELOAD"].endswith("/librota.so"), task["LD_PRELOAD"])
        held = self.start(PROGRAMS / "memhog", "--bytes", "150M", "--hold", SLURM_JOB_ID="4711", **task)
        self.assertIn("ready", held.stdout.readline())
        client, = self.clients()
        self.assertIn("Slurm job 4711", json.dumps(client))
        # A second task of the step: both share the limit.
        second = self.call(PROGRAMS / "memhog", "--bytes", "150M", SLURM_JOB_ID="4711", **task)
        self.assertNotEqual(second.returncode, 0)
        self.assertIn("session Slurm job 4711 may have 200 MiB on each GPU", second.stderr)
        other = self.exported(SLURM_SHARDS_ON_NODE="2", SLURM_STEP_ID="1")
        self.checked(PROGRAMS / "memhog", "--bytes", "150M", "--rounds", "1", SLURM_JOB_ID="4711", **other)
        self.assertEqual(self.finish(held).returncode, 0)

    def test_a_step_of_a_batch_job_is_within_the_batchs_session(self):
        self.start_daemon()
        batch = self.exported(SLURM_SHARDS_ON_NODE="4")
        step = self.exported(SLURM_SHARDS_ON_NODE="1", SLURM_STEP_ID="0", **batch)
        self.assertEqual(step["ROTA_SESSION"], f"slurm-4711.batch,gpu={400 * MIB}:slurm-4711.0,gpu={100 * MIB}")
        self.assertEqual(step["LD_PRELOAD"], batch["LD_PRELOAD"])
        refused = self.call(PROGRAMS / "memhog", "--bytes", "150M", SLURM_JOB_ID="4711", **step)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("refused: this process has", refused.stderr)

    def test_a_job_without_shards_is_left_alone(self):
        done = self.checked(self.script, SLURM_JOB_ID="4711", CUDA_VISIBLE_DEVICES="0")
        self.assertEqual((done.stdout, done.stderr), ("", ""))

    def test_a_task_starts_also_where_there_is_no_rota(self):
        done = self.call(self.script, SLURM_JOB_ID="4711", SLURM_SHARDS_ON_NODE="2", PATH="/usr/bin:/bin")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "print rota: this task runs without rota, and without a limit on GPU memory\n")

    def test_a_task_is_told_that_rota_has_no_library_to_preload(self):
        folder = self.scratch / "without/bin"
        folder.mkdir(parents=True)
        shutil.copy(ROTA, folder)
        done = self.call(self.script, SLURM_JOB_ID="4711", SLURM_SHARDS_ON_NODE="2", PATH=f"{folder}:/usr/bin:/bin")
        self.assertEqual(done.returncode, 0)
        self.assertIn("librota.so: No such file or directory", done.stderr)
        self.assertEqual(done.stdout, "print rota: this task runs without rota, and without a limit on GPU memory\n")


class Notebooks(Case):
    """Jupyter's own client starts the kernel of the example."""

    # ctest labels: unsanitized
    def test_a_kernel_runs_under_rota_and_has_the_notebooks_name(self):
        python = python_with("jupyter_client", "ipykernel")
        self.start_daemon()
        self.environment["PATH"] = f"{ROTA.parent}:{os.environ['PATH']}"
        kernels = self.scratch / "jupyter/kernels"
        kernels.mkdir(parents=True)
        (kernels / "rota").symlink_to(EXAMPLES / "kernel")
        script = textwrap.dedent("""
            import sys
            from jupyter_client import KernelManager
            manager = KernelManager(kernel_name="rota")
            manager.start_kernel()
            client = manager.client()
            client.start_channels()
            client.wait_for_ready(timeout=60)
            def run(code):
                said = []
                client.execute_interactive(code, timeout=60, output_hook=lambda message: said.append(message["content"]))
                return "".join(content.get("text", "") or content.get("evalue", "") for content in said)
            try:
                print(run(sys.stdin.readline().replace(";;", chr(10))), flush=True)
                sys.stdin.readline()
                client.execute("while True: pass")
                client.get_iopub_msg(timeout=60)
                manager.interrupt_kernel()
                print(client.get_shell_msg(timeout=60)["content"]["status"], flush=True)
            finally:
                client.stop_channels()
                manager.shutdown_kernel()
            """)
        child = self.start(python, "-c", script, JUPYTER_PATH=str(self.scratch / "jupyter"), JUPYTER_RUNTIME_DIR=str(self.scratch / "runtime"),
                           IPYTHONDIR=str(self.scratch / "ipython"), JPY_SESSION_NAME="/home/alice/train.ipynb")
        cell = ["import ctypes, os", "cuda, p, c = ctypes.CDLL('libcuda.so.1'), ctypes.c_uint64(), ctypes.c_void_p()",
                "done = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0), cuda.cuCtxSetCurrent(c)]",
                "print(done + [cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(1 << 20))], os.getpid())"]
        child.stdin.write(";;".join(cell) + "\n")
        child.stdin.flush()
        said = child.stdout.readline()
        self.assertRegex(said, r"^\[0, 0, 0, 0\] \d+\n$")
        client, = self.clients()
        # `rota run` has become the kernel.
        self.assertEqual(client["pid"], int(said.split()[-1]))
        self.assertIn("/home/alice/train.ipynb", json.dumps(client))
        done = self.finish(child)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.split()[-1], "error")  # KeyboardInterrupt


def python_with(*modules):
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", f"import {', '.join(modules)}"], capture_output=True, check=False).returncode == 0:
            return python
    raise unittest.SkipTest(f"no Python here has {' and '.join(modules)} (pip install {' '.join(modules)})")


if __name__ == "__main__":
    unittest.main()
