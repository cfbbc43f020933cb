"""Tiny random models of the types in family_configs.py: folders in bfloat16 with logits, gradients, training curves and greedy texts, computed in
float32 and in float64: data/families/."""

import argparse
import copy
import json
import pathlib
import random
import tempfile

import numpy
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from common import DATA, VERSIONS, fresh, write_json, write_tensors
from family_configs import FAMILIES, SIZES
from family_draws import draw
from llama_curves import BATCH, SEQ, STEPS, batch
from wide import Wide

OUT = DATA / "families"
EAGER = dict(attn_implementation="eager", experts_implementation="eager")
ROWS, LENGTH = 2, 10
GREEDY, DISTINCT = 64, 20
PENALTIES = [1.5, 3.0, 8.0]  # the first one with which a text has DISTINCT tokens: small models would repeat one


def markov(count, seed):
    """Each token has four likely successors; one token in ten is drawn from all."""
    rng = numpy.random.default_rng(seed)
    vocab = SIZES["vocab_size"]
    successors = rng.integers(0, vocab, (vocab, 4))
    tokens = [0]
    while len(tokens) < count:
        likely = successors[tokens[-1], rng.choice(4, p=[0.5, 0.25, 0.15, 0.1])]
        tokens.append(int(rng.integers(vocab) if rng.random() < 0.1 else likely))
    return numpy.array(tokens, dtype=numpy.uint16)


def short(values):
    """Numbers with 9 digits, which tell all float32 values apart."""
    if isinstance(values, float):
        return float(f"{values:.9g}")
    return [short(v) for v in values] if isinstance(values, (list, tuple)) else values


def scatter(model, seed):
    """Gives every parameter, and buffers that choose experts, multiples of 1/64, which bfloat16 has and which compress well: no norm is one, no
    bias zero."""
    generator = torch.Generator().manual_seed(seed)

    def around(centre, deviation, p):
        value = centre + deviation * torch.randn(p.shape, generator=generator)
        p.copy_((value * 64).round().div(64).to(torch.bfloat16))

    with torch.no_grad():
        for name, p in model.named_parameters():  # a tied matrix appears once
            if name.endswith("A_log"):
                around(0, 0.5, p)
            elif name.endswith("dt_bias"):
                around(-0.5, 0.7, p)
            elif p.numel() > 1 and (p == 1).all():  # norms, also those with weights for each head
                around(1, 0.15, p)
            elif p.dim() > 1:
                # Queries and keys that are divided by their lengths must not be short.
                around(0, 0.8 if "attn.conv" in name else 0.4 if "conv" in name or "in_proj_qkv" in name else 0.15, p)
            else:
                around(p, 0.7 if name.endswith("sinks") else 0.15, p)
        for name, b in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                around(0, 0.08, b)
            elif name.endswith("layer_scalar"):
                around(1, 0.15, b)


def make(name, seed, folder, classes, config):
    """Saves a model of this config in bfloat16 and reads it again in float32."""
    torch.manual_seed(seed)
    model = classes.from_config(AutoConfig.for_model(name, use_cache=False, **config), **EAGER)
    scatter(model, seed)
    narrow = copy.deepcopy(model).to(torch.bfloat16)
    narrow.config.dtype = torch.bfloat16
    narrow.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    for path in folder.iterdir():
        path.chmod(0o644)
    read = classes.from_pretrained(folder, dtype=torch.float32, **EAGER)
    for (key, a), (_, b) in zip(model.named_parameters(), read.named_parameters(), strict=True):
        assert torch.equal(a, b), key
    return read


def names_of_folder(model, values):
    """Tensors of the model's parameters under the names and in the form that save_pretrained gives them."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in other.named_parameters():
            p.copy_(values[name])
    with tempfile.TemporaryDirectory() as folder:
        other.save_pretrained(folder)
        return load_file(pathlib.Path(folder) / "model.safetensors")


def loss_of(model, ids):
    logits = model(input_ids=ids).logits
    return logits, torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def gradients(double, loss_of):
    """Of each tensor of the folder: its norm, and its largest element and three others as (index, value)."""
    double.zero_grad()
    with Wide():
        loss_of()[1].backward()
    named = dict(double.named_parameters())
    values = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in named.items()}
    stored = names_of_folder(double, values)
    twice = names_of_folder(double, {name: 2 * value for name, value in values.items()})
    found = {}
    parameters = {key for key in stored if not torch.equal(stored[key], twice[key])}
    for key in sorted(stored):
        g = stored[key].flatten()
        if key not in parameters and (g.norm() > 0 or any(key.endswith(b) for b, _ in double.named_buffers())):
            continue  # a buffer
        assert torch.allclose(twice[key].flatten(), 2 * g), key
        where = sorted({g.abs().argmax().item(), *(i * (g.numel() - 1) // 3 for i in range(1, 3)), 0})
        found[key] = [short(g.norm().item()), [[i, short(g[i].item())] for i in where]]
    return found, sorted(name for name, p in named.items() if p.grad is None)


def penalised(ids, logits, penalty):
    return RepetitionPenaltyLogitsProcessor(penalty)(ids, logits)[0].topk(2)


def continued(double, prompt, penalty):
    """The likeliest tokens after the penalty by a whole pass for each token, and the smallest distance of the two likeliest."""
    ids, margin = prompt, 1e9
    for _ in range(GREEDY):
        with torch.no_grad(), Wide():
            top = penalised(ids, double(input_ids=ids, use_cache=False).logits[:, -1], penalty)
        margin = min(margin, (top.values[0] - top.values[1]).item())
        ids = torch.cat([ids, top.indices[:1, None]], 1)
    return ids, margin


def checked(double, ids, start, penalty):
    """The smallest distance of the two likeliest tokens in a whole text, or None where one is not the likeliest."""
    with torch.no_grad(), Wide():
        logits = double(input_ids=ids, use_cache=False).logits
    margin = 1e9
    for at in range(start, ids.shape[1]):
        top = penalised(ids[:, :at], logits[:, at - 1], penalty)
        if top.indices[0] != ids[0, at]:
            return None
        margin = min(margin, (top.values[0] - top.values[1]).item())
    return margin


def greedy(model, double, seed):
    """A text without near ties. Whether transformers' cache gives it too is noted: its whole passes decide."""
    generator = torch.Generator().manual_seed(seed)
    for attempt in range(40):
        penalty = PENALTIES[min(attempt // 4, len(PENALTIES) - 1)]
        prompt = torch.randint(3, SIZES["vocab_size"], (1, 5), generator=generator)
        with torch.no_grad():
            ids = cached = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=GREEDY, use_cache=True,
                repetition_penalty=penalty, eos_token_id=None, pad_token_id=0)
        margin = checked(double, ids, prompt.shape[1], penalty)
        if margin is None:
            ids, margin = continued(double, prompt, penalty)
        tokens = ids[0, prompt.shape[1]:].tolist()
        if margin > 2e-4 and len(set(tokens)) >= DISTINCT:
            return {"prompt": prompt[0].tolist(), "tokens": tokens, "repetition_penalty": penalty, "smallest_margin": short(margin),
                    "cache_agrees": torch.equal(cached, ids)}
    raise ValueError("no text without near ties")


def train(model, loss_of_step):
    """Losses and norms of gradients of the steps. Parameters of two or more dimensions decay."""
    moved = [p for p in model.parameters() if p.requires_grad]
    groups = [dict(params=[p for p in moved if p.dim() > 1], weight_decay=0.1), dict(params=[p for p in moved if p.dim() < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for step in range(STEPS):
        loss = loss_of_step(model, step)
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(moved, 1.0).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def curves(model, double, loss_of_step, wide):
    """The steps in float32 and in float64, and how far they are apart."""
    losses, norms = train(copy.deepcopy(model).train(), loss_of_step)
    with wide:
        losses64, norms64 = train(copy.deepcopy(double).train(), loss_of_step)
    apart = max(abs(a - b) for a, b in zip(losses, losses64))
    return apart, {
        "optimizer": dict(name="adamw", lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, decay="matrices", clip_grad_norm=1.0),
        "schedule": dict(name="constant"), "steps": STEPS, "lr": [1e-3] * STEPS,
        "losses": short(losses), "grad_norms": short(norms), "losses_f64": short(losses64), "grad_norms_f64": short(norms64)}


def spread(name, out):
    """Adds to a stored curve by how much rounding moves the norms of gradients: float32 runs from weights that differ by at most one rounding."""
    path = out / f"{name}.json"
    stored = json.loads(path.read_text())
    tokens = numpy.load(out / "tokens.npy")
    model = AutoModelForCausalLM.from_pretrained(out / name, dtype=torch.float32, **EAGER).eval()

    def loss_of_step(model, step):
        inputs, targets = batch(tokens, step)
        return torch.nn.functional.cross_entropy(model(input_ids=inputs).logits.flatten(0, 1), targets.flatten())

    apart = []
    for seed in range(6):
        moved, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in moved.parameters():
                p.mul_(1 + (2 * torch.rand(p.shape, generator=generator) - 1) * 2 ** -24)
        norms = train(moved.train(), loss_of_step)[1]
        apart.append(max(abs(a - b) for a, b in zip(norms, stored["grad_norms_f64"])))
    stored["largest_grad_norm_rounding"] = short(max(apart))
    write_json(path, stored)
    print(f"{name}: {' '.join(f'{a:.1e}' for a in apart)}")


def gap(wide):
    return {"smallest_gap_between_chosen_and_not": short(wide.nearest) if wide.nearest < 1 else None}


def compared(model, double, ids, wide):
    """What all references have: logits and gradients in float64, how far float32 is."""
    with torch.no_grad():
        logits, loss = loss_of(model, ids)
        with wide:
            logits64, loss64 = loss_of(double, ids)
    assert logits64.dtype == torch.float64 and not wide.narrowed, wide.narrowed
    found, without = gradients(double, lambda: loss_of(double, ids))
    error = (logits - logits64).abs().max().item()
    return error, logits64.float(), {
        "input_ids": ids.tolist(), "loss": loss.item(), "loss_f64": loss64.item(), "largest_f32_error": short(error), "gradients": found,
        "parameters_without_gradient": without}


def model_of(name, config, seed, folder):
    """A model in float32 and in float64, and ids."""
    model = make(FAMILIES[name].get("type", name), seed, folder, AutoModelForCausalLM, config).eval()
    ids = torch.randint(0, SIZES["vocab_size"], (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))
    return model, copy.deepcopy(model).double(), ids


def text_reference(name, seed, out, tokens):
    """Writes the files of a decoder, unless rounding moves it much or could have changed a choice. Returns whether it wrote and what to print."""
    folder = fresh(out / name)
    model, double, ids = model_of(name, SIZES | {key: value for key, value in FAMILIES[name].items() if key != "type"}, seed, folder)
    wide = Wide()
    error, logits, common = compared(model, double, ids, wide)
    if error > 5e-6:
        return False, f"logits {error:.1e}"

    def loss_of_step(model, step):
        inputs, targets = batch(tokens, step)
        return torch.nn.functional.cross_entropy(model(input_ids=inputs).logits.flatten(0, 1), targets.flatten())

    apart, curve = curves(model, double, loss_of_step, wide)
    if apart > 3e-6 or wide.nearest < 1e-6:
        return False, f"losses {apart:.1e}, gap {wide.nearest:.1e}"
    text = greedy(model, double, seed)
    write_tensors(out / f"{name}.safetensors", {"logits": logits})
    write_json(out / f"{name}.json", {
        "name": name, "type": model.config.model_type, "initial_model": name, "tokens": "../families/tokens.npy",
        "data": dict(order="sequential", seq_len=SEQ, batch=BATCH), **curve, **common, "greedy": text, **gap(wide), "made_with": VERSIONS})
    return True, (f"loss {curve['losses'][0]:.3f} -> {curve['losses'][-1]:.3f}; f32 against f64: logits {error:.1e}, losses {apart:.1e}; "
                  f"margin {text['smallest_margin']:.1e}{'' if text['cache_agrees'] else ' CACHE DIFFERS'}, gap {wide.nearest:.1e}")


def reference(name, seed, out, tokens):
    for attempt in range(12):
        good, line = text_reference(name, seed + 1000 * attempt, out, tokens)
        if good:
            break
        print(f"{name}: seed {seed + 1000 * attempt}: {line}", flush=True)
    else:
        raise ValueError(f"{name}: no seed that rounding leaves alone")
    size = sum(p.stat().st_size for p in [*(out / name).iterdir(), out / f"{name}.json", out / f"{name}.safetensors"])
    print(f"{name:22} {size / 1000:5.1f} kB, {line}", flush=True)


def gradient_error(model, double, ids):
    """By which share of a tensor's norm rounding alone moves it."""
    loss_of(model, ids)[1].backward()
    norms = [(a.grad.norm().item(), b.grad.norm().item()) for a, b in zip(model.parameters(), double.parameters()) if a.grad is not None]
    return max(abs(a - b) / max(b, 1e-3) for a, b in norms)


def drawn(name, count, out):
    """Writes `count` models with random configs, without curves and texts."""
    chooser = random.Random(name)
    for number in range(count):
        for attempt in range(50):
            config, seed = draw(chooser, FAMILIES[name]), chooser.randrange(1 << 30)
            label = f"{name}_{number}"
            try:
                model, double, ids = model_of(name, config, seed, fresh(out / label))
                wide = Wide()
                error, logits, common = compared(model, double, ids, wide)
            except (ValueError, RuntimeError, IndexError, KeyError, TypeError, StrictDataclassError) as problem:
                reason = f"{type(problem).__name__}: {str(problem)[:150]}"
                continue
            moved = gradient_error(model, double, ids)
            if error < 1e-5 and wide.nearest > 1e-6 and moved < 2e-5:
                break
            reason = f"logits {error:.1e}, gap {wide.nearest:.1e}, gradients {moved:.1e}"
        else:
            raise ValueError(f"{name}: no draw is a model; the last one: {reason}")
        write_tensors(out / f"{label}.safetensors", {"logits": logits})
        write_json(out / f"{label}.json", {"name": label, "type": model.config.model_type, **common, **gap(wide), "made_with": VERSIONS})
        print(f"{label}: draw {attempt}, f32 against f64 {error:.1e}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these (default: all)")
    parser.add_argument("--draws", type=int, help="write this many models of each with random configs instead, to --to")
    parser.add_argument("--spread", action="store_true", help="only add to the stored files of these names how much rounding moves norms of gradients")
    parser.add_argument("--to", type=pathlib.Path, help="folder of --draws")
    arguments = parser.parse_args()
    if arguments.draws:
        for name in arguments.names or FAMILIES:
            drawn(name, arguments.draws, arguments.to)
        return
    if arguments.spread:
        for name in arguments.names:
            spread(name, OUT)
        return
    OUT.mkdir(exist_ok=True)
    tokens = markov(STEPS * BATCH * SEQ + 1, 3)
    numpy.save(OUT / "tokens.npy", tokens)
    for number, name in enumerate(FAMILIES):
        if not arguments.names or name in arguments.names:
            reference(name, 100 + number, OUT, tokens)


if __name__ == "__main__":
    main()
