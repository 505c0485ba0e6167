"""NCCL with one rank (use_nccl_two_gpus.py has two): through PyTorch's process group, through CuPy and directly; see parts.py."""
import ctypes
import os
import tempfile

import parts
from nccl_ranks import each_rank
from parts import part


@part("torch")
def torch_process_group():
    with tempfile.TemporaryDirectory() as folder:
        return each_rank(0, 1, os.path.join(folder, "store"))


@part("cupy")
def through_cupy():
    import cupy
    from cupy.cuda import nccl
    group = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    x = cupy.arange(1000, dtype=cupy.float32)
    y = cupy.zeros_like(x)
    group.allReduce(x.data.ptr, y.data.ptr, x.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, cupy.cuda.Stream.null.ptr)
    cupy.cuda.Stream.null.synchronize()
    group.destroy()
    return float(y.sum())


@part("direct")
def direct():
    """NCCL's own allocator, a registered buffer, a non-blocking stream."""
    import torch
    nccl = parts.library("libnccl.so")
    communicator, buffer, handle = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    stream = torch.cuda.Stream()
    parts.check(nccl.ncclCommInitAll(ctypes.byref(communicator), 1, (ctypes.c_int * 1)(0)), "ncclCommInitAll")
    parts.check(nccl.ncclMemAlloc(ctypes.byref(buffer), ctypes.c_size_t(4 << 20)), "ncclMemAlloc")
    parts.check(nccl.ncclCommRegister(communicator, buffer, ctypes.c_size_t(4 << 20), ctypes.byref(handle)), "ncclCommRegister")
    parts.check(nccl.ncclAllReduce(buffer, buffer, ctypes.c_size_t(1 << 20), 7, 0, communicator, ctypes.c_void_p(stream.cuda_stream)),
                "ncclAllReduce")
    stream.synchronize()
    parts.check(nccl.ncclCommDeregister(communicator, handle), "ncclCommDeregister")
    parts.check(nccl.ncclMemFree(buffer), "ncclMemFree")
    parts.check(nccl.ncclCommDestroy(communicator), "ncclCommDestroy")


if __name__ == "__main__":
    parts.main("nvidia-nccl-cu13", "torch", "cupy-cuda13x")
