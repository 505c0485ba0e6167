"""cuBLAS, cuBLASLt and cuBLASXt, through PyTorch and directly; see parts.py."""
import ctypes

import parts
from parts import part


def matrix(*shape, dtype=None, seed=1):
    import torch
    torch.manual_seed(seed)
    return torch.randn(*shape, device="cuda").to(dtype or torch.float32)


@part()
def products():
    import torch
    total = 0.0
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64):
        a = matrix(128, 128, dtype=dtype)
        total += torch.view_as_real(a @ a).double().sum().item() if a.is_complex() else (a @ a).double().sum().item()
        b = matrix(4, 64, 64, dtype=dtype)
        total += abs(torch.bmm(b, b).sum()).double().item()
        total += abs((a @ a[0]).sum()).double().item()
    return total


@part()
def fused_epilogues():
    """cuBLASLt: a bias and an activation behind the product; scaled 8-bit floats; integers."""
    import torch
    a, bias = matrix(128, 128, dtype=torch.float16), matrix(128, dtype=torch.float16, seed=2)
    total = torch._addmm_activation(bias, a, a, use_gelu=True).double().sum().item()
    one = torch.ones((), device="cuda")
    small = matrix(64, 64).to(torch.float8_e4m3fn)
    total += torch._scaled_mm(small, small.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16).double().sum().item()
    integers = torch.arange(64 * 64, device="cuda").view(64, 64).to(torch.int8)
    return total + torch._int_mm(integers, integers).double().sum().item()


@part()
def captured():
    import torch
    a = matrix(256, 256)
    torch.cuda.current_blas_handle()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        a @ a
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        b = a @ a
    graph.replay()
    return b.double().sum().item()


@part("direct")
def direct():
    """The C interface: legacy and own stream, pointers on the device, batches, a band solve."""
    import torch
    cublas = parts.library("libcublas.so")
    handle = ctypes.c_void_p()
    stream = torch.cuda.Stream()
    size = 64
    a, b = matrix(size, size), torch.zeros(size, size, device="cuda")
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    pointer = lambda tensor: ctypes.c_void_p(tensor.data_ptr())
    torch.cuda.synchronize()
    parts.check(cublas.cublasCreate_v2(ctypes.byref(handle)), "cublasCreate")
    parts.check(cublas.cublasSetStream_v2(handle, ctypes.c_void_p(stream.cuda_stream)), "cublasSetStream")
    parts.check(cublas.cublasSgemm_v2(handle, 0, 0, size, size, size, ctypes.byref(one), pointer(a), size, pointer(a), size,
                                      ctypes.byref(zero), pointer(b), size), "cublasSgemm")
    result = ctypes.c_float()
    parts.check(cublas.cublasSnrm2_v2(handle, size * size, pointer(b), 1, ctypes.byref(result)), "cublasSnrm2")
    parts.check(cublas.cublasSetMatrix(4, 4, 4, (ctypes.c_float * 16)(), 4, pointer(b), size), "cublasSetMatrix")
    parts.check(cublas.cublasSetVector(4, 4, (ctypes.c_float * 4)(), 1, pointer(b), 1), "cublasSetVector")
    parts.check(cublas.cublasGetMatrix(4, 4, 4, pointer(a), size, (ctypes.c_float * 16)(), 4), "cublasGetMatrix")
    pointers = torch.tensor([a.data_ptr()] * 4, device="cuda")
    outputs = torch.zeros(4, size, size, device="cuda")
    targets = torch.tensor([output.data_ptr() for output in outputs], device="cuda")
    torch.cuda.synchronize()
    parts.check(cublas.cublasSgemmBatched(handle, 0, 0, size, size, size, ctypes.byref(one), pointer(pointers), size, pointer(pointers), size,
                                          ctypes.byref(zero), pointer(targets), size, 4), "cublasSgemmBatched")
    stream.synchronize()
    parts.check(cublas.cublasDestroy_v2(handle), "cublasDestroy")
    return result.value + outputs.double().sum().item()


@part("xt")
def matrices_on_the_host():
    """cuBLASXt tiles host memory over streams of its own."""
    import numpy
    cublas = parts.library("libcublas.so")
    handle = ctypes.c_void_p()
    size = 512
    a, out = numpy.ones((size, size), numpy.float32), numpy.zeros((size, size), numpy.float32)
    parts.check(cublas.cublasXtCreate(ctypes.byref(handle)), "cublasXtCreate")
    parts.check(cublas.cublasXtDeviceSelect(handle, 1, (ctypes.c_int * 1)(0)), "cublasXtDeviceSelect")
    parts.check(cublas.cublasXtSetBlockDim(handle, 128), "cublasXtSetBlockDim")
    one, zero, extent = ctypes.c_float(1), ctypes.c_float(0), ctypes.c_size_t(size)
    data = lambda array: ctypes.c_void_p(array.ctypes.data)
    parts.check(cublas.cublasXtSgemm(handle, 0, 0, extent, extent, extent, ctypes.byref(one), data(a), extent, data(a), extent,
                                     ctypes.byref(zero), data(out), extent), "cublasXtSgemm")
    parts.check(cublas.cublasXtDestroy(handle), "cublasXtDestroy")
    return out.sum()


if __name__ == "__main__":
    parts.main("nvidia-cublas", "torch")
