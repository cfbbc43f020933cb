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
from family_configs import DELTA, EXPERTS, FULL, LATENT, LINEAR, LLAMA3, MAMBA, PLAIN, SIZES, SLIDING, YARN  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

DATA = pathlib.Path(__file__).resolve().parent / "data"
OUT = DATA / "gguf_families"
STORED = ["granite", "phi3_longrope", "granitemoe", "glm4"]
OF_THE_FILE = ("GGUF.", "general.name", "general.size_label", "general.file_type")
LATENT_YARN = YARN | {"original_max_position_embeddings": 4, "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
MAMBA = {name: value for name, value in MAMBA.items() if name != "time_step_limit"} | dict(mamba_n_groups=1, mamba_proj_bias=False)
DELTA = DELTA | dict(linear_value_head_dim=4, rms_norm_eps=1e-6)
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
    "ministral3": dict(head_dim=10, sliding_window=None,
                       rope_parameters=YARN | {"original_max_position_embeddings": 4, "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.5,
                                               "llama_4_scaling_beta": 0.3}),
    "hunyuan_v1_dense": dict(head_dim=10, rope_parameters=PLAIN),
    "llama4_text": dict(head_dim=8, intermediate_size=8, intermediate_size_mlp=20, num_hidden_layers=4, num_local_experts=3, num_experts_per_tok=2,
                        interleave_moe_layer_step=2, rope_parameters=LLAMA3),
    "lfm2": dict(num_hidden_layers=3, layer_types=["conv", FULL, "conv"], conv_L_cache=3, block_multiple_of=5, block_ffn_dim_multiplier=0.9, intermediate_size=24,
                 rope_parameters=PLAIN),
    "mamba2": dict(intermediate_size=64, num_heads=8, head_dim=8, state_size=6, n_groups=1, expand=2, conv_kernel=3, chunk_size=8, use_bias=False),
    "bamba": dict(MAMBA, attn_layer_indices=[1], intermediate_size=12, rope_parameters=PLAIN | {"partial_rotary_factor": 1.0}),
    "granitemoehybrid": dict(MAMBA, num_hidden_layers=3, layer_types=[LINEAR, FULL, LINEAR], num_local_experts=3, num_experts_per_tok=2, intermediate_size=6,
                             shared_intermediate_size=8, embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.6, logits_scaling=1.7,
                             tie_word_embeddings=True),
    "granitemoehybrid_dense": dict(MAMBA, type="granitemoehybrid", layer_types=[LINEAR, FULL], num_local_experts=0, num_experts_per_tok=0, intermediate_size=16,
                                   shared_intermediate_size=16, attention_multiplier=0.2, tie_word_embeddings=False),
    "qwen3_next": dict(DELTA, num_hidden_layers=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=6, shared_expert_intermediate_size=6,
                       norm_topk_prob=True, head_dim=8, rope_parameters=PLAIN | {"partial_rotary_factor": 0.5}),
    "qwen3_5_text": dict(DELTA, layer_types=[LINEAR, FULL, LINEAR], num_hidden_layers=3, head_dim=8, intermediate_size=16,
                         rope_parameters=PLAIN | {"partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0], "mrope_interleaved": True}),
    "minicpm3": dict(LATENT, rms_norm_eps=1e-6, v_head_dim=8, scale_emb=12, scale_depth=1.4, dim_model_base=256, rope_parameters=PLAIN),
    "gemma4_text": dict(num_hidden_layers=5, layer_types=[SLIDING, SLIDING, FULL, SLIDING, FULL], head_dim=8, global_head_dim=12, num_global_key_value_heads=1,
                        attention_k_eq_v=True, num_kv_shared_layers=2, use_double_wide_mlp=True, intermediate_size=8, sliding_window=5,
                        hidden_size_per_layer_input=3, vocab_size_per_layer_input=96, final_logit_softcapping=4.0, enable_moe_block=False,
                        rope_parameters={FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 3000.0}, SLIDING: PLAIN}),
    "falcon": dict(multi_query=True, rope_parameters=PLAIN, ffn_hidden_size=128),
    "falcon_groups": dict(type="falcon", new_decoder_architecture=True, num_kv_heads=2, rope_parameters=PLAIN, ffn_hidden_size=128),
    "apertus": dict(head_dim=10, rope_parameters=LLAMA3),
    "ernie4_5_moe": dict(moe_num_experts=4, moe_k=2, moe_intermediate_size=5, moe_num_shared_experts=2, moe_layer_start_index=1, rope_parameters=PLAIN),
    "glm4_moe_lite": LATENT | EXPERTS | dict(n_routed_experts=4, n_group=1, topk_group=1, q_lora_rank=10, num_nextn_predict_layers=0,
                                             mlp_layer_types=["dense", "sparse"], routed_scaling_factor=1.5, rope_parameters=PLAIN),
}
# Keys of folders that older versions of transformers, or the authors, have written, and the converter asks for.
OLDER = {
    "glm4_moe_lite": dict(scoring_func="sigmoid", first_k_dense_replace=1),
    "granitemoehybrid": dict(layer_types=["mamba", "attention", "mamba"]),
    "granitemoehybrid_dense": dict(layer_types=["mamba", "attention"]),
    "falcon": dict(num_kv_heads=1),
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
        folder = pathlib.Path(shutil.copytree(folder, pathlib.Path(temporary) / folder.name))
        if folder.name.startswith("gemma4"):  # rows of the embedding without a token are left out
            vocabulary = {str(id): id for id in range(SIZES["vocab_size"])}
            (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
        older = json.loads((folder / "config.json").read_text()) | OLDER.get(folder.name, {})
        (folder / "config.json").write_text(json.dumps(older))
        kind = get_model_class(get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT))
        kind.set_vocab = lambda self: None  # the folders have no tokenizer
        kind.no_mtp = True  # nor layers of further tokens
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
    make(values.pop("type", name), 40 + seed, OUT / name, AutoModelForCausalLM, SIZES | values)
    folders.append(OUT / name)
models = {str(folder.relative_to(DATA)): converted(folder) for folder in folders}
lines = [f"{json.dumps(name)}: {json.dumps(model)}" for name, model in models.items()]
(DATA / "gguf_families.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
