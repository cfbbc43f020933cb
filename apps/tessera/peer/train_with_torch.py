# The training that FOLDER describes, under PyTorch: `tessera bench compare` starts it, for a comparison.
#   python train_with_torch.py FOLDER
# or by torch.distributed.run, on as many ranks as it says. FOLDER has run.json (sizes, optimizer, layout),
# weights.safetensors (by the names of transformers) and rows.safetensors (inputs and targets [steps, rows, tokens]);
# rank 0 writes torch.json: the loss and the seconds of each step.
import json
import math
import os
import resource
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def read_safetensors(path):
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        body = bytearray(file.read())
    types = {"F32": torch.float32, "I64": torch.int64}
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            flat = torch.frombuffer(body, dtype=types[entry["dtype"]], count=(end - begin) // types[entry["dtype"]].itemsize,
                                    offset=begin)
            tensors[name] = flat.reshape(entry["shape"])
    return tensors


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.head_dim = s["head_dim"]
        self.q_proj = nn.Linear(s["dim"], s["heads"] * self.head_dim, bias=False)
        self.k_proj = nn.Linear(s["dim"], s["kv_heads"] * self.head_dim, bias=False)
        self.v_proj = nn.Linear(s["dim"], s["kv_heads"] * self.head_dim, bias=False)
        self.o_proj = nn.Linear(s["heads"] * self.head_dim, s["dim"], bias=False)

    def forward(self, x, cos, sin):
        rows, tokens, _ = x.shape
        q, k, v = (f(x).view(rows, tokens, -1, self.head_dim).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        mixed = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, tokens, -1))


class FeedForward(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gate_proj = nn.Linear(s["dim"], s["ffn_dim"], bias=False)
        self.up_proj = nn.Linear(s["dim"], s["ffn_dim"], bias=False)
        self.down_proj = nn.Linear(s["ffn_dim"], s["dim"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.input_layernorm, self.self_attn = RMSNorm(s["dim"], s["norm_eps"]), Attention(s)
        self.post_attention_layernorm, self.mlp = RMSNorm(s["dim"], s["norm_eps"]), FeedForward(s)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed_tokens = nn.Embedding(s["vocab"], s["dim"])
        self.layers = nn.ModuleList(Layer(s) for _ in range(s["layers"]))
        self.norm = RMSNorm(s["dim"], s["norm_eps"])


class Llama(nn.Module):
    def __init__(self, s, tokens):
        super().__init__()
        self.model, self.lm_head = Decoder(s), nn.Linear(s["dim"], s["vocab"], bias=False)
        if s["tie_embeddings"]:
            self.lm_head.weight = self.model.embed_tokens.weight
        rates = 1.0 / s["rope_theta"] ** (torch.arange(0, s["head_dim"], 2).float() / s["head_dim"])
        angles = torch.outer(torch.arange(tokens).float(), rates)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, self.cos, self.sin)
        return self.lm_head(self.model.norm(x))


def distribute(model, layout, ranks):
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (ranks,))
    if layout == "fully_sharded":
        from torch.distributed.fsdp import fully_shard
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    if layout == "replicated":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    columns, rows = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ("o_proj", "down_proj")
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            names = [name for name, _ in part.named_children()]
            parallelize_module(part, mesh, {name: ColwiseParallel() for name in names if name in columns}
                               | {name: RowwiseParallel() for name in names if name in rows})
    return model


def clip(parameters, most):
    """clip_grad_norm_ for gradients of which some are distributed and some are not."""
    gradients = [parameter.grad for parameter in parameters]
    whole = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm
             for norm in (torch.linalg.vector_norm(gradient) for gradient in gradients)]
    factor = torch.clamp(most / (torch.linalg.vector_norm(torch.stack(whole)) + 1e-6), max=1.0)
    for gradient in gradients:
        (gradient.to_local() if hasattr(gradient, "to_local") else gradient).mul_(factor)


def main():
    folder = sys.argv[1]
    with open(os.path.join(folder, "run.json")) as file:
        run = json.load(file)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_num_threads(run["threads"])
    rows = read_safetensors(os.path.join(folder, "rows.safetensors"))
    model = Llama(run["model"], rows["inputs"].shape[2])
    missing = model.load_state_dict(read_safetensors(os.path.join(folder, "weights.safetensors")), strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
    layout = run["layout"]
    if ranks > 1:
        dist.init_process_group("gloo")
        model = distribute(model, layout, ranks)
    split = layout in ("fully_sharded", "replicated")
    optimizer_run = run["optimizer"]
    decayed, others = [], []
    for parameter in model.parameters():
        (decayed if optimizer_run["decay"] == "all" or parameter.dim() > 1 else others).append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": optimizer_run["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
        lr=1e-3, betas=optimizer_run["betas"], eps=optimizer_run["eps"], fused=layout != "tensor_parallel")
    forward = torch.compile(model) if run["compile"] else model
    losses, seconds = [], []
    for step, lr in enumerate(run["lr"]):
        start = time.perf_counter()
        inputs, targets = rows["inputs"][step], rows["targets"][step]
        if split and ranks > 1:
            inputs, targets = inputs.chunk(ranks)[rank], targets.chunk(ranks)[rank]
        loss = F.cross_entropy(forward(inputs).flatten(0, 1).float(), targets.flatten())
        loss.backward()
        if run["clip"] > 0:
            limit = clip if layout == "tensor_parallel" else torch.nn.utils.clip_grad_norm_
            limit(list(model.parameters()), run["clip"])
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        if split and ranks > 1:
            dist.all_reduce(total)
            total /= ranks
        losses.append(total.item())
        if not math.isfinite(losses[-1]):
            raise SystemExit(f"step {step + 1}: the loss is {losses[-1]}")
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        with open(os.path.join(folder, "torch.json"), "w") as file:
            json.dump({"version": torch.__version__, "losses": losses, "seconds": seconds,
                       "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}, file)
    if ranks > 1:
        dist.barrier()
        # Without taking PyTorch apart: its threads abort now and then when they are ended.
        os._exit(0)


main()
