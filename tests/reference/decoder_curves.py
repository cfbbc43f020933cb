"""Training curves and folders of small decoders of several families, in float32 and in float64: data/decoders/."""

import copy

import numpy
import torch
from transformers import (Dots1Config, Dots1ForCausalLM, Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig,
                          LlamaForCausalLM, MistralConfig, MistralForCausalLM, Phi3Config, Phi3ForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)

from common import DATA, VERSIONS, Choices, evaluate, fresh, save_llama, write_json
from llama_curves import BATCH, SEQ, STEPS, train

OUT = DATA / "decoders"
SIZES = dict(vocab_size=101, hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=10,
             intermediate_size=36, num_hidden_layers=3, max_position_embeddings=64)
VARIANT = dict(decay="matrices", weight_decay=0.1, clip=1.0, schedule="constant")
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3 = PLAIN | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 16}
YARN = PLAIN | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = PLAIN | {"rope_type": "linear", "factor": 2.0}


class Norm64(torch.nn.Module):
    """A norm that stays in float64; transformers' norms go by way of float32."""

    def __init__(self, norm, offset):
        super().__init__()
        self.weight, self.offset = norm.weight, offset
        self.eps = getattr(norm, "variance_epsilon", None) or norm.eps

    def forward(self, x):
        weight = self.weight + 1 if self.offset else self.weight
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Rotary64(torch.nn.Module):
    """Tables in float64 of the frequencies that transformers has computed in float32."""

    def __init__(self, rotary):
        super().__init__()
        self.rotary = rotary

    def forward(self, x, position_ids, layer_type=None):
        prefix = f"{layer_type}_" if layer_type else ""
        frequencies = getattr(self.rotary, f"{prefix}inv_freq").double()
        scale = getattr(self.rotary, f"{prefix}attention_scaling")
        angles = (position_ids[..., None].double() * frequencies).repeat(1, 1, 2)
        return angles.cos() * scale, angles.sin() * scale


def to_double(model):
    double = copy.deepcopy(model)
    rotary = copy.deepcopy(model.model.rotary_emb)
    double = double.double()
    for name, module in list(double.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            parent, _, child = name.rpartition(".")
            setattr(double.get_submodule(parent), child, Norm64(module, "Gemma" in type(module).__name__))
    double.model.rotary_emb = Rotary64(rotary)
    return double


def make(config_class, model_class, seed, **changes):
    config = config_class(attn_implementation="eager", use_cache=False, **(SIZES | changes))
    model = model_class(config)
    offset = "Gemma" in model_class.__name__
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():  # a tied matrix appears once
            noise = torch.randn(p.shape, generator=generator)
            is_norm = "norm" in name
            p.copy_(0.1 * noise + (1 if is_norm and not offset else 0))
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.copy_(0.02 * torch.randn(b.shape, generator=generator))
    return model


def curve(name, seed, config_class, model_class, **changes):
    model = make(config_class, model_class, seed, **changes).train()
    save_llama(model, fresh(OUT / name))
    double = to_double(model)
    tokens = numpy.load(DATA / "curves" / "tokens.npy")
    with Choices(model) as choices:
        losses, norms, first, final = train(model, tokens, VARIANT)
    losses64, norms64, _, _ = train(double, tokens, VARIANT)
    write_json(OUT / f"{name}.json", {
        "name": name, "initial_model": name, "tokens": "tokens.npy", "model": SIZES,
        "data": dict(order="sequential", seq_len=SEQ, batch=BATCH),
        "optimizer": dict(name="adamw", lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, decay="matrices",
                          clip_grad_norm=1.0),
        "schedule": dict(name="constant"), "steps": STEPS, "lr": [1e-3] * STEPS,
        "losses": losses, "grad_norms": norms, "losses_f64": losses64, "grad_norms_f64": norms64,
        "first_grad_norms": first, "final_norms": final,
        **({"smallest_gap_between_chosen_and_not": choices.nearest} if choices.handles else {}), "made_with": VERSIONS})
    ids = torch.tensor(tokens[:20].astype(numpy.int64)).reshape(2, 10)
    logits, loss = evaluate(model.eval(), ids)
    wide, _ = evaluate(to_double(model), ids)
    write_json(OUT / f"{name}.final.json", {
        "input_ids": ids.tolist(), "shape": list(logits.shape), "logits": logits.tolist(), "loss": loss,
        "largest_f32_error": (logits - wide).abs().max().item(), "made_with": VERSIONS})
    print(name, losses[0], "->", losses[-1], "f32 against f64: loss",
          max(abs(a - b) for a, b in zip(losses, losses64)), "norm",
          max(abs(a - b) / b for a, b in zip(norms, norms64)), "nearest experts", choices.nearest)


def stacked_folder(name, seed, config_class, model_class, **changes):
    """A folder in bf16, in several files, with the experts as transformers 5 has them in memory; what it computes in
    float64."""
    path = fresh(OUT / name)
    make(config_class, model_class, seed, **changes).to(torch.bfloat16).save_pretrained(
        path, save_original_format=False, max_shard_size="40KB")
    for file in path.iterdir():
        file.chmod(0o644)
    model = model_class.from_pretrained(path, dtype=torch.float32, attn_implementation="eager",
                                        experts_implementation="eager", use_cache=False).eval()
    ids = torch.randint(0, SIZES["vocab_size"], (4 * 9 + 1,), generator=torch.Generator().manual_seed(seed))

    def loss(of):
        with torch.no_grad():
            logits = of(input_ids=ids[:-1].reshape(4, 9)).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[1:]).item()

    with Choices(model) as choices:
        expected = {"tokens": ids.tolist(), "rows": 4, "loss": loss(model)}
    write_json(path / "expected.json", {**expected, "loss_f64": loss(to_double(model)),
                                        "smallest_gap_between_chosen_and_not": choices.nearest, "made_with": VERSIONS})
    print(name, expected["loss"], "nearest experts", choices.nearest)


def main():
    fresh(OUT)
    curve("llama3", 31, LlamaConfig, LlamaForCausalLM, rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True,
          rms_norm_eps=1e-5)
    curve("mistral", 32, MistralConfig, MistralForCausalLM, rope_parameters=PLAIN, sliding_window=5)
    curve("qwen2", 33, Qwen2Config, Qwen2ForCausalLM, rope_parameters=YARN, tie_word_embeddings=True)
    curve("qwen3", 34, Qwen3Config, Qwen3ForCausalLM, rope_parameters=PLAIN, head_dim=12)
    curve("gemma2", 35, Gemma2Config, Gemma2ForCausalLM, rope_parameters=PLAIN, sliding_window=6,
          query_pre_attn_scalar=20, attn_logit_softcapping=2.0, final_logit_softcapping=3.0, pad_token_id=None)
    curve("gemma3", 36, Gemma3TextConfig, Gemma3ForCausalLM, sliding_window=6, query_pre_attn_scalar=14, pad_token_id=None,
          layer_types=["sliding_attention", "full_attention", "sliding_attention"],
          rope_parameters={"full_attention": LINEAR | {"rope_theta": 1000000.0}, "sliding_attention": PLAIN})
    # A seed with which no choice of experts is so near that rounding (1e-6) could change it.
    curve("qwen3_moe", 38, Qwen3MoeConfig, Qwen3MoeForCausalLM, rope_parameters=PLAIN, head_dim=12, num_hidden_layers=4,
          num_experts=6, num_experts_per_tok=3, experts_implementation="eager", moe_intermediate_size=20, norm_topk_prob=False, decoder_sparse_step=2,
          mlp_only_layers=[1])
    stacked_folder("qwen3_moe_stacked", 39, Qwen3MoeConfig, Qwen3MoeForCausalLM, rope_parameters=PLAIN, head_dim=12,
                   num_experts=4, num_experts_per_tok=2, experts_implementation="eager", moe_intermediate_size=12, norm_topk_prob=True,
                   mlp_only_layers=[0])
    curve("qwen2_moe", 40, Qwen2MoeConfig, Qwen2MoeForCausalLM, rope_parameters=PLAIN, num_experts=5, num_experts_per_tok=2,
          experts_implementation="eager", moe_intermediate_size=16, shared_expert_intermediate_size=24, norm_topk_prob=False,
          mlp_only_layers=[2])
    curve("dots1", 41, Dots1Config, Dots1ForCausalLM, rope_parameters=PLAIN, n_routed_experts=8, num_experts_per_tok=3,
          n_shared_experts=2, n_group=4, topk_group=2, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=1.5,
          experts_implementation="eager", moe_intermediate_size=16)
    curve("phi3", 37, Phi3Config, Phi3ForCausalLM, rope_parameters=PLAIN, sliding_window=7, pad_token_id=None, eos_token_id=2)


if __name__ == "__main__":
    main()
