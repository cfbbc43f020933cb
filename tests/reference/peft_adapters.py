"""Folders of PEFT for tiny models, with the logits of the model with each of them.

    peft_adapters.py [NAME...]

Writes data/adapters/NAME/{adapter_config.json, adapter_model.safetensors, expected.json}, all or those named; the base
model is data/folders/plain, or what expected.json names.
"""

import copy
import json
import sys

import torch
from peft import LoraConfig, get_peft_model

from transformers import AutoModelForCausalLM

from common import DATA, VERSIONS, evaluate, fresh, write_json

OUT = DATA / "adapters"
PLAIN = "folders/plain"


def adapter(name, seed, base=PLAIN, kernel="sdpa", **settings):
    if sys.argv[1:] and name not in sys.argv[1:]:
        return
    folder = DATA / base
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=kernel, use_cache=False)
    model = get_peft_model(plain.eval(), LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **settings)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_A" in key or "lora_B" in key:
                p.copy_(0.2 * torch.randn(p.shape, generator=generator))
            elif "lora_magnitude_vector" in key:
                p.mul_(1 + 0.2 * torch.randn(p.shape, generator=generator))
            elif "modules_to_save" in key:
                p.add_(0.2 * torch.randn(p.shape, generator=generator))
    path = fresh(OUT / name)
    model.save_pretrained(path)
    (path / "README.md").unlink()
    config = json.loads((path / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = base.split("/")[-1]
    config["target_modules"] = sorted(config["target_modules"])  # a set, whose order changes
    (path / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    for file in path.iterdir():
        file.chmod(0o644)
    ids = torch.tensor(json.loads((DATA / PLAIN / "expected.json").read_text())["input_ids"])
    ids = ids % plain.config.vocab_size
    logits, loss = evaluate(model, ids)
    merged, _ = evaluate(copy.deepcopy(model).merge_and_unload(), ids)
    write_json(path / "expected.json", {
        "versions": VERSIONS, "base": base, "settings": settings, "input_ids": ids.tolist(), "logits": logits.tolist(), "loss": loss,
        "largest_difference_merged": (logits - merged).abs().max().item()})
    print(name, loss, (logits - merged).abs().max().item())


def main():
    OUT.mkdir(exist_ok=True)
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    adapter("lora", 11, r=4, lora_alpha=8, target_modules=attention)
    adapter("rslora", 12, r=8, lora_alpha=4, use_rslora=True, target_modules=attention + ["gate_proj", "up_proj", "down_proj"])
    adapter("dora", 13, r=4, lora_alpha=8, use_dora=True, target_modules=["q_proj", "down_proj"])
    adapter("patterns", 14, r=4, lora_alpha=8, target_modules=attention,
            rank_pattern={"model.layers.1.self_attn.q_proj": 2, "k_proj": 2}, alpha_pattern={"k_proj": 6})
    # Of families whose parameters have other forms in a folder, and weights beside the updates.
    adapter("saved_head", 15, r=4, lora_alpha=8, target_modules="all-linear", modules_to_save=["lm_head", "embed_tokens"])
    adapter("conv1d", 16, base="gpt2/tied", r=4, lora_alpha=8, target_modules=["c_attn", "c_proj", "c_fc"])
    adapter("conv1d_dora", 17, base="gpt2/tied", r=4, lora_alpha=8, use_dora=True, target_modules=["c_attn", "mlp.c_proj"])
    adapter("fused", 18, base="decoders/phi3", r=4, lora_alpha=8, target_modules=["qkv_proj", "gate_up_proj", "o_proj"])
    # With sinks and experts beside the layers; updates of the experts' parameters are refused.
    adapter("sinks", 19, base="families/gpt_oss", kernel="eager", r=4, lora_alpha=8, target_modules=attention)
    adapter("experts", 20, base="families/gpt_oss", kernel="eager", r=2, lora_alpha=4, target_modules=attention,
            target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])


main()
