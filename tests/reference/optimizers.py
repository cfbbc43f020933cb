"""Optimizer steps with given gradients: data/optimizers.json, data/optimizers.safetensors.

An entry: {"name", "optimizer", "dtype", options, "lr": one for each step, "params"}, each parameter
{"initial", "grads", "after", "state"}.
grads and after hold one tensor key for each step (a null gradient: the parameter is skipped in that step);
state maps the names of the optimizer's tensors after the last step to keys, and "step" to the number of updates.
"""

import zlib

import torch

from common import DATA, write_json, write_tensors

STEPS = 5
SHAPES = [(3, 5), (7,), (1, 2, 3)]
ADAMW = dict(lr=1e-2, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.01)
SGD = dict(lr=0.1, momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0)
CASES = {
    "adamw": ADAMW,
    "adamw_no_decay": ADAMW | dict(weight_decay=0.0),
    "adamw_strong_decay": ADAMW | dict(weight_decay=0.5),
    "adamw_large_eps": ADAMW | dict(eps=0.1),
    "adamw_betas": ADAMW | dict(betas=[0.8, 0.95], lr=1e-3),
    "adamw_no_memory": ADAMW | dict(betas=[0.0, 0.0]),
    "adamw_small_gradients": ADAMW | dict(betas=[0.9, 0.95], gradient_scale=1e-7),
    "adamw_zero_gradients": ADAMW | dict(gradient_scale=0.0),
    "adamw_schedule": ADAMW | dict(lr=[1e-3, 2e-3, 4e-3, 2e-3, 0.0]),
    "adamw_skipped": ADAMW | dict(skipped=[[0, 1], [1, 0], [1, 3]]),
    "sgd": SGD,
    "sgd_decay": SGD | dict(weight_decay=0.1),
    "sgd_momentum": SGD | dict(momentum=0.9),
    "sgd_momentum_decay": SGD | dict(momentum=0.9, weight_decay=0.1),
    "sgd_dampening": SGD | dict(momentum=0.8, dampening=0.3, weight_decay=0.05),
    "sgd_nesterov": SGD | dict(momentum=0.9, nesterov=True),
    "sgd_nesterov_decay": SGD | dict(momentum=0.7, nesterov=True, weight_decay=0.1),
    "sgd_schedule": SGD | dict(momentum=0.9, lr=[0.01, 0.05, 0.1, 0.05, 0.0]),
    "sgd_skipped": SGD | dict(momentum=0.9, skipped=[[0, 1], [1, 0]]),
}


def run(name, options, dtype, tensors):
    options = dict(options)
    rates = options.pop("lr") if isinstance(options["lr"], list) else [options.pop("lr")] * STEPS
    scale, skipped = options.pop("gradient_scale", 1.0), options.pop("skipped", [])
    kind = name.split("_")[0]
    case = f"{name}_{'f64' if dtype == torch.float64 else 'f32'}"
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    draw = lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    params = [torch.nn.Parameter(draw(shape)) for shape in SHAPES]

    def store(key, x):
        tensors[f"{case}/{key}"] = x.detach().clone()
        return f"{case}/{key}"

    entries = [{"initial": store(f"{i}/initial", p), "grads": [], "after": [], "state": {}} for i, p in enumerate(params)]
    arguments = options | ({"betas": tuple(options["betas"])} if "betas" in options else {})
    optimizer = dict(adamw=torch.optim.AdamW, sgd=torch.optim.SGD)[kind](params, lr=rates[0], **arguments)
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        for i, p in enumerate(params):
            grad = draw(p.shape) * scale
            p.grad = None if [i, step] in skipped else grad
            entries[i]["grads"].append(None if p.grad is None else store(f"{i}/grad{step}", grad))
        optimizer.step()
        for i, p in enumerate(params):
            entries[i]["after"].append(store(f"{i}/after{step}", p))
    for i, p in enumerate(params):
        for key, value in optimizer.state[p].items():
            if key == "step":
                entries[i]["state"]["step"] = int(value)
            elif value is not None:
                entries[i]["state"][key] = store(f"{i}/{key}", value)
    return {"name": case, "optimizer": kind, "dtype": case[-3:]} | options | {"lr": rates, "params": entries}


def main():
    tensors = {}
    entries = [run(name, options, dtype, tensors)
               for name, options in CASES.items() for dtype in (torch.float64, torch.float32)]
    write_tensors(DATA / "optimizers.safetensors", tensors)
    write_json(DATA / "optimizers.json", entries)
    print(len(entries), "cases,", len(tensors), "tensors")


main()
