"""An installed prefix works by itself, and running ldconfig over it does not make rota's libraries the system's libcuda.so.1 or libnvidia-ml.so.1."""
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import unittest

from harness import BUILD, Case, PROGRAMS, ROOT


class Installed(Case):
    def setUp(self):
        super().setUp()
        self.prefix = self.scratch / "prefix"
        subprocess.run(["cmake", "--install", str(BUILD), "--prefix", str(self.prefix)], check=True, capture_output=True)

    def test_programs_run_from_an_installed_prefix(self):
        simgpu = self.prefix / "lib/rota/simgpu"
        self.assertTrue((simgpu / "libcuda.so.1").exists(), sorted(map(str, self.prefix.rglob("*"))))
        self.assertTrue((self.prefix / "lib/rota/librota-nvml.so").exists())
        result = self.checked(self.prefix / "bin/rota", "run", "--", PROGRAMS / "saxpy", ROTA_LOG="info",
                              ROTA_REAL_LIBCUDA=str(simgpu / "libcuda.so.1"), LD_LIBRARY_PATH=str(simgpu),
                              ROTA_SIM_KERNELS=str(simgpu / "libsimkernels.so"))
        self.assertNotIn("without rota", result.stderr)
        traced = self.checked(self.prefix / "bin/rota", "trace", "--dir", self.scratch / "trace", "--", PROGRAMS / "saxpy",
                              ROTA_REAL_LIBCUDA=str(simgpu / "libcuda.so.1"),
                              ROTA_SIM_KERNELS=str(simgpu / "libsimkernels.so"))
        self.assertIn("cuLaunchKernel", traced.stdout + traced.stderr)
        older = self.scratch / "older/libcuda.so.1"
        self.checked(simgpu / "simgpu-driver", "--version", "11.2", "-o", older)
        self.assertIn("ok", self.checked(self.prefix / "bin/rota", "run", "--", PROGRAMS / "saxpy",
                                         ROTA_REAL_LIBCUDA=str(older)).stdout)

    # ctest labels: unsanitized
    def test_the_demo_needs_nothing_but_the_prefix(self):
        temporary = self.scratch / "tmp"
        temporary.mkdir()
        # As in an empty container: no HOME, and no GPU.
        bare = {"PATH": "/nowhere", "TMPDIR": str(temporary), "ROTA_REAL_LIBCUDA": "/nowhere/libcuda.so.1"}
        demo = [self.prefix / "bin/rota", "demo"]
        shown = subprocess.run([*demo, "--json"], env=bare, cwd="/", check=True, capture_output=True, text=True)
        self.assertEqual([copy["result"] for copy in json.loads(shown.stdout)["under_rota"]["copies"]], ["right", "right"])
        self.assertEqual((shown.stderr, list(temporary.iterdir())), ("", []))
        # Without simulated GPUs the demo has nothing to run on.
        (self.prefix / "lib/rota/simgpu").rename(self.prefix / "simgpu")
        refused = subprocess.run(demo, env=bare, cwd="/", capture_output=True, text=True, check=False)
        self.assertEqual((refused.returncode, refused.stdout), (1, ""))
        self.assertRegex(refused.stderr, r"^rota demo: no GPU works here \(no CUDA driver: /nowhere/libcuda\.so\.1: .*\), and for a simulated GPU "
                                         r".*/lib/rota/simgpu/libcuda\.so\.1 is missing: install rota again\n$")
        (self.prefix / "lib/rota/rota-demo").unlink()
        refused = subprocess.run(demo, env=bare, cwd="/", capture_output=True, text=True, check=False)
        self.assertEqual((refused.returncode, refused.stdout), (1, ""))
        self.assertIn("/lib/rota/rota-demo is missing: install rota again", refused.stderr)

    # ctest labels: unsanitized
    def test_a_kernel_is_written_against_the_installed_header(self):
        example = self.prefix / "share/rota/simgpu/scale.cpp"
        self.assertTrue(example.exists(), sorted(map(str, self.prefix.rglob("*"))))
        lines = example.read_text().splitlines()
        compile_line, run_line = (line.removeprefix("//").strip() for line in lines[1:3])
        (self.scratch / "scale.cpp").write_text(example.read_text())
        subprocess.run(compile_line.replace("PREFIX", str(self.prefix)), shell=True, check=True, cwd=self.scratch)
        ptx = ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry _Z5scalePffi(.param .u64 d, .param .f32 f, .param .u32 n) { ret; }"
        program = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, module, function, data = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)
values = (ctypes.c_float * 3)(1, 2, 3)
cuda.cuMemAlloc_v2(ctypes.byref(data), ctypes.c_size_t(12)), cuda.cuMemcpyHtoD_v2(data, values, ctypes.c_size_t(12))
cuda.cuModuleLoadData(ctypes.byref(module), b\'\'\'%s\'\'\'), cuda.cuModuleGetFunction(ctypes.byref(function), module, b"_Z5scalePffi")
factor, count = ctypes.c_float(2.5), ctypes.c_int(3)
arguments = (ctypes.c_void_p * 3)(*(ctypes.addressof(each) for each in (data, factor, count)))
cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, arguments, None)
cuda.cuMemcpyDtoH_v2(values, data, ctypes.c_size_t(12))
print(*values)
""" % ptx
        (self.scratch / "program").write_text("#!" + sys.executable + program)
        (self.scratch / "program").chmod(0o755)
        run = run_line.replace("rota sim", f"{self.prefix}/bin/rota sim", 1)
        result = self.call("sh", "-c", f"cd {self.scratch} && {run}", ROTA_SIM_KERNELS="")
        self.assertEqual(result.stdout, "2.5 5.0 7.5\n", result.stderr)

    def test_pages_are_in_the_prefix_and_their_links_lead_somewhere(self):
        pages = self.prefix / "share/doc/rota"
        for page in "README.md", "LICENSE", "tools/simgpu/README.md", "scheduler/README.md", "runtime/memory/README.md":
            self.assertTrue((pages / page).exists(), page)
        for page in pages.rglob("*.md"):
            for link in re.findall(r"\]\(([^)#:]+\.md)", page.read_text()):
                self.assertTrue((page.parent / link).exists(), f"{page.relative_to(pages)} leads to {link}")

    def test_the_debs_file_of_settings_can_be_read_with_and_without_its_comments(self):
        text = (ROOT / "tools/package/deb/rotad.toml").read_text()
        file = self.scratch / "rotad.toml"
        for content in text, re.sub(r"^#(?=[\[\w\"])", "", text, flags=re.MULTILINE):
            file.write_text(content)
            self.assertIn("can be read", self.checked(self.prefix / "bin/rotad", "--check", "--config", file).stdout)

    # ctest labels: unsanitized
    def test_man_pages_and_completions_say_what_the_programs_do(self):
        written = self.scratch / "written"
        self.checked(ROOT / "tools/pages/write", self.prefix / "bin", "-o", written)
        installed = {"rota.1": "share/man/man1/rota.1", "rotad.8": "share/man/man8/rotad.8", "rotad.toml.5": "share/man/man5/rotad.toml.5",
                     "rota.bash": "share/bash-completion/completions/rota",
                     "_rota": "share/zsh/site-functions/_rota", "rota.fish": "share/fish/vendor_completions.d/rota.fish"}
        for name, path in installed.items():
            self.assertEqual((self.prefix / path).read_text(), (written / name).read_text(), "run tools/pages/write build/release/bin")
        page = (self.prefix / installed["rota.1"]).read_text()
        for word in "ROTA_GPU_MEM_LIMIT", "\\-\\-unregistered", "ROTA TRACE SHOW", "125":
            self.assertIn(word, page)
        if shutil.which("groff"):
            for name in "rota.1", "rotad.8", "rotad.toml.5":
                checked = self.checked("groff", "-man", "-Tutf8", "-ww", self.prefix / installed[name])
                self.assertEqual(checked.stderr, "")

    # ctest labels: unsanitized
    def test_bash_completes_commands_options_and_values(self):
        def completed(*words):
            script = f"""
source {self.prefix}/share/bash-completion/completions/rota
COMP_WORDS=({" ".join(f"'{word}'" for word in words)}) COMP_CWORD={len(words) - 1}
_rota
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
            return self.checked("bash", "--norc", "-c", script).stdout.split()
        self.assertEqual(completed("rota", "st"), ["status"])
        self.assertEqual(completed("rota", "sim", "--gpu", "h"), ["h200", "h100"])
        self.assertEqual(completed("rota", "ci", "--sim", "h"), ["h200", "h100"])
        self.assertEqual(completed("rota", "run", "--memory", "s"), ["swap"])
        self.assertEqual(completed("rota", "control", "mode", "e"), ["exclusive"])
        self.assertEqual(completed("rota", "control", "m"), ["mode"])
        self.assertEqual(completed("rota", "trace", "show", "--lo"), ["--lookups"])
        self.assertIn("groups", completed("rota", "run", "--", "group"))

    # ctest labels: unsanitized
    def test_fish_completes_commands_options_and_values(self):
        if not shutil.which("fish"):
            self.skipTest("fish is not installed")
        page = self.prefix / "share/fish/vendor_completions.d/rota.fish"

        def completed(line):
            environment = {"HOME": str(self.scratch), "PATH": "/usr/bin:/bin"}
            return [each.split("\t")[0] for each in self.checked("fish", "--no-config", "-c", f"source {page}; complete -C '{line}'", **environment).stdout.splitlines()]
        self.assertEqual(completed("rota st"), ["status"])
        self.assertIn("h100", completed("rota sim --gpu h"))
        self.assertIn("h100", completed("rota ci --sim h"))
        self.assertEqual(completed("rota control mode e"), ["exclusive"])
        self.assertIn("swap", completed("rota run --memory s"))
        self.assertEqual(completed("rota trace show --lo"), ["--lookups"])

    # ctest labels: unsanitized
    def test_zsh_completes_commands_options_and_values(self):
        if not shutil.which("zsh"):
            self.skipTest("zsh is not installed")
        child, terminal = pty.fork()
        if child == 0:
            os.execve(shutil.which("zsh"), ["zsh", "-f", "-i"], {"TERM": "dumb", "HOME": str(self.scratch), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"})
        said = ""

        def after(text, wanted):
            """Types it, and waits until that has appeared."""
            nonlocal said
            begin = len(said)
            os.write(terminal, text.encode())
            deadline = time.monotonic() + 30
            while wanted not in said[begin:]:
                if not select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
                    self.fail(f"after {text!r} there was no {wanted!r} in {said[begin:]!r}")
                said += os.read(terminal, 65536).decode(errors="replace")
        try:
            after(f"PS1='> '; fpath=({self.prefix}/share/zsh/site-functions $fpath); autoload -Uz compinit; compinit -u -D; print rea''dy\n", "ready")
            for typed, wanted in ("rota st", "rota status "), ("rota run --gpu-m", "--gpu-mem "), ("rota run --memory s", "swap "), \
                    ("rota trace show --lo", "--lookups "), ("rota trace sho", "show "):
                after(typed + "\t", wanted)
                after("\x15print do''ne\n", "done")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(terminal)

    # ctest labels: unsanitized
    def test_the_generator_is_a_component_that_works_by_itself(self):
        self.assertFalse((self.prefix / "bin/rota-codegen").exists(), "it is for developers")
        if not (BUILD / "bin/rota-codegen").exists():
            self.skipTest("this build has no rota-codegen")
        prefix = self.scratch / "codegen"
        subprocess.run(["cmake", "--install", str(BUILD), "--prefix", str(prefix), "--component", "codegen"], check=True, capture_output=True)
        data = prefix / "share/rota/codegen"
        self.assertEqual({path.name for path in prefix.iterdir()}, {"bin", "share"})
        self.checked(prefix / "bin/rota-codegen", "generate", "--root", data, "-o", self.scratch / "generated")
        for path in sorted((data / "generated").iterdir()):
            written = self.scratch / "generated" / path.name
            if written.exists():
                self.assertEqual(written.read_bytes(), path.read_bytes(), path.name)
        self.assertTrue((self.scratch / "generated/driver_symbols.h").exists())
        self.assertTrue((data / "cuda_headers/fetch").stat().st_mode & 0o111)

    def test_ldconfig_over_the_prefix_makes_no_link_to_a_shim(self):
        library_folder = next(path.parent for path in self.prefix.rglob("rota") if path.parent.name.startswith("lib"))
        ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
        configuration = self.scratch / "ld.so.conf"
        configuration.write_text(f"{library_folder}\n")
        subprocess.run([ldconfig, "-f", str(configuration), "-C", str(self.scratch / "cache")], check=True, capture_output=True)
        self.assertEqual([path for path in library_folder.iterdir() if path.name.startswith(("libcuda", "libnvidia"))], [])
        printed = subprocess.run([ldconfig, "-p", "-C", str(self.scratch / "cache")], check=True, capture_output=True, text=True)
        self.assertNotIn(str(library_folder / "rota"), printed.stdout)


if __name__ == "__main__":
    unittest.main()
