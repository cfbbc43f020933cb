"""What llama.cpp's converter makes of small models: fields and tensors of GGUF files, in data/gguf_families.json.

    python gguf_families.py LLAMA_CPP

LLAMA_CPP: llama.cpp's source with convert_hf_to_gguf.py, its folder conversion and gguf-py (of 2026; PyPI's
llama_cpp_python 0.3.36 has it in vendor/). Packages: requirements.txt. The models are some of data/families, and of the
families below small ones with random weights that have nothing that llama.cpp would not read: data/gguf_families. Tensors
are stored as their shapes and three sums: of the values, of each times its row's number, and of each times its column's.
"""

import json
import pathlib
import shutil
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(ROOT), str(ROOT / "gguf-py")]

import gguf  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from conversion import ModelType, get_model_architecture, get_model_class  # noqa: E402
from conversion.base import ModelBase  # noqa: E402
from families import make  # noqa: E402
from family_configs import EXPERTS, FULL, LATENT, LLAMA3, PLAIN, SIZES, SLIDING, YARN  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

DATA = pathlib.Path(__file__).resolve().parent / "data"
OUT = DATA / "gguf_families"
STORED = ["granite", "phi3_longrope", "granitemoe", "glm4"]
OF_THE_FILE = ("GGUF.", "general.name", "general.size_label", "general.file_type")
LATENT_YARN = YARN | {"original_max_position_embeddings": 4, "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
ROUTED = dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=8)

MODELS = {
    "gemma": dict(head_dim=10, rope_parameters=PLAIN),
    "olmo2": dict(rope_parameters=PLAIN),
    "olmo3": dict(num_hidden_layers=3, intermediate_size=16, sliding_window=5, layer_types=[SLIDING, FULL, SLIDING], rope_parameters={FULL: YARN, SLIDING: PLAIN}),
    "seed_oss": dict(head_dim=10, attention_dropout=0.0, residual_dropout=0.0, rope_parameters=PLAIN),
    "ernie4_5": dict(head_dim=10, rope_parameters=PLAIN),
    "starcoder2": dict(sliding_window=None, norm_epsilon=1e-3, rope_parameters=PLAIN),
    "mixtral": dict(ROUTED, rope_parameters=PLAIN, sliding_window=None),
    "qwen2_moe": dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=6, shared_expert_intermediate_size=10, norm_topk_prob=False,
                      use_sliding_window=False, rope_parameters=PLAIN),
    "qwen3_moe": dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=6, norm_topk_prob=True, head_dim=10, rope_parameters=PLAIN),
    "olmo": dict(clip_qkv=0.9, rope_parameters=PLAIN),
    "olmoe": dict(num_experts=4, num_experts_per_tok=2, intermediate_size=8, num_key_value_heads=4, norm_topk_prob=False, rope_parameters=PLAIN),
    "cohere": dict(logit_scale=0.4, layer_norm_eps=1e-3, rope_parameters=PLAIN),
    "cohere2": dict(sliding_window=5, layer_types=[SLIDING, FULL, SLIDING], num_hidden_layers=3, intermediate_size=16, logit_scale=0.4, rope_parameters=PLAIN),
    "exaone4": dict(tie_word_embeddings=True, sliding_window=None, layer_types=[FULL, FULL], rope_parameters=LLAMA3),
    "glm4_moe": dict(EXPERTS, n_group=2, topk_group=1, n_routed_experts=6, use_qk_norm=True, attention_bias=True, head_dim=10, routed_scaling_factor=1.5,
                     num_nextn_predict_layers=0, rope_parameters=PLAIN | {"partial_rotary_factor": 0.6}),
    "deepseek_v2": LATENT | EXPERTS | dict(n_group=1, topk_group=1, topk_method="greedy", n_routed_experts=4, norm_topk_prob=False,
                                           routed_scaling_factor=1.5, rope_parameters=LATENT_YARN),
    "deepseek_v3": LATENT | EXPERTS | dict(n_group=3, topk_group=2, n_routed_experts=6, routed_scaling_factor=1.5, rope_parameters=LATENT_YARN),
    "phi": dict(intermediate_size=128, num_key_value_heads=4, rope_parameters=PLAIN | {"partial_rotary_factor": 0.5}),
    "stablelm": dict(use_qkv_bias=True, use_parallel_residual=True, rope_parameters=PLAIN | {"partial_rotary_factor": 0.5}),
    "smollm3": dict(num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0], intermediate_size=12, rope_parameters=PLAIN),
    "gpt_neox": dict(rope_parameters=PLAIN | {"partial_rotary_factor": 0.5}),
    "gpt_oss": dict(ROUTED, head_dim=8, sliding_window=5, layer_types=[SLIDING, FULL],
                    rope_parameters=YARN | {"truncate": False, "beta_fast": 4.0, "beta_slow": 1.0}),
    "minimax_m2": dict(ROUTED, head_dim=10, rope_parameters=PLAIN | {"partial_rotary_factor": 0.6}),
}
# Keys of folders that older versions of transformers, or the authors, have written, and the converter asks for.
OLDER = {
    "cohere2": dict(rotary_pct=1.0),
    "deepseek_v2": dict(scoring_func="softmax"),
    "deepseek_v3": dict(scoring_func="sigmoid"),
    "minimax_m2": dict(rotary_dim=6),
    "gpt_neox": dict(rotary_pct=0.5),
    "stablelm": dict(partial_rotary_factor=0.5),
    "phi": dict(partial_rotary_factor=0.5),
}


def sums(values):
    rows = values.astype(np.float64).reshape(values.shape[0], -1)
    return [float(rows.sum()), float((rows * np.arange(1, rows.shape[0] + 1)[:, None]).sum()),
            float((rows * np.arange(1, rows.shape[1] + 1)).sum())]


def converted(folder):
    with tempfile.TemporaryDirectory() as temporary, torch.inference_mode():
        kind = get_model_class(get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT))
        kind.set_vocab = lambda self: None  # the folders have no tokenizer
        file = pathlib.Path(temporary) / "model.gguf"
        made = kind(folder, gguf.LlamaFileType.ALL_F32, file)
        made.hparams |= OLDER.get(folder.name, {})
        made.write()
        if len(sys.argv) > 2:
            shutil.copy(file, pathlib.Path(sys.argv[2]) / f"{folder.name}.gguf")
        reader = gguf.GGUFReader(file)
        fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith(OF_THE_FILE)}
        tensors = {tensor.name: {"shape": tensor.data.shape, "sums": sums(tensor.data)} for tensor in reader.tensors}
    return {"fields": fields, "tensors": tensors}


folders = [DATA / "families" / name for name in STORED]
for seed, (name, values) in enumerate(MODELS.items()):
    (OUT / name).mkdir(parents=True, exist_ok=True)
    make(name, 40 + seed, OUT / name, AutoModelForCausalLM, SIZES | values)
    folders.append(OUT / name)
models = {str(folder.relative_to(DATA)): converted(folder) for folder in folders}
lines = [f"{json.dumps(name)}: {json.dumps(model)}" for name, model in models.items()]
(DATA / "gguf_families.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
