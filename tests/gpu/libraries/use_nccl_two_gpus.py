"""NCCL between two GPUs, one process each, through PyTorch; see parts.py."""
import os
import tempfile

import parts
from nccl_ranks import each_rank
from parts import part


def one_of_two(rank, store, answers):
    answers.put((rank, each_rank(rank, 2, store)))


@part(NCCL_MAX_NCHANNELS="2")  # with all its channels NCCL takes more than a test may
def collectives():
    import torch.multiprocessing as multiprocessing
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        children = [context.Process(target=one_of_two, args=(rank, os.path.join(folder, "store"), answers), daemon=True) for rank in range(2)]
        for child in children:
            child.start()
        values = dict(answers.get(timeout=120) for _ in children)
        for child in children:
            child.join(60)
    assert values[0] == values[1], values
    return values[0]


if __name__ == "__main__":
    parts.main("nvidia-nccl-cu13", "torch")
