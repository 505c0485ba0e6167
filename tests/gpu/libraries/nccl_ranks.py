"""What a rank of NCCL does in use_nccl.py and use_nccl_two_gpus.py."""


def each_rank(rank, ranks, store):
    """Every collective once; returns what the rank's sum came to."""
    import torch
    import torch.distributed as distributed
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=ranks,
                                   device_id=torch.device("cuda", rank))
    x = torch.full((1 << 16,), rank + 1.0, device="cuda")
    distributed.all_reduce(x)
    distributed.broadcast(x, 0)
    gathered = [torch.empty_like(x) for _ in range(ranks)]
    distributed.all_gather(gathered, x)
    out = torch.empty(x.numel() // ranks, device="cuda")
    distributed.reduce_scatter_tensor(out, x)
    distributed.all_to_all_single(torch.empty_like(x), x)
    if ranks > 1:
        other = torch.empty_like(x)
        for request in distributed.batch_isend_irecv([distributed.P2POp(distributed.isend, x, (rank + 1) % ranks),
                                                      distributed.P2POp(distributed.irecv, other, (rank - 1) % ranks)]):
            request.wait()
    distributed.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        distributed.all_reduce(y)
    graph.replay()
    value = y.double().sum().item()
    torch.cuda.synchronize()
    del graph
    half = distributed.new_group([0])
    if rank == 0:
        distributed.all_reduce(x, group=half)
        torch.cuda.synchronize()
    distributed.destroy_process_group()
    return value
