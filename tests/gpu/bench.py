"""What every check of tests/gpu/run gets: the build under test, ways to run a command with and without it, a log."""
import importlib.util
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_MIB = 1024


class Skip(Exception):
    """What a check needs is not on this machine."""


class Bench:
    def __init__(self, build, out, pairs=1, gpu="", releases=None, bindings=None):
        self.pairs = pairs
        self.gpu = gpu
        self.against = None
        self.releases = releases or build / "tests/releases"
        self.bindings = bindings or build / "tests/bindings"
        self.build = build
        self.rota = build / "bin" / "rota"
        self.libraries = build / "lib" / "rota"
        self.out = out
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="rota-gpu-"))
        self.natives = {}
        self.environment = dict(
            os.environ, ROTA_GPU_MEM_LIMIT=f"{LIMIT_MIB}M", ROTA_LOG="info", XLA_PYTHON_CLIENT_PREALLOCATE="false",
            TORCHINDUCTOR_CACHE_DIR=str(self.scratch / "inductor"), TRITON_CACHE_DIR=str(self.scratch / "triton"),
            ROTA_SOCKET=str(self.scratch / "rotad.sock"), NCCL_NVLS_ENABLE="0")

    def call(self, command, timeout=240, text=None, **environment):
        """Runs the command, with `text` as its standard input."""
        result = subprocess.run([str(part) for part in command], env=dict(self.environment, **{name: str(value) for name, value in environment.items()}), input=text,
                                capture_output=True, text=True, timeout=timeout)
        name = re.sub(r"[^a-zA-Z0-9]+", "-", " ".join(pathlib.Path(str(part)).name for part in command))[:80]
        with open(self.out / "commands.log", "a") as log:
            log.write(f"$ {' '.join(map(str, command))}\nexit {result.returncode}\n{result.stdout[-4000:]}\n"
                      f"--- stderr ({name})\n{result.stderr[-6000:]}\n\n")
        return result

    def checked(self, command, **options):
        result = self.call(command, **options)
        assert result.returncode == 0, f"exit {result.returncode}: {(result.stderr or result.stdout)[-1500:]}"
        return result

    def under_rota(self, command, *options, **environment):
        result = self.checked([self.rota, "run", *options, "--", *command], **environment)
        assert "does not know the function that the driver returned" not in result.stderr, result.stderr[-1500:]
        return result

    def workload(self, name):
        return [sys.executable, HERE / "workloads.py", name]

    def native(self, name):
        if name not in self.natives:
            self.natives[name] = json.loads(self.checked(self.workload(name)).stdout.splitlines()[-1])
        return self.natives[name]

    def compiled(self, cudart):
        if not shutil.which("nvcc"):
            raise Skip("nvcc")
        program = self.scratch / f"vector_{cudart}"
        if not program.exists():
            # -G would change the code; line information is enough for the tools.
            self.checked(["nvcc", "-std=c++17", "-lineinfo", "-cudart", cudart, "-o", program, HERE / "programs/vector.cu"])
        return program


def same(got, wanted, path=""):
    """Equal structure, numbers within a relative 1e-4 (reductions may be reordered between runs)."""
    if isinstance(wanted, dict):
        assert got.keys() == wanted.keys(), f"{path}: {got} against {wanted}"
        for key in wanted:
            same(got[key], wanted[key], f"{path}.{key}")
    elif isinstance(wanted, list):
        assert len(got) == len(wanted), f"{path}: {got} against {wanted}"
        for index, value in enumerate(wanted):
            same(got[index], value, f"{path}[{index}]")
    elif isinstance(wanted, float):
        assert math.isclose(got, wanted, rel_tol=1e-4, abs_tol=1e-4), f"{path}: {got}, natively {wanted}"
    else:
        assert got == wanted, f"{path}: {got}, natively {wanted}"


def needs(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise Skip(module)
