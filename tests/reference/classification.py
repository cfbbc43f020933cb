#!/usr/bin/env python3
"""Classifiers of texts under transformers, as `tessera train` trains them with train.objective=classification.

data/classification: texts.jsonl and validation.jsonl, curves.json with the losses of 12 steps of AdamW (8 rows a step, in
order) of the folders families/bert and families/modernbert, and the loss and accuracy of the validation after them, of all
its rows and of five that are spread evenly; and bert.pt2, the first model as a program of torch.export."""

import json
import random

import torch
from transformers import AutoModelForSequenceClassification, BertTokenizer

from common import DATA, VERSIONS, fresh, write_json

OUT = DATA / "classification"
STEPS, BATCH, LENGTH = 12, 8, 16
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


def curve(name, training, validation):
    model = AutoModelForSequenceClassification.from_pretrained(DATA / "families" / name).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    loss_of = lambda ids, mask, labels: model(input_ids=ids, attention_mask=mask, labels=labels)
    losses = []
    for step in range(STEPS):
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
    curves = {name: curve(name, training, validation) for name in ("bert", "modernbert")}
    write_json(OUT / "curves.json", {**curves, "made_with": VERSIONS})
    export("bert", training[0][:4], training[1][:4])
    for name, found in curves.items():
        print(name, [round(loss, 4) for loss in found["losses"]], found["validation"], found["validation_of_five"])


if __name__ == "__main__":
    main()
