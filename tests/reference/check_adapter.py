"""Loads a folder that `tessera checkpoint export --adapter` wrote with PEFT and compares logits with a stored JSON.

    check_adapter.py FOLDER BASE EXPECTED.json [--tolerance 1e-4]

BASE is the model's folder. Exits with 1 when a logit is off by more than the tolerance, or when a tensor is missing,
superfluous or misshapen.
"""

import argparse
import json
import pathlib
import sys

import torch
from peft import PeftModel
from safetensors.torch import load_file

from common import evaluate, load_llama

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("base", type=pathlib.Path)
parser.add_argument("expected", type=pathlib.Path)
parser.add_argument("--tolerance", type=float, default=1e-4)
arguments = parser.parse_args()

model = PeftModel.from_pretrained(load_llama(arguments.base), arguments.folder).eval()
stored = load_file(arguments.folder / "adapter_model.safetensors")
used = {name.replace(".default", ""): p for name, p in model.named_parameters() if "lora_" in name}
# PEFT keeps the magnitudes in a module of their own.
used = {name.removesuffix(".weight") if "magnitude" in name else name: p for name, p in used.items()}
if stored.keys() != used.keys():
    sys.exit(f"the tensors do not fit: {sorted(stored.keys() ^ used.keys())}")
for name, tensor in stored.items():
    if not torch.equal(tensor.float(), used[name].detach().float()):
        sys.exit(f"PEFT has other values for {name}")
expected = json.loads(arguments.expected.read_text())
logits, loss = evaluate(model, torch.tensor(expected["input_ids"]))
difference = (logits - torch.tensor(expected["logits"])).abs().max().item()
print(f"loss {loss!r}, expected {expected['loss']!r}; largest difference of a logit {difference:.3g}, "
      f"tolerance {arguments.tolerance:g}")
sys.exit(0 if difference <= arguments.tolerance else 1)
