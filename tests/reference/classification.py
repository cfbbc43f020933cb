#!/usr/bin/env python3
"""Classifiers of texts under transformers, as `tessera train` trains them with train.objective=classification.

data/classification: texts.jsonl and validation.jsonl, curves.json with the losses of 12 steps of AdamW (8 rows a step, in
order) of the folders families/bert and families/modernbert, and the loss and accuracy of the validation after them, of all
its rows and of five that are spread evenly; bert.pt2, the first model as a program of torch.export; and the same of decoders with
a score head (DECODERS, small models with random weights), of which all but llama have three steps."""

import json
import random

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, BertTokenizer

from common import DATA, VERSIONS, fresh, write_json

OUT = DATA / "classification"
STEPS, BATCH, LENGTH = 12, 8, 16
DECODERS = {
    "llama": {"attention_bias": False},
    "qwen3": {},
    "gemma2": {"query_pre_attn_scalar": 8, "sliding_window": 8, "head_dim": 8},
    "phi3": {},
    "gpt_neox": {"hidden_dropout": 0.0, "classifier_dropout": 0.0},
    "falcon": {"alibi": False, "bias": True, "hidden_dropout": 0.0},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1},
}
SUBJECTS = {"LABEL_0": ["cat", "dog"], "LABEL_1": ["ship", "fish"], "LABEL_2": ["house", "tree"]}


def records(count, seed):
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        label = draw.choice(sorted(SUBJECTS))
        words = ["the", draw.choice(["red", "blue", "big", "small"]), draw.choice(SUBJECTS[label]), "is", draw.choice(["in", "on", "by"]), "the",
                 draw.choice(["sea", "sun", "mat", "day"])]
        words += ["and", "it", "is", "not", "with", "you", "at", "night", "as", "they", "was", "there"] if draw.random() < 0.1 else []
        found.append({"text": " ".join(words) + ".", "label": label})
    return found


def write_records(name, found):
    (OUT / name).write_text("".join(json.dumps(record) + "\n" for record in found))


def rows(tokenizer, found):
    tokens = tokenizer([record["text"] for record in found], padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
    return tokens["input_ids"], tokens["attention_mask"], torch.tensor([int(record["label"][-1]) for record in found])


def decoder(name, tokenizer):
    """A small decoder with a score head, as a folder."""
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
             "max_position_embeddings": 64, "initializer_range": 0.2, "num_labels": 3, "bos_token_id": None, "eos_token_id": None,
             "pad_token_id": tokenizer.pad_token_id, "attention_dropout": 0.0}
    if name not in ("gpt_neox", "falcon"):
        sizes["num_key_value_heads"] = 1
    if name == "qwen3":
        sizes["head_dim"] = 8
    config = AutoConfig.for_model(name, **sizes, **DECODERS[name])
    torch.manual_seed(7)
    folder = OUT / name
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    return folder


def curve(folder, training, validation, steps=STEPS):
    model = AutoModelForSequenceClassification.from_pretrained(folder, experts_implementation="eager").double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    loss_of = lambda ids, mask, labels: model(input_ids=ids, attention_mask=mask, labels=labels)
    losses = []
    for step in range(steps):
        part = slice(step * BATCH % len(training[0]), step * BATCH % len(training[0]) + BATCH)
        optimizer.zero_grad()
        loss = loss_of(*(x[part] for x in training)).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    def validated(rows):
        with torch.no_grad():
            out = loss_of(*(x[rows] for x in validation))
        return {"loss": out.loss.item(), "accuracy": (out.logits.argmax(-1) == validation[2][rows]).double().mean().item()}

    every = list(range(len(validation[2])))
    return {"losses": losses, "validation": validated(every), "validation_of_five": validated([i * len(every) // 5 for i in range(5)])}


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


def export(name, ids, mask):
    model = Logits(AutoModelForSequenceClassification.from_pretrained(DATA / "families" / name, dtype=torch.float32)).eval()
    shapes = {0: torch.export.Dim("batch", min=2, max=64), 1: torch.export.Dim("length", min=4, max=64)}
    table = torch.export.default_decompositions()
    for kept in ("linear", "layer_norm", "scaled_dot_product_attention"):
        table.pop(getattr(torch.ops.aten, kept).default)
    program = torch.export.export(model, (ids, mask), dynamic_shapes=(shapes, shapes))
    torch.export.save(program.run_decompositions(table), OUT / f"{name}.pt2")


def main():
    fresh(OUT)
    tokenizer = BertTokenizer.from_pretrained(DATA / "families" / "bert_base")
    texts, others = records(48, 1), records(16, 2)
    write_records("texts.jsonl", texts)
    write_records("validation.jsonl", others)
    training, validation = rows(tokenizer, texts), rows(tokenizer, others)
    curves = {name: curve(DATA / "families" / name, training, validation) for name in ("bert", "modernbert")}
    for name in DECODERS:
        curves[name] = curve(decoder(name, tokenizer), training, validation, STEPS if name == "llama" else 3)
    write_json(OUT / "curves.json", {**curves, "made_with": VERSIONS})
    export("bert", training[0][:4], training[1][:4])
    for name, found in curves.items():
        print(name, [round(loss, 4) for loss in found["losses"]], found["validation"], found["validation_of_five"])


if __name__ == "__main__":
    main()
