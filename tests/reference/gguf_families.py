"""What llama.cpp's converter makes of small models of data/families: fields and tensors of GGUF files.

    python gguf_families.py LLAMA_CPP

LLAMA_CPP: llama.cpp's source with convert_hf_to_gguf.py, its folder conversion and gguf-py (of 2026; PyPI's
llama_cpp_python 0.3.36 has it in vendor/). Packages: requirements.txt. Tensors are stored as their shapes and three
sums: of the values, of each times its row's number, and of each times its column's.
"""

import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(ROOT), str(ROOT / "gguf-py")]

import gguf  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from conversion import ModelType, get_model_architecture, get_model_class  # noqa: E402
from conversion.base import ModelBase  # noqa: E402

DATA = pathlib.Path(__file__).resolve().parent / "data"
NAMES = ["gemma", "granite", "olmo2", "seed_oss", "ernie4_5", "starcoder2"]
OF_THE_FILE = ("GGUF.", "general.name", "general.size_label", "general.file_type")


def sums(values):
    rows = values.astype(np.float64).reshape(values.shape[0], -1)
    return [float(rows.sum()), float((rows * np.arange(1, rows.shape[0] + 1)[:, None]).sum()),
            float((rows * np.arange(1, rows.shape[1] + 1)).sum())]


def converted(name):
    folder = DATA / "families" / name
    with tempfile.TemporaryDirectory() as out, torch.inference_mode():
        made = get_model_class(get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT))
        made.set_vocab = lambda self: None  # the folders have no tokenizer
        file = pathlib.Path(out) / "model.gguf"
        made(folder, gguf.LlamaFileType.ALL_F32, file).write()
        reader = gguf.GGUFReader(file)
        fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith(OF_THE_FILE)}
        tensors = {tensor.name: {"shape": tensor.data.shape, "sums": sums(tensor.data)} for tensor in reader.tensors}
    return {"fields": fields, "tensors": tensors}


models = {name: converted(name) for name in NAMES}
lines = [f"{json.dumps(name)}: {json.dumps(model)}" for name, model in models.items()]
(DATA / "gguf_families.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
