"""The GPU programs that tests/gpu/run compares with and without rota: `workloads.py NAME` prints one JSON object.

Each uses a real framework the way its users do, in less than 1 GiB of GPU memory, with fixed seeds, so that two runs
on one machine give the same numbers.
"""
import json
import sys
import time


def torch_eager():
    import torch
    torch.manual_seed(1)
    a = torch.randn(512, 512, device="cuda")
    b = torch.randn(512, 512, device="cuda")
    for _ in range(20):
        a = torch.tanh(a @ b * 0.05) + a * 0.5
    copied = a.cpu().to("cuda", non_blocking=True)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        doubled = copied * 2
    side.synchronize()
    return {"sum": a.double().sum().item(), "norm": a.double().norm().item(), "doubled": doubled.double().sum().item()}


def torch_autograd():
    import torch
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.LayerNorm(512),
                                torch.nn.Linear(512, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(256, 256, device="cuda")
    y = torch.randn(256, 64, device="cuda")
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"first": losses[0], "last": losses[-1]}


def torch_graph():
    import torch
    torch.manual_seed(3)
    static_in = torch.randn(256, 256, device="cuda")
    weight = torch.randn(256, 256, device="cuda") * 0.05
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            static_out = torch.relu(static_in @ weight)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static_out = torch.relu(static_in @ weight) + 1
    sums = []
    for i in range(10):
        static_in.copy_(torch.full((256, 256), float(i), device="cuda"))
        graph.replay()
        sums.append(static_out.double().sum().item())
    return {"sums": sums}


def torch_compile():
    import torch
    torch.manual_seed(4)

    @torch.compile
    def step(x, y):
        return torch.sin(x) * torch.cos(y) + torch.nn.functional.silu(x @ y)

    x = torch.randn(256, 256, device="cuda")
    y = torch.randn(256, 256, device="cuda") * 0.1
    for _ in range(5):
        x = step(x, y)
    return {"sum": x.double().sum().item()}


def torch_profiler():
    import torch
    from torch.profiler import ProfilerActivity, profile
    x = torch.randn(256, 256, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        for _ in range(4):
            x = torch.relu(x @ x * 0.01)
        torch.cuda.synchronize()
    kernels = [e.name for e in recorded.events() if "CUDA" in str(e.device_type)]
    return {"kernels": len(kernels) > 0, "count": len(kernels)}


def triton_kernel():
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def scaled_add(x, y, out, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(out + offsets, tl.load(x + offsets, mask=mask) * 3 + tl.load(y + offsets, mask=mask), mask=mask)

    torch.manual_seed(5)
    x = torch.randn(100_003, device="cuda")
    y = torch.randn(100_003, device="cuda")
    out = torch.empty_like(x)
    scaled_add[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    assert torch.allclose(out, x * 3 + y, atol=1e-5)
    return {"sum": out.double().sum().item()}


def jax_program():
    import jax
    import jax.numpy as jnp
    assert jax.default_backend() == "gpu", jax.default_backend()
    key = jax.random.PRNGKey(6)
    x = jax.random.normal(key, (256, 256))

    @jax.jit
    def step(x):
        return jnp.tanh(x @ x.T * 0.01) + x

    gradient = jax.jit(jax.grad(lambda x: step(x).sum()))
    for _ in range(5):
        x = step(x)
    return {"sum": float(x.sum()), "gradient": float(gradient(x).sum())}


def cupy_program():
    import cupy
    x = cupy.arange(100_000, dtype=cupy.float32)
    kernel = cupy.RawKernel(r"""extern "C" __global__ void square(const float* x, float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i] * x[i]; }""", "square")
    y = cupy.empty_like(x)
    kernel(((100_000 + 255) // 256,), (256,), (x, y, 100_000))
    m = cupy.arange(64 * 64, dtype=cupy.float32).reshape(64, 64) / 4096
    return {"sum": float(y.sum()), "product": float((m @ m).sum()), "sorted": float(cupy.sort(-x)[0])}


def torch_limit():
    """Tries to take more than ROTA_GPU_MEM_LIMIT, in parts and at once; says whether the driver refused."""
    import torch
    kept, refused = [], False
    try:
        for _ in range(24):
            kept.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        refused = True
    return {"refused": refused, "taken_mib": 64 * len(kept)}


def torch_share(seconds=5.0):
    """One of two programs that share the GPU: matrix products for some seconds, checked against the first."""
    import torch
    torch.manual_seed(7)
    a = torch.randn(1024, 1024, device="cuda", dtype=torch.float64)
    wanted = (a @ a).sum().item()
    wrong = rounds = 0
    longest = 0.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        for _ in range(20):
            b = a @ a
        value = b.sum().item()
        longest = max(longest, time.monotonic() - begin)
        wrong += abs(value - wanted) > 1e-6 * abs(wanted)
        rounds += 1
    return {"rounds": rounds, "wrong": wrong, "longest_s": longest}


def torch_step_times():
    """Microseconds of a small eager loop and of a transformer layer's training step: a batch of each for every line of
    standard input."""
    import torch
    torch.manual_seed(8)
    x = torch.randn(1000, device="cuda")
    layer = torch.nn.TransformerEncoderLayer(512, 8, batch_first=True).cuda()
    data = torch.randn(16, 128, 512, device="cuda")
    works = {"eager100": lambda: [x.add_(1e-6) for _ in range(100)],
             "transformer": lambda: layer(data).sum().backward()}
    for work in works.values():
        for _ in range(10):
            work()
    torch.cuda.synchronize()
    print("ready", flush=True)
    for _ in sys.stdin:
        taken = {}
        for name, work in works.items():
            begin = time.perf_counter()
            for _ in range(20):
                work()
            torch.cuda.synchronize()
            taken[name] = (time.perf_counter() - begin) / 20 * 1e6
        print(json.dumps(taken), flush=True)
    return {}


if __name__ == "__main__":
    name = sys.argv[1]
    arguments = [float(value) for value in sys.argv[2:]]
    result = globals()[name](*arguments)
    print(json.dumps(result), flush=True)
