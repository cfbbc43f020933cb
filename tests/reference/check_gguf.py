"""Reads a GGUF file that `tessera checkpoint export --format gguf` wrote with ggml's package, and compares its tensors with
those of a folder that was exported in float32.

    check_gguf.py FILE FOLDER
"""

import json
import pathlib
import sys

import gguf
import numpy as np
from safetensors.numpy import load_file

from gguf_files import LAYER, OUTER, SANDWICH, permute

reader = gguf.GGUFReader(sys.argv[1])
folder = pathlib.Path(sys.argv[2])
config = json.loads((folder / "config.json").read_text())
arch = reader.fields["general.architecture"].contents()
names = {**LAYER, **(SANDWICH if arch.startswith("gemma") else {})}
stored = {tensor.name: tensor for tensor in reader.tensors}
compared, largest = 0, 0.0
for full, values in load_file(folder / "model.safetensors").items():
    stem, kind = full.rsplit(".", 1)
    if stem in OUTER:
        own = OUTER[stem]
    else:
        _, _, layer, part = stem.split(".", 3)
        own = f"blk.{layer}.{names[part]}"
        if arch == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
            values = permute(values, config["num_attention_heads" if "q_proj" in part else "num_key_value_heads"])
    if arch.startswith("gemma") and full.endswith("norm.weight"):
        values = values + 1
    tensor = stored.pop(f"{own}.{kind}")
    expected = gguf.quants.dequantize(gguf.quants.quantize(values, tensor.tensor_type), tensor.tensor_type)
    found = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
    assert np.array_equal(found, expected.reshape(values.shape)), full
    largest = max(largest, float(np.abs(found - values).max()))
    compared += 1
assert set(stored) <= {"rope_freqs.weight"}, stored
print(f"{compared} tensors are equal ({arch}); off the float32 values by at most {largest:.3g}")
