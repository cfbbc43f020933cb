"""A training curve and folders of a small transformers Mixtral, in float32 and in float64: data/mixtral/."""

import copy

import numpy
import torch
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral.modeling_mixtral import MixtralRMSNorm

from common import DATA, VERSIONS, Choices, Norm64, Rotary64, evaluate, fresh, save_llama, write_json
from llama_curves import BATCH, SEQ, STEPS, train

OUT = DATA / "mixtral"
SIZES = dict(vocab_size=101, hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=10,
             intermediate_size=36, num_hidden_layers=3, num_local_experts=4, num_experts_per_tok=2,
             max_position_embeddings=64)
VARIANT = dict(decay="matrices", weight_decay=0.1, clip=1.0, schedule="constant")


def make(seed, **changes):
    config = MixtralConfig(rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, rms_norm_eps=1e-5,
                           attn_implementation="sdpa", experts_implementation="eager", use_cache=False,
                           **(SIZES | changes))
    model = MixtralForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(0.1 * noise if p.dim() > 1 else 1 + 0.1 * noise)
    return model


def to_double(model):
    """The same in float64; transformers' norms, rotary tables and router stay in float32 otherwise."""
    double = copy.deepcopy(model).double()
    for name, module in list(double.named_modules()):
        if isinstance(module, MixtralRMSNorm):
            parent, _, child = name.rpartition(".")
            setattr(double.get_submodule(parent), child, Norm64(module))
    double.model.rotary_emb = Rotary64(model.config)
    return double


def curve(name, seed, **changes):
    model = make(seed, **changes).train()
    save_llama(model, fresh(OUT / name))
    double = to_double(model)
    tokens = numpy.load(DATA / "curves" / "tokens.npy")
    with Choices(model) as choices:
        losses, norms, first, final = train(model, tokens, VARIANT)
    losses64, norms64, _, _ = train(double, tokens, VARIANT)
    write_json(OUT / f"{name}.json", {
        "name": name, "initial_model": name, "tokens": "tokens.npy", "model": SIZES | changes,
        "data": dict(order="sequential", seq_len=SEQ, batch=BATCH),
        "optimizer": dict(name="adamw", lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, decay="matrices",
                          clip_grad_norm=1.0),
        "schedule": dict(name="constant"), "steps": STEPS, "lr": [1e-3] * STEPS,
        "losses": losses, "grad_norms": norms, "losses_f64": losses64, "grad_norms_f64": norms64,
        "smallest_gap_between_chosen_and_not": choices.nearest, "first_grad_norms": first, "final_norms": final,
        "made_with": VERSIONS})
    ids = torch.tensor(tokens[:20].astype(numpy.int64)).reshape(2, 10)
    logits, loss = evaluate(model.eval(), ids)
    wide, _ = evaluate(to_double(model), ids)
    write_json(OUT / f"{name}.final.json", {
        "input_ids": ids.tolist(), "shape": list(logits.shape), "logits": logits.tolist(), "loss": loss,
        "largest_f32_error": (logits - wide).abs().max().item(), "made_with": VERSIONS})
    print(name, losses[0], "->", losses[-1], "f32 against f64: loss",
          max(abs(a - b) for a, b in zip(losses, losses64)), "norm",
          max(abs(a - b) / b for a, b in zip(norms, norms64)), "smallest gap", choices.nearest)


def main():
    fresh(OUT)
    # Seeds with which no choice of experts is so near that rounding (1e-6) could change it.
    curve("four", 12)
    curve("eight", 9, num_local_experts=8, num_experts_per_tok=3, num_hidden_layers=2)


main()
