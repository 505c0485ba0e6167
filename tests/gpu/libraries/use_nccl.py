"""NCCL with one rank (two need two GPUs): through PyTorch's process group, through CuPy and directly; see parts.py."""
import ctypes
import os
import tempfile

import parts
from parts import part


def each_rank(rank, ranks, store):
    """Every collective once; returns what the rank's sum came to."""
    import torch
    import torch.distributed as distributed
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=ranks,
                                   device_id=torch.device("cuda", rank))
    x = torch.full((1 << 16,), rank + 1.0, device="cuda")
    distributed.all_reduce(x)
    distributed.broadcast(x, 0)
    gathered = [torch.empty_like(x) for _ in range(ranks)]
    distributed.all_gather(gathered, x)
    out = torch.empty(x.numel() // ranks, device="cuda")
    distributed.reduce_scatter_tensor(out, x)
    distributed.all_to_all_single(torch.empty_like(x), x)
    if ranks > 1:
        other = torch.empty_like(x)
        for request in distributed.batch_isend_irecv([distributed.P2POp(distributed.isend, x, (rank + 1) % ranks),
                                                      distributed.P2POp(distributed.irecv, other, (rank - 1) % ranks)]):
            request.wait()
    distributed.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        distributed.all_reduce(y)
    graph.replay()
    value = y.double().sum().item()
    torch.cuda.synchronize()
    del graph
    half = distributed.new_group([0])
    if rank == 0:
        distributed.all_reduce(x, group=half)
        torch.cuda.synchronize()
    distributed.destroy_process_group()
    return value


@part("torch")
def torch_process_group():
    with tempfile.TemporaryDirectory() as folder:
        return each_rank(0, 1, os.path.join(folder, "store"))


def one_of_two(rank, store, answers):
    answers.put((rank, each_rank(rank, 2, store)))


@part("torch_two_gpus")
def torch_two_gpus():
    """Where the machine has two: one process a GPU."""
    import torch
    if torch.cuda.device_count() < 2:
        return None
    import torch.multiprocessing as multiprocessing
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        children = [context.Process(target=one_of_two, args=(rank, os.path.join(folder, "store"), answers)) for rank in range(2)]
        for child in children:
            child.start()
        values = dict(answers.get(timeout=120) for _ in children)
        for child in children:
            child.join(60)
    assert values[0] == values[1], values
    return values[0]


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
