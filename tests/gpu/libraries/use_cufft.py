"""cuFFT through PyTorch, through CuPy and directly; see parts.py."""
import ctypes

import parts
from parts import part


@part("torch")
def through_torch():
    import torch
    torch.manual_seed(1)
    x = torch.randn(16, 32, 64, device="cuda")
    total = 0.0
    for value in (torch.fft.fft(x), torch.fft.rfft2(x), torch.fft.fftn(x), torch.fft.ifft(x.double()), torch.fft.fft(x[0, :, :61]),
                  torch.stft(x[0], 16, return_complex=True, window=torch.ones(16, device="cuda"))):
        total += torch.view_as_real(value.resolve_conj()).double().abs().sum().item()
    total += torch.fft.irfft(torch.fft.rfft(x)).double().abs().sum().item()
    torch.backends.cuda.cufft_plan_cache.clear()
    return total


@part("cupy")
def through_cupy():
    import cupy
    import cupyx.scipy.fft
    x = cupy.random.RandomState(1).standard_normal((8, 64, 64)).astype(cupy.complex64)
    plan = cupyx.scipy.fft.get_fft_plan(x, axes=(1, 2))
    total = float(abs(cupyx.scipy.fft.fftn(x, axes=(1, 2), plan=plan)).sum())
    return total + float(abs(cupy.fft.ifft(x)).sum()) + float(abs(cupy.fft.rfft(x.real)).sum())


@part("direct")
def direct():
    import torch
    cufft = parts.library("libcufft.so")
    x = torch.ones(8, 1024, dtype=torch.complex64, device="cuda")
    y = torch.empty_like(x)
    plan, bytes_ = ctypes.c_int(), ctypes.c_size_t()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    parts.check(cufft.cufftCreate(ctypes.byref(plan)), "cufftCreate")
    parts.check(cufft.cufftMakePlan1d(plan, 1024, 0x29, 8, ctypes.byref(bytes_)), "cufftMakePlan1d")
    parts.check(cufft.cufftSetStream(plan, ctypes.c_void_p(stream.cuda_stream)), "cufftSetStream")
    parts.check(cufft.cufftExecC2C(plan, ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), -1), "cufftExecC2C")
    stream.synchronize()
    parts.check(cufft.cufftDestroy(plan), "cufftDestroy")
    return y.abs().double().sum().item()


if __name__ == "__main__":
    parts.main("nvidia-cufft", "torch", "cupy-cuda13x")
