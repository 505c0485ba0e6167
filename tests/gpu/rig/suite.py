"""Tests of PyTorch, JAX, CuPy, Triton and nvcc programs, as a CI rig has them: each checks its results, uses the CPU for part of its time, and
needs 1 to 8 GiB of GPU memory that the rig has not been told about.

    suite.py NAME       runs one of them, and appends to $RIG_FIGURES what its framework says that it had

A figure is the most bytes that the framework's allocator had from the driver at a time. test_rig.py has the tests for pytest.
"""
import json
import os
import pathlib
import subprocess
import sys

GIB = 1 << 30
TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


# --- PyTorch


def torch_with_seed():
    import torch
    torch.manual_seed(7)
    torch.cuda.reset_peak_memory_stats()
    return torch


def torch_bytes():
    import torch
    return torch.cuda.max_memory_reserved()


def trained(torch, model, inputs, targets, steps):
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.9, losses
    return torch_bytes()


@test
def torch_mlp():
    torch = torch_with_seed()
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(2048, 2048), torch.nn.ReLU())]
    inputs = torch.randn(16384, 2048, device="cuda")
    return trained(torch, torch.nn.Sequential(*layers).cuda(), inputs, inputs.flip(1) * 0.1 + 0.5, 40)


@test
def torch_conv():
    torch = torch_with_seed()
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.ReLU(),
                                torch.nn.Conv2d(64, 3, 3, padding=1)).cuda()
    inputs = torch.randn(48, 3, 256, 256, device="cuda")
    return trained(torch, model, inputs, inputs * 0.5, 30)


@test
def torch_attention():
    torch = torch_with_seed()
    query, key, value = (torch.randn(8, 16, 2048, 64, device="cuda", requires_grad=True) for _ in range(3))
    for _ in range(20):
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        out.square().mean().backward()
    weights = (query @ key.transpose(-1, -2) / 8).softmax(-1) @ value
    assert torch.allclose(out, weights, atol=2e-3), (out - weights).abs().max()
    return torch_bytes()


@test
def torch_sort():
    torch = torch_with_seed()
    values = torch.randint(0, 1 << 30, (128 << 20,), device="cuda", dtype=torch.int32)
    for _ in range(6):
        ordered, order = values.sort()
        assert bool((ordered[1:] >= ordered[:-1]).all())
        assert bool((values[order[::1000]] == ordered[::1000]).all())
        del order
    return torch_bytes()


@test
def torch_graph():
    torch = torch_with_seed()
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)]).cuda().eval()
    inputs = torch.randn(8192, 4096, device="cuda")
    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        model(inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = model(inputs)
    for factor in (1.0, 0.5, 2.0):
        inputs.mul_(factor)
        graph.replay()
        with torch.no_grad():
            assert torch.allclose(out, model(inputs), atol=1e-4)
    return torch_bytes()


@test
def torch_fft():
    torch = torch_with_seed()
    signal = torch.randn(32, 1 << 21, device="cuda")
    for _ in range(10):
        back = torch.fft.irfft(torch.fft.rfft(signal), n=signal.shape[1])
        assert torch.allclose(back, signal, atol=1e-4)
    return torch_bytes()


@test
def torch_eager():  # small steps, which use the CPU most of the time
    torch = torch_with_seed()
    kept = torch.randn(512 << 20, device="cuda")
    model = torch.nn.Sequential(*[layer for _ in range(8) for layer in (torch.nn.Linear(256, 256), torch.nn.Tanh())]).cuda()
    inputs = torch.randn(64, 256, device="cuda")
    trained(torch, model, inputs, inputs * 0.3, 400)
    assert abs(kept.mean().item()) < 1e-3
    return torch_bytes()


# --- JAX


def jax_bytes():
    import jax
    figures = jax.local_devices()[0].memory_stats()
    return figures.get("peak_pool_bytes") or figures.get("pool_bytes") or figures["peak_bytes_in_use"]


@test
def jax_train():
    import jax
    import jax.numpy as jnp
    keys = jax.random.split(jax.random.PRNGKey(1), 8)
    weights = [jax.random.normal(key, (2048, 2048)) * 0.02 for key in keys[:4]]
    inputs = jax.random.normal(keys[5], (16384, 2048))

    def loss(weights):
        out = inputs
        for weight in weights:
            out = jnp.tanh(out @ weight)
        return jnp.mean((out - 0.1) ** 2)

    step = jax.jit(lambda weights: (loss(weights), [w - 0.5 * g for w, g in zip(weights, jax.grad(loss)(weights))]))
    losses = []
    for _ in range(30):
        value, weights = step(weights)
        losses.append(float(value))
    assert losses[-1] < losses[0], losses
    return jax_bytes()


@test
def jax_scan():
    import jax
    import jax.numpy as jnp
    import numpy
    grid = jnp.asarray(numpy.random.default_rng(2).random((8192, 8192), dtype=numpy.float32))
    step = lambda state, _: ((jnp.roll(state, 1, 0) + jnp.roll(state, -1, 0) + jnp.roll(state, 1, 1) + jnp.roll(state, -1, 1)) / 4, jnp.mean(state))
    end, means = jax.jit(lambda state: jax.lax.scan(step, state, None, length=200))(grid)
    assert numpy.allclose(numpy.asarray(means), float(grid.mean()), atol=1e-3)
    assert float(end.std()) < float(grid.std())
    return jax_bytes()


@test
def jax_sort():
    import jax
    import jax.numpy as jnp
    for seed in range(4):
        ordered = jnp.sort(jax.random.uniform(jax.random.PRNGKey(seed), (64 << 20,)))
        assert bool(jnp.all(ordered[1:] >= ordered[:-1]))
    return jax_bytes()


@test
def jax_solve():
    import jax
    import jax.numpy as jnp
    matrix = jax.random.normal(jax.random.PRNGKey(3), (4096, 4096)) + 128 * jnp.eye(4096)
    right = jnp.ones((4096, 64))
    for _ in range(4):
        solved = jnp.linalg.solve(matrix, right)
        assert float(jnp.abs(matrix @ solved - right).max()) < 0.05
    return jax_bytes()


@test
def jax_vmap():
    import jax
    import jax.numpy as jnp
    import numpy
    batch = jax.random.normal(jax.random.PRNGKey(4), (512, 512, 512))
    for _ in range(5):
        sums = jax.jit(jax.vmap(lambda matrix: jnp.sum(jnp.sin(matrix) ** 2 + jnp.cos(matrix) ** 2)))(batch)
        assert numpy.allclose(numpy.asarray(sums), 512 * 512, rtol=1e-4)
    return jax_bytes()


# --- CuPy


def cupy_bytes():
    import cupy
    return cupy.get_default_memory_pool().total_bytes()


@test
def cupy_sort():
    import cupy
    values = cupy.random.default_rng(1).random(96 << 20, dtype=cupy.float64)
    for _ in range(4):
        ordered = cupy.sort(values)
        assert bool((ordered[1:] >= ordered[:-1]).all())
    return cupy_bytes()


@test
def cupy_fft():
    import cupy
    signal = cupy.random.default_rng(2).random((64, 1 << 20), dtype=cupy.float32)
    for _ in range(5):
        assert bool(cupy.allclose(cupy.fft.ifft(cupy.fft.fft(signal)).real, signal, atol=1e-4))
    return cupy_bytes()


@test
def cupy_kernel():
    import cupy
    kernel = cupy.RawKernel('extern "C" __global__ void twice(const float* in, float* out, long n) {'
                            ' for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) out[i] = 2 * in[i]; }', "twice")
    source = cupy.arange(256 << 20, dtype=cupy.float32)
    target = cupy.empty_like(source)
    for _ in range(50):
        kernel((1024,), (256,), (source, target, source.size))
    assert bool((target == source * 2).all())
    return cupy_bytes()


@test
def cupy_solve():
    import cupy
    matrix = cupy.random.default_rng(3).random((6144, 6144), dtype=cupy.float64) + 6144 * cupy.eye(6144)
    for _ in range(2):
        assert float(abs(matrix @ cupy.linalg.solve(matrix, cupy.ones(6144)) - 1).max()) < 1e-6
    return cupy_bytes()


@test
def cupy_histogram():
    import cupy
    values = cupy.random.default_rng(4).random(192 << 20, dtype=cupy.float32)
    for _ in range(3):
        counts, _edges = cupy.histogram(values, bins=256, range=(0, 1))
        assert int(counts.sum()) == values.size
    return cupy_bytes()


# --- Triton


@test
def triton_add():
    import triton_kernels
    torch = torch_with_seed()
    x, y = (torch.randn(256 << 20, device="cuda") for _ in range(2))
    for _ in range(20):
        out = triton_kernels.added(x, y)
    assert torch.equal(out, x + y)
    return torch_bytes()


@test
def triton_softmax():
    import triton_kernels
    torch = torch_with_seed()
    rows = torch.randn(65536, 4096, device="cuda")
    for _ in range(10):
        out = triton_kernels.softmax(rows)
    assert torch.allclose(out, rows.softmax(1), atol=1e-6)
    return torch_bytes()


@test
def triton_product():
    import triton_kernels
    torch = torch_with_seed()
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
    for _ in range(5):
        out = triton_kernels.product(a, b)
    assert torch.allclose(out.float(), (a @ b).float(), atol=0.5, rtol=0.02)
    return torch_bytes()


# --- nvcc


def program(name):
    def run():
        figures = subprocess.run([os.environ["RIG_PROGRAMS"], name], check=True, stdout=subprocess.PIPE, text=True).stdout
        return int(figures.split()[-1])
    run.__name__ = f"nvcc_{name}"
    return test(run)


for each in ("stencil", "pool", "reduce", "copies"):
    program(each)


def run(name):
    """Runs the test and returns what its framework had, in bytes."""
    had = TESTS[name]()
    if figures := os.environ.get("RIG_FIGURES"):
        with pathlib.Path(figures).open("a", encoding="ascii") as file:
            file.write(json.dumps({"test": name, "bytes": had}) + "\n")
    return had


if __name__ == "__main__":
    print(run(sys.argv[1]))
