"""Kernels of suite.py's Triton tests: in a module of their own, since Triton reads the source of what it compiles."""
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n) + tl.load(y + offsets, mask=offsets < n), mask=offsets < n)


def added(x, y):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out


@triton.jit
def softmax_kernel(rows, out, COLUMNS: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    values = tl.load(rows + offsets)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + offsets, powers / tl.sum(powers, axis=0))


def softmax(rows):
    out = torch.empty_like(rows)
    softmax_kernel[(rows.shape[0],)](rows, out, COLUMNS=rows.shape[1], num_warps=8)
    return out


@triton.jit
def product_kernel(a, b, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for step in range(0, SIZE, STEP):
        inner = step + tl.arange(0, STEP)
        total = tl.dot(tl.load(a + rows[:, None] * SIZE + inner[None, :]), tl.load(b + inner[:, None] * SIZE + columns[None, :]), total)
    tl.store(out + rows[:, None] * SIZE + columns[None, :], total.to(tl.float16))


def product(a, b):
    size = a.shape[0]
    out = torch.empty_like(a)
    product_kernel[(size // 128, size // 128)](a, b, out, SIZE=size, BLOCK=128, STEP=32, num_warps=8)
    return out
