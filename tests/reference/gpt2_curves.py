"""Training curves and folders of a small transformers GPT-2, in float32 and in float64: data/gpt2/."""

import copy
import json

import numpy
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from common import DATA, VERSIONS, evaluate, fresh, save_llama, write_json, write_tensors
from llama_curves import train

OUT = DATA / "gpt2"
SIZES = dict(vocab_size=101, n_embd=40, n_head=4, n_layer=3, n_inner=72, n_positions=32)
STEPS, BATCH, SEQ = 20, 12, 24
VARIANT = dict(decay="matrices", weight_decay=0.1, clip=1.0, schedule="constant")


def make(seed, **changes):
    config = GPT2Config(**(SIZES | changes), resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=7,
                        eos_token_id=7, attn_implementation="sdpa", use_cache=False)
    model = GPT2LMHeadModel(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():  # a tied matrix appears once
            noise = torch.randn(p.shape, generator=generator)
            norm = ".ln_" in name and name.endswith("weight")
            p.copy_(1 + 0.1 * noise if norm else 0.1 * noise)
    return model


def expected(path, model, ids):
    logits, loss = evaluate(model.eval(), ids)
    wide, _ = evaluate(copy.deepcopy(model).double(), ids)
    write_json(path, {"input_ids": ids.tolist(), "shape": list(logits.shape), "logits": logits.tolist(), "loss": loss,
                      "largest_f32_error": (logits - wide).abs().max().item(), "made_with": VERSIONS})


def without_prefix(folder):
    """As the base model's class, and the first folders of GPT-2, name the tensors."""
    file = folder / "model.safetensors"
    tensors = {name.removeprefix("transformer."): value for name, value in load_file(file).items()}
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)
    write_tensors(file, tensors)
    config = json.loads((folder / "config.json").read_text())
    del config["n_inner"], config["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def curve(name, number, **changes):
    model = make(number, **changes).train()
    save_llama(model, fresh(OUT / name))
    double = copy.deepcopy(model).double()
    tokens = numpy.load(DATA / "curves" / "tokens.npy")
    losses, norms, _, _ = train(model, tokens, VARIANT)
    losses64, norms64, _, _ = train(double, tokens, VARIANT)
    write_json(OUT / f"{name}.json", {
        "name": name, "initial_model": "../gpt2/" + name, "tokens": "tokens.npy", "model": SIZES | changes,
        "data": dict(order="sequential", seq_len=SEQ, batch=BATCH),
        "optimizer": dict(name="adamw", lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, decay="matrices",
                          clip_grad_norm=1.0),
        "schedule": dict(name="constant"), "steps": STEPS, "lr": [1e-3] * STEPS,
        "losses": losses, "grad_norms": norms, "losses_f64": losses64, "grad_norms_f64": norms64,
        "made_with": VERSIONS})
    ids = torch.tensor(tokens[:20].astype(numpy.int64)).reshape(2, 10)
    expected(OUT / f"{name}.final.json", model, ids)
    print(name, losses[0], "->", losses[-1], "f32 against f64:",
          max(abs(a - b) for a, b in zip(losses, losses64)))


def main():
    fresh(OUT)
    curve("tied", 0)
    curve("untied", 1, tie_word_embeddings=False)
    plain = make(2, n_inner=None)
    save_llama(plain, fresh(OUT / "first_form"))
    without_prefix(OUT / "first_form")
    ids = torch.randint(0, SIZES["vocab_size"], (2, 10), generator=torch.Generator().manual_seed(3))
    expected(OUT / "first_form" / "expected.json", plain, ids)


main()
