#!/usr/bin/env python3
"""Classifiers of words under transformers, as `tessera train` trains them with train.objective=token_classification.

data/token_classification: words.jsonl and validation.jsonl (lists of words with a label each, null: none), a BERT and a ModernBERT
with a head for tokens and random weights, and curves.json with the losses of 12 steps of AdamW (8 rows a step, in order), and the
loss and accuracy of the validation after them. A word's label is that of its first token; other tokens have none."""

import json
import random

import torch
from transformers import AutoConfig, AutoModelForTokenClassification, BertTokenizer

from common import DATA, VERSIONS, fresh, write_json

OUT = DATA / "token_classification"
STEPS, BATCH, LENGTH = 12, 8, 16
LABELS = ["O", "animal", "place"]
KINDS = {"cat": "animal", "dog": "animal", "fish": "animal", "house": "place", "sea": "place", "tree": "place"}


def records(count, seed):
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        words = ["the", draw.choice(["red", "blue", "big", "small"]), draw.choice(sorted(KINDS)), "is", draw.choice(["in", "on", "by"]), "the",
                 draw.choice(sorted(KINDS)) + draw.choice(["", "."])]
        words += ["and", "it", "is", "not", "with", "you", "at", "night", "as", "they", "was", "there"] if draw.random() < 0.1 else []
        labels = [KINDS.get(word.strip("."), "O") for word in words]
        labels[draw.randrange(len(labels))] = None
        found.append({"words": words, "labels": labels})
    return found


def rows(tokenizer, found):
    tokens = tokenizer([record["words"] for record in found], is_split_into_words=True, padding="max_length", truncation=True,
                       max_length=LENGTH, return_tensors="pt")
    labels = torch.full(tokens["input_ids"].shape, -100)
    for row, record in enumerate(found):
        before = None
        for place, word in enumerate(tokens.word_ids(row)):
            if word is not None and word != before and record["labels"][word] is not None:
                labels[row, place] = LABELS.index(record["labels"][word])
            before = word
    return tokens["input_ids"], tokens["attention_mask"], labels


def folder_of(name):
    config = AutoConfig.from_pretrained(DATA / "families" / name)
    config.id2label, config.label2id = dict(enumerate(LABELS)), {label: i for i, label in enumerate(LABELS)}
    torch.manual_seed(5)
    AutoModelForTokenClassification.from_config(config).save_pretrained(OUT / name)
    (OUT / name / "model.safetensors").chmod(0o644)
    return OUT / name


def curve(folder, training, validation):
    model = AutoModelForTokenClassification.from_pretrained(folder).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    loss_of = lambda ids, mask, labels: model(input_ids=ids, attention_mask=mask, labels=labels)
    losses = []
    for step in range(STEPS):
        part = slice(step * BATCH % len(training[0]), step * BATCH % len(training[0]) + BATCH)
        optimizer.zero_grad()
        loss = loss_of(*(x[part] for x in training)).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        out = loss_of(*validation)
    told = validation[2] != -100
    accuracy = (out.logits.argmax(-1) == validation[2])[told].double().mean().item()
    return {"losses": losses, "validation": {"loss": out.loss.item(), "accuracy": accuracy}}


def main():
    fresh(OUT)
    tokenizer = BertTokenizer.from_pretrained(DATA / "families" / "bert_base")
    texts, others = records(48, 1), records(16, 2)
    for name, found in (("words.jsonl", texts), ("validation.jsonl", others)):
        (OUT / name).write_text("".join(json.dumps(record) + "\n" for record in found))
    training, validation = rows(tokenizer, texts), rows(tokenizer, others)
    curves = {name: curve(folder_of(name), training, validation) for name in ("bert", "modernbert")}
    write_json(OUT / "curves.json", {**curves, "made_with": VERSIONS})
    for name, found in curves.items():
        print(name, [round(loss, 4) for loss in found["losses"]], found["validation"])


if __name__ == "__main__":
    main()
