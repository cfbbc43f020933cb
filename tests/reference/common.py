"""What the reference scripts share: places, JSON writing and the Llama helpers."""

import json
import os
import pathlib
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

DATA = pathlib.Path(__file__).resolve().parent / "data"
VERSIONS = {"torch": torch.__version__, "transformers": transformers.__version__}


def write_json(path, value):
    """One line for each top-level entry. Infinities and NaN are errors, since JSON has none."""
    if isinstance(value, dict):
        lines = [f"{json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in value.items()]
        text = "{\n" + ",\n".join(lines) + "\n}\n"
    else:
        text = "[\n" + ",\n".join(json.dumps(v, allow_nan=False) for v in value) + "\n]\n"
    path.write_text(text)


def write_tensors(path, tensors):
    save_file(tensors, path)
    path.chmod(0o644)


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def make_llama(seed, std, theta=10000.0, **sizes):
    """A Llama in float32 with normal weights of the given deviation and norm weights near one."""
    config = LlamaConfig(
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        rms_norm_eps=1e-5, attn_implementation="sdpa", use_cache=False, **sizes)
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():  # a tied matrix appears once
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(std * noise if p.dim() > 1 else 1 + 0.1 * noise)
    return model


def save_llama(model, folder, **options):
    model.save_pretrained(folder, **options)
    for path in folder.iterdir():
        path.chmod(0o644)


def load_llama(folder, dtype=torch.float32):
    return LlamaForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa", use_cache=False).eval()


class Norm64(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Rotary64(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.theta, self.dim = config.rope_parameters["rope_theta"], config.head_dim

    def forward(self, x, position_ids):
        inverse = self.theta ** (-torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim)
        angles = (position_ids[..., None].double() * inverse).repeat(1, 1, 2)
        return angles.cos(), angles.sin()


def to_double(model):
    """The same model in float64. transformers' norms and rotary tables stay in float32 whatever
    the weights are, so both are replaced."""
    copy = LlamaForCausalLM(model.config).double()
    copy.load_state_dict(model.state_dict())
    for name, module in list(copy.named_modules()):
        if isinstance(module, LlamaRMSNorm):
            parent, _, child = name.rpartition(".")
            setattr(copy.get_submodule(parent), child, Norm64(module))
    copy.model.rotary_emb = Rotary64(model.config)
    return copy


class Choices:
    """How far the last chosen expert of any token is before the first one that was not chosen, in probability: where
    that is near, rounding could change the choice."""

    def __init__(self, model):
        self.nearest = 1.0
        self.handles = [layer.mlp.gate.register_forward_hook(self.note) for layer in model.model.layers
                        if hasattr(layer.mlp, "gate")]

    def note(self, module, inputs, outputs):
        if hasattr(module, "e_score_correction_bias"):
            self.note_groups(module, outputs[0].float().sigmoid() + module.e_score_correction_bias)
            return
        probabilities = torch.softmax(outputs[0].float(), -1).sort(-1, descending=True).values
        k = module.top_k
        if k < probabilities.shape[-1]:
            self.nearest = min(self.nearest, (probabilities[:, k - 1] - probabilities[:, k]).min().item())

    def note_groups(self, module, scores):
        """Of groups of experts, and then of the experts of a token's groups."""
        grouped = scores.unflatten(-1, (module.num_group, -1))
        best = grouped.topk(2, dim=-1).values.sum(-1)
        order = best.sort(-1, descending=True)
        if module.topk_group < module.num_group:
            gap = order.values[:, module.topk_group - 1] - order.values[:, module.topk_group]
            self.nearest = min(self.nearest, gap.min().item())
        inside = grouped.gather(1, order.indices[:, :module.topk_group, None].expand(-1, -1, grouped.shape[-1]))
        chosen = inside.flatten(1).sort(-1, descending=True).values
        if module.top_k < chosen.shape[-1]:
            self.nearest = min(self.nearest, (chosen[:, module.top_k - 1] - chosen[:, module.top_k]).min().item())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for handle in self.handles:
            handle.remove()


def evaluate(model, ids):
    """Logits [B, T, V] and the mean cross entropy of predicting ids[:, 1:] from logits[:, :-1]."""
    with torch.no_grad():
        logits = model(input_ids=ids).logits
        wide = logits if logits.dtype == torch.float64 else logits.float()
        loss = F.cross_entropy(wide[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return wide, loss.item()


def write_expected(path, model, ids, **more):
    """The logits that a folder must give (also what check_export.py compares with)."""
    logits, loss = evaluate(model, ids)
    logits64, loss64 = evaluate(to_double(model), ids)
    write_json(path, {
        "loss_meaning": "mean cross entropy of predicting input_ids[:, 1:] from logits[:, :-1]",
        "input_ids": ids.tolist(), "shape": list(logits.shape), "logits": logits.tolist(), "loss": loss,
        "loss_f64": loss64, "largest_f32_error": (logits - logits64).abs().max().item(), **more, "made_with": VERSIONS})
