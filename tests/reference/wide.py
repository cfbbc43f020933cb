"""Runs of transformers' models in float64. Its classes convert to float32 at many places (norms, softmax, rotary tables, routers)
whatever their weights are; inside of `Wide` these conversions of float64 tensors do nothing."""

import torch
from torch.overrides import TorchFunctionMode

NARROW = (torch.float32, torch.float)


def widened(value):
    return torch.float64 if value in NARROW else value


def holds(tree, dtype):
    if isinstance(tree, torch.Tensor):
        return tree.dtype == dtype
    return isinstance(tree, (tuple, list)) and any(holds(value, dtype) for value in tree)


class Wide(TorchFunctionMode):
    """`narrowed` has the functions that made float32 of float64 nevertheless, `nearest` how far the last chosen of any topk is before the
    first that was not chosen: where that is near, rounding could change the choice."""

    def __init__(self):
        super().__init__()
        self.narrowed, self.nearest = set(), 1.0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name == "topk":
            self.note(*args, **kwargs)
        if not holds(list(args) + list(kwargs.values()), torch.float64):
            return function(*args, **kwargs)
        if name == "float" and function is torch.Tensor.float:
            return args[0]
        if name in ("to", "type", "softmax", "_softmax", "sum", "mean", "cumsum", "zeros_like", "log_softmax", "tensor"):
            args = tuple(widened(a) if isinstance(a, torch.dtype) else a for a in args)
            if isinstance(kwargs.get("dtype"), torch.dtype):
                kwargs["dtype"] = widened(kwargs["dtype"])
        result = function(*args, **kwargs)
        if name not in ("dtype", "__get__") and holds(result, torch.float32):
            self.narrowed.add(name)
        return result

    def note(self, values, k, dim=-1, *rest, **more):
        if values.is_floating_point() and dim in (-1, values.dim() - 1) and k < values.shape[-1]:
            order = values.detach().sort(-1, descending=True).values
            gap = order[..., k - 1] - order[..., k]
            allowed = (order[..., k] != 0) & (order[..., k] > torch.finfo(torch.float32).min)  # the others are masked
            if allowed.any():
                self.nearest = min(self.nearest, gap[allowed].min().item())
