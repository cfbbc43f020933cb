"""Loads a Hugging Face folder with transformers and compares its logits with a stored JSON.

    check_export.py FOLDER [EXPECTED.json] [--tolerance 1e-4]

EXPECTED.json has input_ids and logits, as FOLDER/expected.json (the default) and curves/NAME.final.json have.
Exits with 1 when a logit is off by more than the tolerance, or when a weight is missing, superfluous or misshapen.
"""

import argparse
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM

from common import evaluate

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("expected", type=pathlib.Path, nargs="?")
parser.add_argument("--tolerance", type=float, default=1e-4)
arguments = parser.parse_args()

model, report = AutoModelForCausalLM.from_pretrained(
    arguments.folder, dtype=torch.float32, attn_implementation="sdpa", output_loading_info=True)
problems = {name: value for name, value in report.items() if value}
if problems:
    sys.exit(f"the weights do not fit: {problems}")
expected = json.loads((arguments.expected or arguments.folder / "expected.json").read_text())
logits, loss = evaluate(model.eval(), torch.tensor(expected["input_ids"]))
wanted = torch.tensor(expected["logits"])
if logits.shape != wanted.shape:
    sys.exit(f"logits have shape {list(logits.shape)}, expected {list(wanted.shape)}")
difference = (logits - wanted).abs().max().item()
print(f"loss {loss!r}, expected {expected['loss']!r}; largest difference of a logit {difference:.3g} "
      f"(logits up to {wanted.abs().max().item():.3g}), tolerance {arguments.tolerance:g}")
sys.exit(0 if difference <= arguments.tolerance else 1)
