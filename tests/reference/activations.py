"""What 'tessera compare' reads, made by the function of docs/porting.md for some models: data/activations/."""

import pathlib
import re

import torch
from transformers import AutoModelForCausalLM

from common import DATA, fresh

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "porting.md"
namespace = {}
exec(re.search(r"```python\n(.*?)```", PAGE.read_text(), re.S).group(1), namespace)

OUT = fresh(DATA / "activations")
for name, folder in (("qwen3", "decoders/qwen3"), ("gemma2", "decoders/gemma2"), ("gemma3", "decoders/gemma3"),
                     ("phi3", "decoders/phi3"), ("gpt2", "gpt2/tied")):
    model = AutoModelForCausalLM.from_pretrained(DATA / folder, dtype=torch.float32, attn_implementation="eager", use_cache=False)
    tokens = torch.randint(0, model.config.vocab_size, (2, 7), generator=torch.Generator().manual_seed(1))
    namespace["store"](model, tokens, OUT / f"{name}.safetensors")
    (OUT / f"{name}.safetensors").chmod(0o644)
