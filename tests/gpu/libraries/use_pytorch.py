"""PyTorch as its users know it, feature by feature; see parts.py. The libraries below it have files of their own."""
import os
import tempfile

import parts
from parts import part


def matrix(*shape, seed=1, **options):
    import torch
    torch.manual_seed(seed)
    return torch.randn(*shape, device="cuda", **options)


@part()
def properties():
    import torch
    device = torch.cuda.get_device_properties(0)
    torch.cuda.get_device_name(), torch.cuda.get_device_capability(), torch.cuda.get_arch_list()
    torch.cuda.can_device_access_peer(0, 0) if torch.cuda.device_count() > 1 else None
    torch.cuda.is_bf16_supported(), torch.cuda.current_blas_handle(), device.uuid
    return device.multi_processor_count


@part()
def eager():
    import torch
    a, b = matrix(256, 256), matrix(256, 256, seed=2)
    values, order = torch.sort(a.flatten())
    parts_ = [torch.cumsum(a, 0).sum(), torch.topk(a, 5).values.sum(), torch.unique(order % 97).sum(), a.nonzero().sum(),
              torch.bincount(order % 7).float().sum(), torch.where(a > 0, a, b).sum(), a.scatter_add(0, order.view(256, 256) % 256, b).sum(),
              torch.nn.functional.embedding(order[:64], matrix(256 * 256, 4)).sum(), a.t().contiguous().sum(), a.std(), a.median(),
              torch.multinomial(a.abs().flatten()[:100], 10).float().sum() * 0, torch.nn.functional.dropout(a).sum() * 0,
              torch.randperm(1000, device="cuda").sum(), a.half().float().sum(), torch.isfinite(a).all().float(),
              torch.nn.functional.interpolate(a.view(1, 1, 256, 256), scale_factor=2, mode="bilinear").sum()]
    return sum(value.double().item() for value in parts_)


@part()
def training():
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 8)).cuda()
    scaler = torch.amp.GradScaler("cuda")
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        for options in ({"foreach": True}, {"fused": True}):
            optimizer = kind(model.parameters(), lr=1e-3, **options)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(matrix(32, 64)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.utils.checkpoint.checkpoint(model, matrix(8, 64), use_reentrant=False).sum().backward()


@part()
def streams():
    import torch
    urgent, side = torch.cuda.Stream(priority=-1), torch.cuda.Stream()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True, blocking=True)
    x = matrix(256, 256)
    begin.record()
    with torch.cuda.stream(urgent):
        urgent.wait_event(begin)
        torch.cuda._sleep(1000)
        y = x * 2
        x.record_stream(urgent)
        end.record()
    side.wait_stream(urgent)
    with torch.cuda.stream(torch.cuda.ExternalStream(side.cuda_stream)):
        y = y + 1
    side.query(), end.query(), end.wait(), end.synchronize(), side.synchronize(), torch.cuda.synchronize()
    assert begin.elapsed_time(end) >= 0
    torch.cuda.Event(interprocess=True).record()
    del x
    return y.double().sum().item()


@part()
def memory():
    import torch
    block = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    free, total = torch.cuda.mem_get_info()
    raw = torch.cuda.caching_allocator_alloc(1 << 20)
    torch.cuda.caching_allocator_delete(raw)
    torch.cuda.set_per_process_memory_fraction(0.9)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = torch.ones(1 << 20, device="cuda")
    torch.cuda.memory._record_memory_history()
    assert torch.cuda.memory_snapshot() and torch.cuda.memory_stats()["allocated_bytes.all.current"] > 0
    torch.cuda.memory._record_memory_history(enabled=None)
    value = kept.sum().item()
    del block, kept, pool
    torch.cuda.empty_cache(), torch.cuda.ipc_collect(), torch.cuda.reset_peak_memory_stats()
    return value


@part()
def pinned_memory():
    import torch
    host = torch.arange(1 << 18, dtype=torch.float32, pin_memory=True)
    assert host.is_pinned()
    device = host.to("cuda", non_blocking=True)
    back = torch.empty_like(host, pin_memory=True)
    back.copy_(device, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    other = torch.ones(1 << 16)
    runtime = torch.cuda.cudart()
    parts.check(int(runtime.cudaHostRegister(other.data_ptr(), other.numel() * 4, 0)), "cudaHostRegister")
    parts.check(int(runtime.cudaHostUnregister(other.data_ptr())), "cudaHostUnregister")
    strided = matrix(64, 64)[:, ::2].cpu()
    return back.double().sum().item() + strided.double().sum().item()


@part()
def data_loader():
    import torch
    data = torch.utils.data.TensorDataset(torch.arange(512.0).view(64, 8))
    total = 0.0
    for workers in (0, 2):
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=16, pin_memory=True, num_workers=workers):
            assert batch.is_pinned()
            total += batch.to("cuda", non_blocking=True).sum().item()
    return total


@part()
def graphs():
    import torch
    x = matrix(128, 128)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.relu(x @ x)
    torch.cuda.current_stream().wait_stream(side)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    first.enable_debug_mode()
    with torch.cuda.graph(first, capture_error_mode="thread_local"):
        y = torch.relu(x @ x) + torch.nn.functional.dropout(x) * 0
    with torch.cuda.graph(second, pool=first.pool()):
        z = y * 2
    for _ in range(3):
        first.replay(), second.replay()
    with tempfile.TemporaryDirectory() as folder:
        first.debug_dump(os.path.join(folder, "graph.dot"))
    layer = torch.cuda.make_graphed_callables(torch.nn.Linear(16, 16).cuda(), (matrix(4, 16),))
    layer(matrix(4, 16)).sum().backward()
    value = z.double().sum().item()
    first.reset(), second.reset()
    return value


@part()
def run_time_compilation():
    import torch
    x = matrix(1000)
    jiterated = torch.cuda.jiterator._create_jit_fn("template <typename T> T twice(T x) { return x * 2; }")
    total = jiterated(x).double().sum().item()

    @torch.jit.script
    def fused(x):
        return torch.sin(x) * torch.cos(x) + x
    for _ in range(4):
        total += fused(x).double().sum().item()
    kernel = torch.cuda._compile_kernel(
        'extern "C" __global__ void triple(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 3; }', "triple")
    kernel(grid=(4, 1, 1), block=(256, 1, 1), args=[x, 1000])
    return total + x.double().sum().item()


@part()
def profiler_range():
    import torch
    torch.cuda.nvtx.range_push("part")
    with torch.cuda.profiler.profile():
        value = matrix(16, 16).sum().item()
    torch.cuda.nvtx.range_pop()
    return value


@part("compile")
def compiled():
    import torch

    def step(x, y):
        return torch.sin(x) * torch.cos(y) + torch.nn.functional.silu(x @ y)
    x, y = matrix(128, 128), matrix(128, 128, seed=2) * 0.1
    total = 0.0
    for mode in ("default", "reduce-overhead"):
        fast = torch.compile(step, mode=mode)
        for _ in range(4):
            total += fast(x, y).double().sum().item()
    return total


@part("profiler")
def profiler():
    import torch
    from torch.profiler import ProfilerActivity, profile
    x = matrix(128, 128)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as recorded:
        for _ in range(4):
            x = torch.relu(x @ x * 0.01)
        torch.cuda.synchronize()
    return sum("CUDA" in str(event.device_type) for event in recorded.events()) > 0


def grow_and_shrink():
    import torch
    total = 0.0
    for megabytes in (4, 40, 12, 80):
        x = torch.ones(megabytes << 18, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            y = torch.ones(1 << 20, device="cuda")
            total += y.sum().item()
        total += x.sum().item()
        del x
        torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(1 << 20, device="cuda")
    with torch.cuda.graph(graph):
        y = x * 2
        z = torch.cat([y, y]).sum()
    graph.replay()
    return total + z.item()


@part("expandable_segments", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
def expandable_segments():
    return grow_and_shrink()


@part("malloc_async", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
def malloc_async():
    import torch
    torch.cuda.mem_get_info(), torch.cuda.memory_reserved()
    return grow_and_shrink()


@part("host_register", PYTORCH_CUDA_ALLOC_CONF="pinned_use_cuda_host_register:True,pinned_num_register_threads:2")
def host_register():
    import torch
    host = torch.ones(1 << 20, pin_memory=True)
    return host.to("cuda", non_blocking=True).sum().item()


def reader(queue, answers):
    tensor, event_handle = queue.get()
    import torch
    torch.cuda.Event.from_ipc_handle(torch.device("cuda:0"), event_handle).wait()
    answers.put(tensor.sum().item())
    del tensor


def between_processes():
    """A tensor and an event go to another process: legacy IPC, or exported memory with expandable segments."""
    import torch.multiprocessing as multiprocessing
    import torch
    context = multiprocessing.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=reader, args=(queue, answers), daemon=True)
    child.start()
    tensor = torch.full((1000,), 2.0, device="cuda")
    event = torch.cuda.Event(interprocess=True)
    event.record()
    queue.put((tensor, event.ipc_handle()))
    value = answers.get(timeout=90)
    child.join(90)
    return value


@part("ipc")
def ipc():
    return between_processes()


@part("ipc_expandable", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
def ipc_expandable():
    return between_processes()


if __name__ == "__main__":
    parts.main("torch", "nvidia-cuda-runtime")
