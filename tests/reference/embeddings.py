"""Last hidden states by transformers, pooled and scaled to length 1, of small models that are stored already.

    embeddings.py

Writes data/generation/embeddings.json: of each folder the vectors of some token ids.
"""

import json
import pathlib

import torch
from transformers import AutoModel

DATA = pathlib.Path(__file__).resolve().parent / "data"
MODELS = {"gpt2/tied": ("last", "mean"), "families/bert_base": ("first", "mean")}
IDS = [[5, 9, 2, 14, 3], [7], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]]


def pooled(states, pooling):
    vector = {"last": lambda: states[-1], "first": lambda: states[0], "mean": lambda: states.mean(0)}[pooling]()
    return torch.nn.functional.normalize(vector, dim=0).tolist()


def main():
    out = {}
    for folder, poolings in MODELS.items():
        model = AutoModel.from_pretrained(DATA / folder, dtype=torch.float64).eval()
        with torch.no_grad():
            states = [model(torch.tensor([ids])).last_hidden_state[0] for ids in IDS]
        out[folder] = {pooling: [pooled(one, pooling) for one in states] for pooling in poolings}
    (DATA / "generation" / "embeddings.json").write_text(json.dumps({"ids": IDS, "vectors": out}) + "\n")


if __name__ == "__main__":
    main()
