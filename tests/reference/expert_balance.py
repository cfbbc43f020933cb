"""Curves of a Qwen 2 MoE whose loss has the terms that balance experts: data/decoders/qwen2_moe_balanced*.json."""

import numpy
import torch
from transformers import Qwen2MoeForCausalLM
from transformers.models.qwen2_moe.modeling_qwen2_moe import load_balancing_loss_func

from common import DATA, VERSIONS, write_json
from decoder_curves import OUT, SIZES, VARIANT, to_double
from llama_curves import BATCH, LR, SEQ, STEPS, batch

BALANCE, Z = 0.05, 0.02


class Terms:
    """The mean over layers and rows of transformers' loss of balance, each of one layer and one row, and that of
    logsumexp(logits)^2 over the tokens."""

    def __init__(self, model):
        self.logits, self.config = [], model.config
        for layer in model.model.layers:
            if hasattr(layer.mlp, "gate"):
                layer.mlp.gate.register_forward_pre_hook(self.note)

    def note(self, gate, inputs):
        self.logits.append(torch.nn.functional.linear(inputs[0].reshape(-1, gate.weight.shape[1]), gate.weight))

    def take(self):
        balance, z = [], []
        for logits in self.logits:
            for row in logits.reshape(BATCH, SEQ, -1):
                balance.append(load_balancing_loss_func((row,), self.config.num_experts, self.config.num_experts_per_tok))
                z.append(row.logsumexp(-1).square().mean())
        self.logits = []
        return torch.stack(balance).mean(), torch.stack(z).mean()


def train(model, tokens):
    terms = Terms(model)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([dict(params=decayed, weight_decay=VARIANT["weight_decay"]),
                                   dict(params=rest, weight_decay=0.0)], lr=LR, betas=(0.9, 0.95), eps=1e-8)
    losses, norms, own = [], [], []
    for step in range(STEPS):
        inputs, targets = batch(tokens, step)
        loss = torch.nn.functional.cross_entropy(model(input_ids=inputs).logits.flatten(0, 1), targets.flatten())
        balance, z = terms.take()
        loss = loss + BALANCE * balance + Z * z
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), VARIANT["clip"]).item())
        optimizer.step()
        losses.append(loss.item())
        own.append([balance.item(), z.item()])
    return losses, norms, own


def main():
    tokens = numpy.load(DATA / "curves" / "tokens.npy")
    model = Qwen2MoeForCausalLM.from_pretrained(OUT / "qwen2_moe", attn_implementation="eager", use_cache=False,
                                                experts_implementation="eager").train()
    double = to_double(model)
    losses, norms, own = train(model, tokens)
    losses64, norms64, _ = train(double, tokens)
    write_json(OUT / "qwen2_moe_balanced.json", {
        "name": "qwen2_moe_balanced", "initial_model": "qwen2_moe", "tokens": "tokens.npy", "model": SIZES,
        "data": dict(order="sequential", seq_len=SEQ, batch=BATCH), "balance_loss": BALANCE, "z_loss": Z,
        "optimizer": dict(name="adamw", lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, decay="matrices",
                          clip_grad_norm=1.0),
        "schedule": dict(name="constant"), "steps": STEPS, "lr": [1e-3] * STEPS,
        "losses": losses, "grad_norms": norms, "losses_f64": losses64, "grad_norms_f64": norms64,
        "terms": own, "made_with": VERSIONS})
    print(losses[0], "->", losses[-1], own[0], own[-1], max(abs(a - b) for a, b in zip(losses, losses64)))


if __name__ == "__main__":
    main()
