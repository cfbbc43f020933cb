"""Training curves and logits of PEFT's LoRA, rsLoRA and DoRA on a small transformers Llama: data/lora/."""

import json

import numpy
import peft
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model

from common import DATA, VERSIONS, fresh, load_llama, write_json

OUT = DATA / "lora"
BASE = DATA / "curves" / "untied_matrices"
STEPS, BATCH, SEQ, LR = 20, 12, 24, 1e-3
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
VARIANTS = {"lora": {}, "rslora": dict(use_rslora=True), "dora": dict(use_dora=True)}


def batch(tokens, step):
    windows = (len(tokens) - 1) // SEQ
    starts = [(step * BATCH + i) % windows * SEQ for i in range(BATCH)]
    rows = torch.tensor(numpy.stack([tokens[s:s + SEQ + 1] for s in starts]).astype(numpy.int64))
    return rows[:, :-1], rows[:, 1:]


def save(model, folder):
    model.save_pretrained(fresh(folder))
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = None  # a path of this machine
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)


def train(model, tokens):
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() > 1]
    rest = [p for p in trained if p.dim() == 1]
    groups = [dict(params=matrices, weight_decay=0.1), dict(params=rest, weight_decay=0.0)]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=LR, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for step in range(STEPS):
        inputs, targets = batch(tokens, step)
        loss = F.cross_entropy(model(input_ids=inputs).logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(trained, 1.0).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def main():
    fresh(OUT)
    tokens = numpy.load(DATA / "curves" / "tokens.npy")
    ids = torch.tensor(tokens[:20].astype(numpy.int64)).reshape(2, 10)
    for number, (name, options) in enumerate(VARIANTS.items()):
        torch.manual_seed(number)
        # Without PEFT's zeros in B, so that the update has a part in the first step already.
        config = LoraConfig(r=4, lora_alpha=6, target_modules=TARGETS, init_lora_weights=False,
                            task_type="CAUSAL_LM", **options)
        model = get_peft_model(load_llama(BASE), config).train()
        with torch.no_grad():
            for key, p in model.named_parameters():
                if "lora_B" in key:
                    p.copy_(0.05 * torch.randn(p.shape))
        save(model, OUT / name)
        losses, norms = train(model, tokens)
        write_json(OUT / f"{name}.json", {
            "name": name, "initial_model": "untied_matrices", "adapter": name, "rank": 4, "alpha": 6.0,
            "rslora": "use_rslora" in options, "dora": "use_dora" in options, "steps": STEPS, "batch": BATCH,
            "seq_len": SEQ, "lr": LR, "losses": losses, "grad_norms": norms,
            "ids": ids.tolist(), "final_logits": model.eval()(input_ids=ids).logits[0, :2].tolist(),
            "made_with": VERSIONS | {"peft": peft.__version__}})
        print(f"{name:8} loss {losses[0]:.4f} -> {losses[-1]:.4f}, norm {min(norms):.3f} .. {max(norms):.3f}")


main()
