"""Frameworks' ways with several processes (frameworks.py): the same as natively, by default and, where it can be, with Unified Memory."""
import ctypes
import json
import subprocess
import sys

from bench import HERE, Skip, needs

MODES = ("", "managed")  # "": what rota does if it is told nothing
# Neither NCCL nor PyTorch uses multicast objects here.
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def command_of(name):
    return [sys.executable, "-B", HERE / "frameworks.py", name]


def last(result):
    return json.loads(next(line for line in reversed(result.stdout.splitlines()) if line.startswith("{")))


def gpus():
    count = ctypes.c_int(0)
    driver = ctypes.CDLL("libcuda.so.1")
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def needs_two_gpus():
    if gpus() < 2:
        raise Skip("second GPU")


def as_natively(bench, name, modes, **environment):
    environment = dict(ENVIRONMENT, **environment)
    native = last(bench.checked(command_of(name), **environment))
    for mode in modes:
        chosen = {"ROTA_MEMORY": mode} if mode else {}
        said = last(bench.under_rota(command_of(name), **environment, **chosen))
        assert said == native, f"{mode or 'default'} mode: {said}, natively {native}"
    return native


def check(name, *modules, two=False, modes=MODES, called=None, **environment):
    def run(bench):
        needs(*modules)
        if two:
            needs_two_gpus()
        as_natively(bench, name, modes, **environment)

    run.__name__ = f"{called or name}_is_as_natively"
    return run


def two_servers_with_an_all_reduce_of_their_own_take_turns(bench):
    """Their kernels wait for each other's: both ranks of one get their GPUs together, also where the two servers exclude each other."""
    needs("torch", "cupy")
    needs_two_gpus()
    environment = dict(bench.environment, **ENVIRONMENT, ROTA_SOCKET=str(bench.scratch / "rotad-servers.sock"), STEPS="20000")
    command = list(map(str, command_of("custom_all_reduce")))
    native = last(bench.checked(command, **ENVIRONMENT, STEPS="20000"))
    both = [subprocess.Popen([str(bench.rota), "run", "--mode", "exclusive", "--quantum", "200ms", "--", *command], env=environment, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for each in both:
        out, err = each.communicate(timeout=240)
        with open(bench.out / "commands.log", "a") as log:
            log.write(f"$ two servers\nexit {each.returncode}\n{out}\n{err[-3000:]}\n")
        assert each.returncode == 0 and json.loads(out.splitlines()[-1]) == native, (each.returncode, out, err[-1500:])


def where_it_works(name, *modules, environment=None):
    """A check of what has to be brought along, or is not in every build: skipped where it fails natively."""
    def run(bench):
        needs(*modules)
        needs_two_gpus()
        more = environment(bench) if environment else {}
        native = bench.call(command_of(name), **ENVIRONMENT, **more)
        if native.returncode != 0 or "null" in native.stdout:
            raise Skip(f"{name} that works natively: {(native.stderr or native.stdout)[-300:]!r}")
        as_natively(bench, name, ("",), **more)

    run.__name__ = f"{name}_is_as_natively"
    return run


def folder_of_mpi(bench):
    folder = bench.rota.parents[1] / "tests/mpi"
    if not folder.is_dir():
        raise Skip("MPI")
    return {"MPI": str(folder)}


CHECKS = [
    check("memory_fraction", "torch"),
    check("spawned", "torch", modes=("",), called="tensors_handed_to_a_spawned_child"),
    check("forkserver", "torch", modes=("",), called="tensors_handed_to_a_forkserver_s_child"),
    check("spawned", "torch", modes=("",), called="expandable_segments_handed_to_a_child", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
    check("forked", "torch"),
    check("data_loaders", "torch", modes=("",)),
    check("process_tree", "torch"),
    check("fsdp", "torch", two=True),
    check("symmetric_memory", "torch", two=True),
    check("custom_all_reduce", "torch", "cupy", two=True, modes=("",)),
    where_it_works("nvshmem", "torch", environment=lambda bench: {"ROTA_GPU_MEM_LIMIT": ""}),  # its heap is a GiB and more
    where_it_works("mpi", "torch", "mpi4py", environment=folder_of_mpi),
    two_servers_with_an_all_reduce_of_their_own_take_turns,
]
