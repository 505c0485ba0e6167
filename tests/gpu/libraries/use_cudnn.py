"""cuDNN through PyTorch: convolutions, normalisation, recurrent layers, attention; see parts.py."""
import parts
from parts import part


def data(*shape, seed=1, **options):
    import torch
    torch.manual_seed(seed)
    return torch.randn(*shape, device="cuda", requires_grad=True, **options)


@part()
def convolution():
    import torch
    torch.manual_seed(2)
    total = 0.0
    for benchmark in (False, True):
        torch.backends.cudnn.benchmark = benchmark
        for layer, shape in ((torch.nn.Conv2d(8, 16, 3, padding=1), (4, 8, 32, 32)), (torch.nn.Conv3d(4, 8, 3), (2, 4, 8, 8, 8)),
                             (torch.nn.ConvTranspose2d(8, 4, 3), (2, 8, 16, 16)), (torch.nn.Conv2d(8, 16, 3, groups=8), (2, 8, 16, 16))):
            x = data(*shape)
            y = layer.cuda()(x)
            y.sum().backward()
            total += x.grad.double().sum().item() + y.double().sum().item()
    return total


@part()
def half_precision_channels_last():
    import torch
    torch.manual_seed(3)
    layer = torch.nn.Conv2d(16, 32, 3).cuda().half().to(memory_format=torch.channels_last)
    x = data(4, 16, 32, 32).half().contiguous(memory_format=torch.channels_last)
    return layer(x).double().sum().item()


@part()
def normalisation():
    import torch
    layer = torch.nn.BatchNorm2d(8).cuda()
    y = layer(data(4, 8, 16, 16))
    (y * y).sum().backward()
    return layer.eval()(data(4, 8, 16, 16)).double().sum().item()


@part()
def recurrent():
    import torch
    torch.manual_seed(4)
    total = 0.0
    for kind in (torch.nn.LSTM, torch.nn.GRU):
        layer = kind(16, 32, num_layers=2, dropout=0.1).cuda()
        out, _ = layer(data(10, 4, 16))
        out.sum().backward()
        total += layer.eval()(data(10, 4, 16))[0].double().sum().item()
    return total


@part()
def attention():
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    total = 0.0
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH):
        q = data(2, 4, 64, 64, dtype=torch.float16)
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        out.sum().backward()
        total += out.double().sum().item()
    return total


@part()
def sequence_loss():
    import torch
    scores = data(20, 2, 10).log_softmax(2)
    targets = torch.randint(1, 10, (2, 5), dtype=torch.int32, generator=torch.Generator().manual_seed(1)).flatten()
    return torch.nn.functional.ctc_loss(scores, targets, torch.tensor([20, 20]), torch.tensor([5, 5])).item()


@part()
def captured():
    import torch
    torch.manual_seed(5)
    layer, x = torch.nn.Conv2d(8, 8, 3).cuda(), data(2, 8, 16, 16)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        layer(x)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        y = layer(x)
    graph.replay()
    return y.double().sum().item()


if __name__ == "__main__":
    parts.main("nvidia-cudnn-cu13", "torch")
