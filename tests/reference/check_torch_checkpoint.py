"""Whether torch.distributed.checkpoint reads what Tessera wrote from the stored folder `one`.

    python check_torch_checkpoint.py FOLDER
"""

import sys

import torch
import torch.distributed.checkpoint as dcp
from torch_checkpoints import plain

flat = {}
for name, value in plain().items():
    if isinstance(value, dict):
        flat.update({f"{name}.{inner}": tensor for inner, tensor in value.items()})
    elif isinstance(value, (int, float, str)):
        flat[name] = value

wanted = {name: torch.zeros_like(v) if isinstance(v, torch.Tensor) else type(v)() for name, v in flat.items()}
dcp.load(wanted, checkpoint_id=sys.argv[1], no_dist=True)
for name, value in flat.items():
    if isinstance(value, torch.Tensor):
        assert wanted[name].dtype == value.dtype and torch.equal(wanted[name], value), name
    else:
        assert wanted[name] == value, (name, wanted[name], value)
print(f"{len(flat)} values agree")
