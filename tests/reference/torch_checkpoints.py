"""Writes the stored folders of torch.distributed.checkpoint: data/torch/one (one process) and data/torch/two
(two processes, with a tensor that is cut over them).

    python torch_checkpoints.py [FOLDER]

Element i of a tensor is (i - 5) / 4; of whole numbers i % 3.
"""

import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def floats(*shape, dtype=torch.float32):
    count = torch.Size(shape).numel()
    return ((torch.arange(count, dtype=torch.float64) - 5) / 4).to(dtype).reshape(shape)


def integers(*shape, dtype):
    return (torch.arange(torch.Size(shape).numel()) % 3).to(dtype).reshape(shape)


def plain():
    return {
        "model": {
            "f32": floats(3, 4),
            "bf16": floats(5, dtype=torch.bfloat16),
            "f16": floats(2, 3, dtype=torch.float16),
            "f64": floats(2, 1, 2, dtype=torch.float64),
            "i64": integers(4, dtype=torch.int64),
            "i32": integers(2, 2, dtype=torch.int32),
            "u8": integers(7, dtype=torch.uint8),
            "i8": integers(5, dtype=torch.int8),
            "f8e4m3": floats(3, 2, dtype=torch.float8_e4m3fn),
            "f8e5m2": floats(4, dtype=torch.float8_e5m2),
            "flags": integers(6, dtype=torch.int64) == 1,
            "transposed": floats(4, 3).t(),
            "slice": floats(6, 5)[1:4, 2:],
            "scalar": torch.tensor(2.5),
            "empty": torch.zeros(0, 3),
        },
        "step": 7,
        "big": -(2**62),
        "lr": 0.125,
        "name": "caf\u00e9",
        "flag": True,
        "nothing": None,
        "betas": [0.9, 0.95],
    }


def one_rank(rank, world, folder, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    state = {
        "rows": distribute_tensor(floats(5, 4), mesh, [Shard(0)]),
        "columns": distribute_tensor(floats(4, 3), mesh, [Shard(1)]),
        "same": distribute_tensor(floats(6), mesh, [Replicate()]),
        "short": distribute_tensor(floats(1, 2), mesh, [Shard(0)]),
        "step": 3,
    }
    dcp.save(state, checkpoint_id=folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    to = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "data" / "torch")
    shutil.rmtree(to, ignore_errors=True)
    dcp.save(plain(), checkpoint_id=str(to / "one"), no_dist=True)
    mp.spawn(one_rank, args=(2, str(to / "two"), 29517), nprocs=2)
