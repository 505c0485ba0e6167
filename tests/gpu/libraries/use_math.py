"""cuRAND, cuSPARSE, cuSPARSELt and cuSOLVER; see parts.py."""
import ctypes

import parts
from parts import part


def matrix(*shape, seed=1, **options):
    import torch
    torch.manual_seed(seed)
    return torch.randn(*shape, device="cuda", **options)


@part("curand")
def curand():
    import torch
    library = parts.library("libcurand.so")
    total = 0.0
    for kind in (100, 121, 141, 161, 201):  # XORWOW, MRG32K3A, MTGP32, PHILOX, SOBOL32
        generator = ctypes.c_void_p()
        x = torch.zeros(1 << 12, device="cuda")
        torch.cuda.synchronize()
        parts.check(library.curandCreateGenerator(ctypes.byref(generator), kind), f"curandCreateGenerator {kind}")
        if kind < 200:
            parts.check(library.curandSetPseudoRandomGeneratorSeed(generator, ctypes.c_ulonglong(7)), "curandSetPseudoRandomGeneratorSeed")
        parts.check(library.curandGenerateUniform(generator, ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(x.numel())), "curandGenerateUniform")
        torch.cuda.synchronize()
        parts.check(library.curandDestroyGenerator(generator), "curandDestroyGenerator")
        total += x.double().sum().item()
    return total


@part("cusolver")
def cusolver():
    import torch
    a = matrix(64, 64, dtype=torch.float64)
    spd = a @ a.t() + 100 * torch.eye(64, device="cuda", dtype=torch.float64)
    batch = matrix(4, 16, 16)
    values = [torch.linalg.svdvals(a), torch.linalg.eigvalsh(spd), torch.linalg.qr(a).R.abs(), torch.linalg.cholesky(spd), torch.linalg.solve(a, a[0]),
              torch.linalg.lu_factor(a).LU, torch.linalg.det(a), torch.linalg.inv(spd), torch.linalg.lstsq(a, a[:, :2]).solution,
              torch.linalg.eigvals(a).abs(), torch.linalg.svdvals(batch), torch.linalg.eigvalsh(batch + batch.mT), torch.linalg.inv(batch),
              torch.linalg.cholesky(batch @ batch.mT + 50 * torch.eye(16, device="cuda")), torch.cholesky_solve(a, spd.cholesky())]
    return sum(value.double().sum().item() for value in values)


@part("cusparse")
def cusparse():
    import torch
    torch.manual_seed(2)
    dense = matrix(64, 64) * (matrix(64, 64, seed=3) > 1)
    csr, coo = dense.to_sparse_csr(), dense.to_sparse()
    total = (csr @ dense).sum().item() + (coo @ dense).sum().item() + torch.sparse.mm(coo, coo).to_dense().sum().item()
    total += (csr @ csr).to_dense().sum().item() + torch.sparse.sampled_addmm(csr, dense, dense).to_dense().sum().item()
    return total


@part("cusparse_cupy")
def cusparse_through_cupy():
    import cupy
    import cupyx.scipy.sparse
    import cupyx.scipy.sparse.linalg
    a = cupyx.scipy.sparse.random(100, 100, 0.1, format="csr", dtype=cupy.float64, random_state=1) + cupyx.scipy.sparse.eye(100) * 10
    x = cupyx.scipy.sparse.linalg.spsolve(a.tocsr(), cupy.ones(100))
    y, _ = cupyx.scipy.sparse.linalg.cg(a.T @ a, cupy.ones(100))
    return float(x.sum()) + float(y.sum()) + float((a @ a).sum())


@part("cusparselt")
def cusparselt():
    import torch
    pattern = torch.tensor([0, 0, 1, 1], device="cuda", dtype=torch.float16).tile(128, 32)
    sparse = torch.sparse.to_sparse_semi_structured(pattern)
    return torch.mm(sparse, torch.ones(128, 128, device="cuda", dtype=torch.float16)).double().sum().item()


if __name__ == "__main__":
    parts.main("nvidia-curand", "nvidia-cusolver", "nvidia-cusparse", "nvidia-cusparselt-cu13", "torch", "cupy-cuda13x")
