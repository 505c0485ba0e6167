"""Every way in which frameworks take memory: the same results as natively, and figures that agree.

Programs run with managed and with native memory, all under ROTA_GPU_MEM_LIMIT.
"""
import json
import re
import sys

from bench import Skip, needs, same

MIB = 2**20

# A small training loop; then what the ledger says, by cuMemGetInfo under a limit, compared with what the allocator has reserved.
TORCH = """
import json, torch
torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
side, losses = torch.cuda.Stream(), []
for step in range(20):
    x = torch.randn(64 + 8 * step, 512, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = (x * 2).contiguous()
        x.record_stream(side)
    torch.cuda.current_stream().wait_stream(side)
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
torch.empty(1, dtype=torch.uint8, device="cuda").fill_(1)  # all modules are loaded

def books():
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return {"taken": total - free, "allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved(), "total": total}

before = books()
blocks = [torch.empty(n * 1000003, dtype=torch.uint8, device="cuda") for n in range(1, 20)]
for block in blocks[::2]:
    block.fill_(1)
del block, blocks[::3]
print(json.dumps({"result": losses, "before": before, "after": books()}))
"""

CUPY = """
import cupy, json, sys
if sys.argv[1] == "async":
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
total = 0.0
for step in range(30):
    with cupy.cuda.Stream(non_blocking=True):
        a = cupy.arange(100000 + 1000 * step, dtype=cupy.float64)
        b = cupy.sqrt(a) + step
        total += float(b.sum())
print(json.dumps({"result": total}))
"""

JAX = """
import jax, jax.numpy as jnp, json
x = jnp.ones((512, 512)) * 0.01
step = jax.jit(lambda a: jnp.tanh(a @ a.T) + a)
for _ in range(10):
    x = step(x)
print(json.dumps({"result": float(x.sum())}))
"""

# A captured graph that allocates, sets, copies out and frees; launched some times. By ctypes: no framework needed.
GRAPH = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
def ok(result, what):
    assert result == 0, (what, result)
u64, void = ctypes.c_uint64, ctypes.c_void_p
ok(cuda.cuInit(0), "init")
context, stream, graph, executable = void(), void(), void(), void()
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "retain")
ok(cuda.cuCtxSetCurrent(context), "current")
ok(cuda.cuStreamCreate(ctypes.byref(stream), 1), "stream")
def free():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ok(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "info")
    return free.value
host, words = (ctypes.c_uint * 4)(), 4 << 20
ok(cuda.cuStreamBeginCapture_v2(stream, 2), "begin")
address = u64()
ok(cuda.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(4 * words), stream), "alloc")
ok(cuda.cuMemsetD32Async(address, 77, ctypes.c_size_t(words), stream), "set")
ok(cuda.cuMemcpyDtoHAsync_v2(host, u64(address.value + 4 * words - 16), ctypes.c_size_t(16), stream), "copy")
ok(cuda.cuMemFreeAsync(address, stream), "free")
ok(cuda.cuStreamEndCapture(stream, ctypes.byref(graph)), "end")
before = free()
ok(cuda.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, u64(0)), "instantiate")
for _ in range(3):
    ok(cuda.cuGraphLaunch(executable, stream), "launch")
ok(cuda.cuStreamSynchronize(stream), "synchronize")
during = free()
reserved = u64()
ok(cuda.cuDeviceGetGraphMemAttribute(0, 2, ctypes.byref(reserved)), "attribute")
ok(cuda.cuGraphExecDestroy(executable), "destroy")
ok(cuda.cuDeviceGraphMemTrim(0), "trim")
after = free()
print(json.dumps({"result": list(host), "reserved": reserved.value, "fell": before - during, "rose": after - during}))
"""

IPC = """
import json, torch, torch.multiprocessing as processes
def child(queue, done):
    tensor = queue.get()
    done.put(float(tensor.sum()))
    del tensor
    queue.get()
if __name__ == "__main__":
    processes.set_start_method("spawn")
    queue, done = processes.Queue(), processes.Queue()
    other = processes.Process(target=child, args=(queue, done))
    other.start()
    tensor = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
    queue.put(tensor)
    print(json.dumps({"result": done.get(timeout=100)}))
    queue.put(None)
    other.join()
"""


def program(bench, text, *arguments):
    path = bench.scratch / f"memory_{abs(hash(text))}.py"
    path.write_text(text)
    return [sys.executable, path, *arguments]


def last(result):
    return json.loads(next(line for line in reversed(result.stdout.splitlines()) if line.startswith("{")))


def the_same_in_both_modes(bench, command, **environment):
    """What the program says natively, and by mode under rota."""
    native = last(bench.checked(command, **environment))
    said = {mode: last(bench.under_rota(command, ROTA_MEMORY=mode, **environment)) for mode in ("managed", "native")}
    for answer in said.values():
        same(answer["result"], native["result"])
    return native, said


def torch_with(configuration, name):
    def check(bench):
        needs("torch")
        _, said = the_same_in_both_modes(bench, program(bench, TORCH), PYTORCH_CUDA_ALLOC_CONF=configuration, ROTA_GPU_MEM_LIMIT="2G")
        figures = []
        for mode, answer in said.items():
            # What a limit leaves is without the context and its modules, which are there by then.
            more = {name: answer["after"][name] - answer["before"][name] for name in ("taken", "allocated", "reserved")}
            assert answer["after"]["total"] <= 2048 * MIB, answer
            # The ledger has all that the allocator has. Of a pool it has what is allocated, not what is cached unused.
            least = more["allocated"] if "cudaMallocAsync" in configuration else more["reserved"]
            assert least - 2 * MIB <= more["taken"] <= more["reserved"] + 2 * MIB, (mode, answer)
            assert answer["after"]["taken"] >= answer["after"]["allocated"], (mode, answer)
            figures.append(f"{mode}: {more['allocated'] / MIB:.1f} MiB allocated, {more['reserved'] / MIB:.1f} "
                           f"reserved, {more['taken'] / MIB:.1f} more in the ledger")
        return "; ".join(figures)

    check.__name__ = f"pytorch_with_{name}_gives_the_same_and_its_memory_is_on_the_books"
    return check


def cupy_with(pool):
    def check(bench):
        needs("cupy")
        the_same_in_both_modes(bench, program(bench, CUPY, pool))

    check.__name__ = f"cupy_with_its_{pool}_pool_gives_the_same"
    return check


def jax_gives_the_same_when_it_preallocates(bench):
    needs("jax")
    command = program(bench, JAX)
    native = last(bench.checked(command))
    for mode in "managed", "native":  # half of the GPU that it sees, which is the limit
        answer = last(bench.under_rota(command, ROTA_MEMORY=mode, XLA_PYTHON_CLIENT_PREALLOCATE="true",
                                       XLA_PYTHON_CLIENT_MEM_FRACTION="0.5"))
        same(answer["result"], native["result"])


def jax_gives_the_same_without_preallocation(bench):
    needs("jax")
    the_same_in_both_modes(bench, program(bench, JAX))


def a_graph_that_allocates_is_counted_by_what_the_driver_reserves(bench):
    native, said = the_same_in_both_modes(bench, program(bench, GRAPH))
    for mode, answer in said.items():
        assert answer["reserved"] == native["reserved"] > 0, (mode, answer, native)
        assert answer["fell"] == answer["rose"] == answer["reserved"], (mode, answer)
    return f"{native['reserved'] / MIB:.0f} MiB reserved"


def two_processes_exchange_a_tensor_with_native_memory(bench):
    needs("torch")
    command = program(bench, IPC)
    native = last(bench.checked(command))
    same(last(bench.under_rota(command, ROTA_MEMORY="native")), native)


def sixteen_threads_allocate_by_every_route(bench):
    storm = bench.build / "tests/programs/allocation_storm"
    if not storm.exists():
        raise Skip(str(storm))
    pattern = r"ok (\d+) calls, (\d+) a second, (\d+) refused, (-?\d+) bytes left\n"
    rates = {}
    for turn in range(2):
        for mode in ("natively", "native", "managed"):
            command = [storm, "--for", "3", "--seed", str(turn + 1)]
            result = bench.checked(command) if mode == "natively" else bench.under_rota(command, ROTA_MEMORY=mode)
            calls, rate, refused, left = map(int, re.search(pattern, result.stdout).groups())
            assert refused == 0, (mode, result.stdout)
            rates.setdefault(mode, []).append(rate)
    # Where a rotad measures what the process has besides its allocations, that grows with what the driver keeps, and what is free falls.
    # Without one nothing is measured: what is free is the limit less the ledger, to the byte.
    for mode in ("native", "managed"):
        command = [storm, "--for", "3", "--seed", "3"]
        result = bench.checked(command, ROTA_MEMORY=mode, ROTA_SOCKET=bench.scratch / "nobody.sock", LD_PRELOAD=bench.libraries / "librota.so")
        _, _, refused, left = map(int, re.search(pattern, result.stdout).groups())
        assert (refused, left) == (0, 0), (mode, result.stdout)
    alone = sum(rates["natively"])
    return ", ".join(f"{mode} {sum(rates[mode]) / alone:.2f} of the native rate" for mode in ("native", "managed"))


CHECKS = [
    torch_with("", "its_caching_allocator"),
    torch_with("expandable_segments:True", "expandable_segments"),
    torch_with("backend:cudaMallocAsync", "stream_ordered_memory"),
    cupy_with("usual"), cupy_with("async"),
    jax_gives_the_same_when_it_preallocates, jax_gives_the_same_without_preallocation,
    a_graph_that_allocates_is_counted_by_what_the_driver_reserves,
    two_processes_exchange_a_tensor_with_native_memory, sixteen_threads_allocate_by_every_route,
]
