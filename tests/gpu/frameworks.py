#!/usr/bin/env python3
"""Programs of several processes as frameworks start them, and what they ask of memory. Each prints one line of JSON.

    tests/gpu/frameworks.py NAME

framework_checks.py runs each natively and under rota and compares what they print. Plain device memory, at most 400 MiB a process.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
PATIENCE = 150  # seconds for any answer of another process


def memory_fraction():
    """A process may have 512 MiB of the GPU: more is out of memory, and a free makes memory available again."""
    import torch
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((512 << 20) / total)
    said = []

    def take(mib):
        try:
            said.append("had")
            return torch.ones(mib << 18, device="cuda")
        except torch.cuda.OutOfMemoryError:
            said[-1] = "refused"

    first = take(300)
    take(300)
    del first
    torch.cuda.empty_cache()
    second = take(400)
    return said + [float(second.sum())]


def add_one(tensors, added, done):
    received = tensors.get(timeout=PATIENCE)
    for tensor in received:
        tensor += 1
    __import__("torch").cuda.synchronize()
    added.put([float(tensor[-1]) for tensor in received])
    del tensor, received
    done.get(timeout=PATIENCE)


def exchange(method):
    """A parent hands tensors of many sizes to a child, which changes them: both see the same memory."""
    import torch
    import torch.multiprocessing
    processes = torch.multiprocessing.get_context(method)
    tensors, added, done = processes.Queue(), processes.Queue(), processes.Queue()
    child = processes.Process(target=add_one, args=(tensors, added, done))
    child.start()
    mine = [torch.full((1 << shift,), float(shift), device="cuda") for shift in range(24)]
    torch.cuda.synchronize()
    tensors.put(mine)
    theirs = added.get(timeout=PATIENCE)
    ours = [[float(tensor[0]), float(tensor[-1])] for tensor in mine]
    done.put(None)
    child.join()
    return [theirs, ours, child.exitcode]


def spawned():
    return exchange("spawn")


def forkserver():
    return exchange("forkserver")


def work(answers, index):
    import torch
    torch.manual_seed(index)
    matrix = torch.randn(256, 256, device="cuda", dtype=torch.float64)
    answers.put((index, float((matrix @ matrix.T).diagonal().sum())))


def forked():
    """A parent that has not touched the GPU forks workers that do; then it works itself."""
    import torch.multiprocessing
    processes = torch.multiprocessing.get_context("fork")
    answers = processes.Queue()
    workers = [processes.Process(target=work, args=(answers, index)) for index in range(3)]
    for worker in workers:
        worker.start()
    said = sorted(answers.get(timeout=PATIENCE) for _ in workers)
    for worker in workers:
        worker.join()
    work(answers, 3)
    return [said, answers.get(timeout=PATIENCE), [worker.exitcode for worker in workers]]


class OnTheGpu:
    """A data set whose items are computed on the GPU, in the loader's workers."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        import torch
        return (torch.arange(1000, device="cuda") * index).float()


class OnTheHost(OnTheGpu):
    def __getitem__(self, index):
        import torch
        return torch.arange(1000).float() * index


def data_loaders():
    """Workers that make tensors on the GPU, and workers whose batches are pinned and copied there."""
    import torch
    from torch.utils.data import DataLoader
    on_the_gpu = [float(batch.sum()) for batch in DataLoader(OnTheGpu(), batch_size=8, num_workers=2, multiprocessing_context="spawn")]
    pinned = [float(batch.to("cuda", non_blocking=True).sum())
              for batch in DataLoader(OnTheHost(), batch_size=8, num_workers=2, pin_memory=True, multiprocessing_context="forkserver")]
    return [on_the_gpu, pinned]


def actor():
    """Answers each line, a number, from a matrix that it keeps on the GPU."""
    import torch
    torch.manual_seed(int(os.environ["ACTOR"]))
    state = torch.randn(512, 512, device="cuda", dtype=torch.float64)
    for line in sys.stdin:
        state = torch.tanh(state * float(line))
        print(json.dumps(float(state.sum())), flush=True)


def process_tree():
    """A driver without a GPU of its own starts actors, as Ray does: one is killed and started again, the others go on."""
    def start(index):
        return subprocess.Popen([sys.executable, "-B", __file__, "actor"], env=dict(os.environ, ACTOR=str(index)), stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True, start_new_session=True)

    def ask(which, number):
        which.stdin.write(f"{number}\n")
        which.stdin.flush()
        return json.loads(which.stdout.readline())

    actors = [start(index) for index in range(3)]
    said = [[ask(each, 0.5) for each in actors]]
    actors[1].send_signal(signal.SIGKILL)
    actors[1].wait()
    said.append([ask(actors[0], 2), ask(actors[2], 2)])
    actors[1] = start(1)
    said.append([ask(each, 3) for each in actors])
    for each in actors:
        each.stdin.close()
    return said + [[each.wait(PATIENCE) for each in actors]]


def ranks(part, count=2):
    """What each of `count` ranks says, one GPU each."""
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        started = [subprocess.Popen([sys.executable, "-B", __file__, part, str(rank), folder + "/store"], stdout=subprocess.PIPE, text=True,
                                    env=dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count),
                                             CUBLAS_WORKSPACE_CONFIG=":4096:8"))
                   for rank in range(count)]
        said = [each.communicate(timeout=PATIENCE)[0] for each in started]
        return [json.loads(answer.splitlines()[-1]) if answer else None for answer in said] + [[each.returncode for each in started]]


def group():
    """Of a rank: torch, with a process group over NCCL."""
    import torch
    import torch.distributed as distributed
    rank, store = int(sys.argv[2]), sys.argv[3]
    torch.cuda.set_device(rank)
    torch.use_deterministic_algorithms(True)
    distributed.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2, device_id=torch.device("cuda", rank))
    return torch, distributed, rank


def say_and_leave(answer):
    """A communicator's end would wait for the other's."""
    print(json.dumps(answer), flush=True)
    os._exit(0)


def fsdp_rank():
    torch, distributed, rank = group()
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(3)
    model = torch.nn.Sequential(*[part for _ in range(4) for part in (torch.nn.Linear(1024, 1024), torch.nn.Tanh())]).cuda()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(4 + rank)
    data, losses = torch.randn(64, 1024, device="cuda"), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(data), data.flip(0))
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    distributed.barrier()
    say_and_leave(losses)


def fsdp():
    """Two ranks train a model whose weights are sharded over them: the losses, bit for bit."""
    return ranks("fsdp_rank")


def symmetric_rank():
    torch, distributed, rank = group()
    import torch.distributed._symmetric_memory as symmetric
    name = distributed.group.WORLD.group_name
    mine = symmetric.empty(1 << 16, dtype=torch.float32, device=f"cuda:{rank}")
    symmetric.rendezvous(mine, name)
    sums = []
    for step in range(50):
        mine.copy_(torch.arange(1 << 16, device="cuda") * (rank + 1) + step)
        sums.append(float(torch.ops.symm_mem.one_shot_all_reduce(mine, "sum", name).double().sum()))
    distributed.barrier()
    say_and_leave(sums)


def symmetric_memory():
    """PyTorch's symmetric memory: each rank's kernels read the other's memory."""
    return ranks("symmetric_rank")


def nvshmem_rank():
    torch, distributed, rank = group()
    import torch.distributed._symmetric_memory as symmetric
    symmetric.set_backend("NVSHMEM")
    mine = symmetric.empty(1 << 16, dtype=torch.float32, device=f"cuda:{rank}")
    theirs = symmetric.rendezvous(mine, distributed.group.WORLD.group_name).get_buffer(1 - rank, (1 << 16,), torch.float32)
    sums = []
    for step in range(50):
        mine.copy_(torch.arange(1 << 16, device="cuda") * (rank + 1) + step)
        distributed.barrier()
        sums.append(float((mine + theirs).double().sum()))
        distributed.barrier()
    say_and_leave(sums)


def nvshmem():
    """The same by NVSHMEM, which makes its heap by itself and maps that of the other rank."""
    return ranks("nvshmem_rank")


def mpi_rank():
    """Tensors of many sizes go around by MPI, each rank's to the next, and come back, out of GPU memory and into it."""
    import torch
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    rank, size = world.rank, world.size
    torch.cuda.set_device(rank % torch.cuda.device_count())
    sums = []
    for step in range(20):
        for shift in range(2, 25, 2):
            mine = torch.full((1 << shift,), float(100 * step + rank), device="cuda")
            received = torch.zeros_like(mine)
            torch.cuda.synchronize()
            world.Sendrecv(mine, dest=(rank + 1) % size, recvbuf=received, source=(rank - 1) % size)
            sums.append(float(received.double().mean()))
    print(json.dumps([rank, sums]), flush=True)


def mpi():
    """Open MPI with a UCX that knows CUDA (cuda_ipc, cuda_copy): the folder MPI has both, as README.md says."""
    prefix = pathlib.Path(os.environ["MPI"])
    ucx = next(prefix.rglob("libucx/lib/libucp.so.0")).parent
    environment = dict(os.environ, MPI4PY_LIBMPI=str(next(prefix.rglob("libmpi.so.40"))), UCX_MODULE_DIR=str(ucx / "ucx"), UCX_TLS="sm,self,cuda_copy,cuda_ipc",
                       OMPI_MCA_pml="ucx", OMPI_MCA_pml_ucx_tls="any", OMPI_MCA_pml_ucx_devices="any", OMPI_ALLOW_RUN_AS_ROOT="1",
                       OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", UCX_WARN_UNUSED_ENV_VARS="n")
    preload = [*filter(None, os.environ.get("LD_PRELOAD", "").split(":")), *(str(ucx / f"lib{name}.so.0") for name in ("ucm", "ucs", "uct", "ucp"))]
    command = [next(prefix.rglob("mpirun")), "--oversubscribe", "-n", "2", "-x", "LD_PRELOAD=" + ":".join(preload), sys.executable, "-B", __file__, "mpi_rank"]
    said = subprocess.run(list(map(str, command)), env=environment, stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    return sorted(json.loads(line) for line in said.stdout.splitlines() if line.startswith("[")) + [said.returncode]


ALL_REDUCE = r"""
extern "C" __global__ void all_reduce(const float* mine, const float* theirs, float* sum, unsigned* counts, unsigned* my_flags, unsigned* their_flags, int n) {
  const unsigned step = counts[blockIdx.x] + 1;
  for (int half = 0; half < 2; ++half) {  // both have written before either reads, and both have read before either writes again
    __syncthreads();
    if (threadIdx.x == 0) {
      const unsigned flag = 2 * step + half;
      volatile unsigned* told = their_flags + blockIdx.x;
      volatile unsigned* seen = my_flags + blockIdx.x;
      __threadfence_system();
      *told = flag;
      while ((int)(*seen - flag) < 0) {}
      __threadfence_system();
    }
    __syncthreads();
    if (half == 0)
      for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum[i] = mine[i] + ((volatile const float*)theirs)[i];
  }
  if (threadIdx.x == 0) counts[blockIdx.x] = step;
}
"""


def all_reduce_rank():
    """As servers do it: cudaMalloc, legacy IPC handles opened for lazy peer access, kernels that wait for each other's flags, in a captured graph."""
    import cupy
    import torch.distributed as distributed
    rank, store = int(sys.argv[2]), sys.argv[3]
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    cupy.cuda.Device(rank).use()
    runtime, words, blocks = cupy.cuda.runtime, 1 << 18, 16
    raw = [runtime.malloc(4 * words), runtime.malloc(4 * blocks)]
    for address, size in zip(raw, (4 * words, 4 * blocks)):
        runtime.memset(address, 0, size)
    runtime.deviceSynchronize()
    handles = [None, None]
    distributed.all_gather_object(handles, [runtime.ipcGetMemHandle(address) for address in raw])
    theirs = [runtime.ipcOpenMemHandle(handle, 1) for handle in handles[1 - rank]]
    memory = cupy.cuda.UnownedMemory(raw[0], 4 * words, None)
    mine = cupy.ndarray((words,), cupy.float32, cupy.cuda.MemoryPointer(memory, 0))
    summed, counts = cupy.zeros(words, cupy.float32), cupy.zeros(blocks, cupy.uint32)
    kernel = cupy.RawKernel(ALL_REDUCE, "all_reduce")
    stream, weights, sums = cupy.cuda.Stream(non_blocking=True), cupy.arange(words, dtype=cupy.float32) % 97, []
    arguments = (raw[0], theirs[0], summed, counts, raw[1], theirs[1], cupy.int32(words))
    arguments = tuple(cupy.uint64(each) if isinstance(each, int) else each for each in arguments)
    cupy.add(summed, weights, out=mine)  # compiled before the capture
    cupy.multiply(mine, cupy.float32(0.5), out=mine)
    runtime.deviceSynchronize()
    distributed.barrier()
    with stream:
        mine[:] = weights * (rank + 1)
        stream.begin_capture()
        kernel((blocks,), (256,), arguments)
        cupy.add(summed, weights, out=mine)
        cupy.multiply(mine, cupy.float32(0.5), out=mine)
        graph = stream.end_capture()
        for step in range(int(os.environ.get("STEPS", "400"))):
            graph.launch(stream)
            if step % 100 == 99:
                sums.append(float(summed.astype(cupy.float64).sum()))
    stream.synchronize()
    distributed.barrier()
    for address in theirs:
        runtime.ipcCloseMemHandle(address)
    distributed.barrier()
    for address in raw:
        runtime.free(address)
    say_and_leave(sums)


def custom_all_reduce():
    """Two ranks of a tensor-parallel server with an all-reduce of its own."""
    return ranks("all_reduce_rank")


def main():
    if len(sys.argv) < 2 or not callable(globals().get(sys.argv[1])):
        sys.exit(f"usage: {pathlib.Path(__file__).name} NAME")
    answer = globals()[sys.argv[1]]()
    if answer is not None:
        print(json.dumps({"result": answer}), flush=True)


if __name__ == "__main__":
    main()
