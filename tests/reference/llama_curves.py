"""Training curves of a small transformers Llama, in float32 and in float64: data/curves/."""

import math

import numpy
import torch
import torch.nn.functional as F

from common import DATA, VERSIONS, evaluate, fresh, make_llama, save_llama, to_double, write_expected, write_json

OUT = DATA / "curves"
SIZES = dict(vocab_size=101, hidden_size=44, num_attention_heads=4, num_key_value_heads=2, head_dim=10,
             intermediate_size=58, num_hidden_layers=3, max_position_embeddings=64)
STEPS, BATCH, SEQ = 20, 12, 24
BASE = dict(tie=False, std=0.1, decay="matrices", weight_decay=0.1, clip=1.0, schedule="constant", tokens="tokens")
VARIANTS = {
    "untied_nodecay": dict(decay="none", weight_decay=0.0, std=0.02),
    "untied_matrices": dict(),
    "untied_all": dict(decay="all"),
    "tied_nodecay": dict(tie=True, decay="none", weight_decay=0.0),
    "tied_matrices": dict(tie=True, clip=0.5),
    "tied_all": dict(tie=True, decay="all", std=0.2),
    "two_epochs": dict(tokens="tokens_short", clip=0.25),
    "warmup_cosine": dict(tie=True, schedule="warmup_cosine"),
}
LR, WARMUP, MIN_RATIO = 1e-3, 5, 0.1


def markov(count, seed):
    """Each token has four likely successors; one token in ten is drawn from all."""
    rng = numpy.random.default_rng(seed)
    vocab = SIZES["vocab_size"]
    successors = rng.integers(0, vocab, (vocab, 4))
    tokens = [0]
    while len(tokens) < count:
        likely = successors[tokens[-1], rng.choice(4, p=[0.5, 0.25, 0.15, 0.1])]
        tokens.append(int(rng.integers(vocab) if rng.random() < 0.1 else likely))
    return numpy.array(tokens, dtype=numpy.int32)


def learning_rate(schedule, step):
    if schedule == "constant":
        return LR
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    low = LR * MIN_RATIO
    return low + (LR - low) * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def batch(tokens, step):
    windows = (len(tokens) - 1) // SEQ
    starts = [(step * BATCH + i) % windows * SEQ for i in range(BATCH)]
    rows = torch.tensor(numpy.stack([tokens[s:s + SEQ + 1] for s in starts]).astype(numpy.int64))
    return rows[:, :-1], rows[:, 1:]


def train(model, tokens, v):
    named = dict(model.named_parameters())
    decayed = [p for p in named.values() if v["decay"] == "all" or v["decay"] == "matrices" and p.dim() > 1]
    rest = [p for p in named.values() if not any(p is d for d in decayed)]
    groups = [dict(params=decayed, weight_decay=v["weight_decay"]), dict(params=rest, weight_decay=0.0)]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=LR, betas=(0.9, 0.95), eps=1e-8)
    losses, norms, first = [], [], {}
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(v["schedule"], step)
        inputs, targets = batch(tokens, step)
        loss = F.cross_entropy(model(input_ids=inputs).logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            first = {name: p.grad.norm().item() for name, p in named.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), v["clip"]).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, first, {name: p.detach().norm().item() for name, p in named.items()}


def main():
    fresh(OUT)
    tokens = {"tokens": markov(6001 + 7, 1), "tokens_short": markov(100 * SEQ + 1 + 5, 2)}
    for name, values in tokens.items():
        numpy.save(OUT / f"{name}.npy", values)
        numpy.save(OUT / f"{name}_u16.npy", values.astype(numpy.uint16))
    for number, (name, changes) in enumerate(VARIANTS.items()):
        v = BASE | changes
        data = tokens[v["tokens"]]
        model = make_llama(number, v["std"], tie_word_embeddings=v["tie"], **SIZES).train()
        save_llama(model, fresh(OUT / name))
        double = to_double(model)
        losses, norms, first, final = train(model, data, v)
        losses64, norms64, first64, final64 = train(double, data, v)
        write_json(OUT / f"{name}.json", {
            "name": name, "initial_model": name, "tokens": v["tokens"] + ".npy", "tokens_u16": v["tokens"] + "_u16.npy",
            "model": SIZES | dict(tie_word_embeddings=v["tie"], rms_norm_eps=1e-5, rope_theta=10000.0,
                                  hidden_act="silu", initial_std=v["std"]),
            "data": dict(order="sequential", seq_len=SEQ, batch=BATCH, windows=(len(data) - 1) // SEQ, meaning=(
                "row i of step s is window w = (s*batch + i) mod windows; input tokens[w*seq_len, (w+1)*seq_len), "
                "target the same moved by one")),
            "optimizer": dict(name="adamw", lr=LR, betas=[0.9, 0.95], eps=1e-8, weight_decay=v["weight_decay"],
                              decay=v["decay"], clip_grad_norm=v["clip"]),
            "schedule": dict(name=v["schedule"]) if v["schedule"] == "constant" else dict(
                name=v["schedule"], warmup_steps=WARMUP, min_ratio=MIN_RATIO, min_lr=LR * MIN_RATIO, meaning=(
                    "step s from 0: lr*(s+1)/w for s < w, then "
                    "min_lr + (lr - min_lr)*0.5*(1 + cos(pi*(s - w)/(steps - w)))")),
            "steps": STEPS, "lr": [learning_rate(v["schedule"], s) for s in range(STEPS)],
            "losses": losses, "grad_norms": norms, "losses_f64": losses64, "grad_norms_f64": norms64,
            "first_grad_norms": first, "first_grad_norms_f64": first64, "final_norms": final, "final_norms_f64": final64,
            "made_with": VERSIONS})
        ids = torch.tensor(data[:20].astype(numpy.int64)).reshape(2, 10)
        apart = max(abs(a - b) for a, b in zip(losses, losses64))
        relative = max(abs(a - b) / b for a, b in zip(norms, norms64))
        logits = (evaluate(model, ids)[0] - evaluate(double, ids)[0]).abs().max().item()
        write_expected(OUT / f"{name}.final.json", model.eval(), ids, largest_difference_from_f64_run=logits)
        print(f"{name:16} loss {losses[0]:.4f} -> {losses[-1]:.4f}, norm {min(norms):.3f} .. {max(norms):.3f}, "
              f"clipped {sum(n > v['clip'] for n in norms)}/{STEPS}; f32 against f64: loss {apart:.1e}, "
              f"norm {relative:.1e} relative, final logits {logits:.1e}")


if __name__ == "__main__":
    main()
