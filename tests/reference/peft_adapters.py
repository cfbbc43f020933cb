"""Folders of PEFT for a tiny Llama, with the logits of the model with each of them.

    peft_adapters.py

Writes data/adapters/NAME/{adapter_config.json, adapter_model.safetensors, expected.json}; the base model is
data/folders/plain.
"""

import copy
import json

import torch
from peft import LoraConfig, get_peft_model

from common import DATA, VERSIONS, evaluate, fresh, load_llama, write_json

OUT = DATA / "adapters"
BASE = DATA / "folders" / "plain"


def adapter(name, seed, **settings):
    model = get_peft_model(load_llama(BASE), LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **settings)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_A" in key or "lora_B" in key:
                p.copy_(0.2 * torch.randn(p.shape, generator=generator))
            elif "lora_magnitude_vector" in key:
                p.mul_(1 + 0.2 * torch.randn(p.shape, generator=generator))
    path = fresh(OUT / name)
    model.save_pretrained(path)
    (path / "README.md").unlink()
    config = json.loads((path / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "plain"
    config["target_modules"] = sorted(config["target_modules"])  # a set, whose order changes
    (path / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    for file in path.iterdir():
        file.chmod(0o644)
    ids = torch.tensor(json.loads((BASE / "expected.json").read_text())["input_ids"])
    logits, loss = evaluate(model, ids)
    merged, _ = evaluate(copy.deepcopy(model).merge_and_unload(), ids)
    write_json(path / "expected.json", {
        "versions": VERSIONS, "settings": settings, "input_ids": ids.tolist(), "logits": logits.tolist(), "loss": loss,
        "largest_difference_merged": (logits - merged).abs().max().item()})
    print(name, loss, (logits - merged).abs().max().item())


def main():
    fresh(OUT)
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    adapter("lora", 11, r=4, lora_alpha=8, target_modules=attention)
    adapter("rslora", 12, r=8, lora_alpha=4, use_rslora=True, target_modules=attention + ["gate_proj", "up_proj", "down_proj"])
    adapter("dora", 13, r=4, lora_alpha=8, use_dora=True, target_modules=["q_proj", "down_proj"])
    adapter("patterns", 14, r=4, lora_alpha=8, target_modules=attention,
            rank_pattern={"model.layers.1.self_attn.q_proj": 2, "k_proj": 2}, alpha_pattern={"k_proj": 6})


main()
