"""Triton: plain, autotuned, cooperative, clustered, dependent and tensor-map launches; see parts.py."""
import parts
from parts import part

import triton
import triton.language as tl


@triton.jit
def scaled_add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) * 3 + tl.load(y + offsets, mask=mask), mask=mask)


@triton.autotune(configs=[triton.Config({"BLOCK": size}, num_warps=warps) for size in (256, 1024) for warps in (2, 4)], key=["n"])
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n) * 2, mask=offsets < n)


@triton.jit
def transposed(source, target, SIZE: tl.constexpr):
    target.store([0, 0], source.load([0, 0]).T)


@triton.jit
def product(a, b, out, SIZE: tl.constexpr):
    rows = tl.arange(0, SIZE)
    index = rows[:, None] * SIZE + rows[None, :]
    tl.store(out + index, tl.dot(tl.load(a + index), tl.load(b + index)))


def inputs(count=100_003):
    import torch
    torch.manual_seed(5)
    return torch.randn(count, device="cuda"), torch.randn(count, device="cuda"), torch.empty(count, device="cuda")


def launched(**options):
    x, y, out = inputs()
    scaled_add[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024, **options)
    return out.double().sum().item()


@part()
def plain():
    return launched()


@part()
def many_warps():
    return launched(num_warps=8, num_stages=2)


@part()
def cooperative():
    return launched(launch_cooperative_grid=True)


@part()
def dependent_launch():
    return launched(launch_pdl=True)


@part()
def clustered():
    return launched(num_ctas=2)


@part()
def autotuned():
    x, _, out = inputs()
    tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    triton.testing.do_bench(lambda: tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel()), warmup=5, rep=10)
    triton.testing.do_bench_cudagraph(lambda: scaled_add[(98,)](x, x, out, x.numel(), BLOCK=1024), rep=10)
    return (x * 4).double().sum().item()


@part()
def tensor_maps():
    import torch
    from triton.tools.tensor_descriptor import TensorDescriptor
    torch.manual_seed(6)
    source, target = torch.randn(64, 64, device="cuda"), torch.empty(64, 64, device="cuda")
    transposed[(1,)](TensorDescriptor.from_tensor(source, [64, 64]), TensorDescriptor.from_tensor(target, [64, 64]), SIZE=64)
    assert torch.equal(target, source.t())
    return target.double().sum().item()


@part()
def tensor_cores():
    import torch
    torch.manual_seed(7)
    a, b = (torch.randn(64, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    out = torch.empty(64, 64, device="cuda")
    kernel = product[(1,)](a, b, out, SIZE=64)
    assert kernel.n_regs > 0
    return out.double().sum().item()


if __name__ == "__main__":
    parts.main("triton", "torch")
