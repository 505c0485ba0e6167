"""What programs with a limit hear from NVML, and that without one they hear what they hear natively.

By ctypes rather than by NVIDIA's Python binding, which need not be there; that is asked too, where it is."""
import json
import shutil
import sys

from bench import LIMIT_MIB, Skip, needs

MIB = 2**20

# All GPUs' total, free and used bytes, by both forms of the query.
MEMORY = """
import ctypes, json
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
count = ctypes.c_uint()
assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
def asked(index):
    device, first, second = ctypes.c_void_p(), (ctypes.c_uint64 * 3)(), (ctypes.c_uint64 * 5)(0x02000028)
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, first) == 0
    assert nvml.nvmlDeviceGetMemoryInfo_v2(device, second) == 0
    return {"total": first[0], "free": first[1], "used": first[2],
            "total_v2": second[1], "reserved_v2": second[2], "free_v2": second[3], "used_v2": second[4]}
"""
ALL_GPUS = MEMORY + "print(json.dumps([asked(index) for index in range(count.value)]))"

# PyTorch on GPU 0 with a tensor of 256 MiB: what CUDA says, what NVML says, and what PyTorch's own NVML queries say.
TORCH = MEMORY + """
import os, torch
tensor = torch.zeros(64 << 20, dtype=torch.float32, device="cuda")
torch.cuda.synchronize()
uuid, device = str(torch.cuda.get_device_properties(0).uuid), ctypes.c_void_p()
assert nvml.nvmlDeviceGetHandleByUUID(("GPU-" + uuid.removeprefix("GPU-")).encode(), ctypes.byref(device)) == 0
index = ctypes.c_uint()
assert nvml.nvmlDeviceGetIndex(device, ctypes.byref(index)) == 0
free, total = torch.cuda.mem_get_info(0)
number, entries = ctypes.c_uint(64), (ctypes.c_uint64 * (3 * 64))()
assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(number), entries) == 0
own = [entries[3 * i + 1] for i in range(number.value) if entries[3 * i] & 0xffffffff == os.getpid()]
try:
    library = torch.cuda.device_memory_used(0)
except (AttributeError, ImportError, ModuleNotFoundError):  # older, or without NVIDIA's Python binding
    library = None
print(json.dumps({"cuda": [total, free], "nvml": asked(index.value), "own": own, "torch": library}))
"""

BINDING = """
import json, pynvml
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
infos = [pynvml.nvmlDeviceGetMemoryInfo(handle) for handle in handles]
print(json.dumps([[info.total, info.free, info.used] for info in infos]))
"""


def last_json(result):
    return json.loads(next(line for line in reversed(result.stdout.splitlines()) if line[:1] in "[{"))


def of_a_limit(seen, used):
    return (seen["total"], seen["used"], seen["free"]) == (LIMIT_MIB * MIB, used, LIMIT_MIB * MIB - used)


def nvml_here(bench):
    if not shutil.which("nvidia-smi"):
        raise Skip("nvidia-smi")
    if not (bench.libraries / "librota-nvml.so").exists():
        raise Skip("librota-nvml.so in this build")
    mig = bench.call(["nvidia-smi", "--query-gpu=mig.mode.current", "--format=csv,noheader"]).stdout
    if "Enabled" in mig:
        raise Skip("GPU without MIG instances, whose memory is left as it is,")


def smi(bench, *prefix, **environment):
    """MiB of each GPU by nvidia-smi: total and used."""
    command = [*prefix, "nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"]
    return [[int(word) for word in line.split(",")] for line in bench.checked(command, **environment).stdout.splitlines()]


def nvidia_smi_shows_a_limit(bench):
    nvml_here(bench)
    shown = smi(bench, bench.rota, "run", "--")
    assert shown and all(gpu == [LIMIT_MIB, 0] for gpu in shown), shown
    table = bench.checked([bench.rota, "run", "--", "nvidia-smi"]).stdout
    assert f"/ {LIMIT_MIB:>6}MiB" in table or f"{LIMIT_MIB}MiB" in table, table
    return f"{len(shown)} GPUs"


def nvml_without_a_limit_says_what_it_says_natively(bench):
    nvml_here(bench)
    native, under = smi(bench, ROTA_GPU_MEM_LIMIT=""), smi(bench, bench.rota, "run", "--", ROTA_GPU_MEM_LIMIT="")
    assert [total for total, _ in native] == [total for total, _ in under], (native, under)
    before = last_json(bench.checked([sys.executable, "-c", ALL_GPUS], ROTA_GPU_MEM_LIMIT=""))
    after = last_json(bench.under_rota([sys.executable, "-c", ALL_GPUS], ROTA_GPU_MEM_LIMIT=""))
    for native_gpu, gpu in zip(before, after, strict=True):
        for member in ("total", "total_v2", "reserved_v2"):
            assert gpu[member] == native_gpu[member], (member, before, after)
        # Others may use the GPU meanwhile; a GPU's own bookkeeping is far below this.
        assert abs(gpu["free"] - native_gpu["free"]) < 2048 * MIB, (before, after)
    # Every answer that names no memory, whole: what is plugged in, and what the driver is.
    listing = ["nvidia-smi", "-L"]
    assert bench.checked(listing).stdout == bench.checked([bench.rota, "run", "--", *listing]).stdout
    query = ["nvidia-smi", "--query-gpu=name,uuid,pci.bus_id,driver_version,vbios_version,compute_cap", "--format=csv"]
    assert bench.checked(query).stdout == bench.checked([bench.rota, "run", "--", *query]).stdout
    return f"{len(after)} GPUs"


def nvml_in_python_shows_a_limit(bench):
    nvml_here(bench)
    for gpu in last_json(bench.under_rota([sys.executable, "-c", ALL_GPUS])):
        assert of_a_limit(gpu, 0), gpu
        assert [gpu["total_v2"], gpu["reserved_v2"], gpu["free_v2"]] == [gpu["total"], 0, gpu["free"]], gpu
    needs("pynvml")
    infos = last_json(bench.under_rota([sys.executable, "-W", "ignore", "-c", BINDING]))
    assert all(info == [LIMIT_MIB * MIB, LIMIT_MIB * MIB, 0] for info in infos), infos
    return f"{len(infos)} GPUs, by pynvml too"


def nvml_and_cuda_say_the_same_to_pytorch(bench):
    nvml_here(bench)
    needs("torch")
    notes = []
    for mode in ("managed", "native"):
        seen = last_json(bench.under_rota([sys.executable, "-W", "ignore", "-c", TORCH], ROTA_MEMORY=mode))
        total, free = seen["cuda"]
        assert total == LIMIT_MIB * MIB and total - free >= 256 * MIB, seen
        assert of_a_limit(seen["nvml"], total - free), seen
        # What is not free is also the context. (Within a container the driver may name processes by numbers that are not
        # theirs there.)
        assert all(256 * MIB <= own <= total - free for own in seen["own"]), seen
        assert seen["torch"] in (None, total - free), seen
        notes.append(f"{mode}: {(total - free) // MIB} MiB used, {len(seen['own'])} of the driver's processes")
    return "; ".join(notes)


CHECKS = [nvidia_smi_shows_a_limit, nvml_without_a_limit_says_what_it_says_natively, nvml_in_python_shows_a_limit,
          nvml_and_cuda_say_the_same_to_pytorch]
