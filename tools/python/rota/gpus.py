"""The GPUs of this process under `rota ci --gpus-per-test`, where Python looks for them.

The process would get them in its first cuInit, in the C library's environment. Frameworks that count GPUs by NVML read
os.environ, which is a copy from the interpreter's start: so they are asked for early, and copied.
"""
import ctypes
import os

_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROTA_CI_GPUS")


def choose(own):
    """`own`: other GPUs than those of the process that started this one."""
    if "ROTA_CI_GPUS" not in os.environ:
        return
    try:
        # Brings rota's core in, and does not initialize CUDA: children that are forked may still do that.
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(ctypes.c_int()))
        ask = ctypes.CDLL("librota-core.so", mode=os.RTLD_LAZY | os.RTLD_NOLOAD).rota_core_choose_gpus
    except (OSError, AttributeError):  # no driver, or not under rota
        return
    ask(ctypes.c_uint32(own))
    getenv = ctypes.CDLL(None).getenv
    getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_char_p
    for name in _VARIABLES:
        value = getenv(name.encode("ascii"))
        if value is not None and os.environ.get(name) != os.fsdecode(value):
            os.environ[name] = os.fsdecode(value)
