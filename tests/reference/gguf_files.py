"""GGUF files by ggml's own package, with what they hold: types.gguf with every type that is read, small models of
data/decoders in the form that llama.cpp's convert_hf_to_gguf.py gives them, and vocabularies of data/tokenizers.

Packages: requirements_tokenizers.txt and safetensors.
"""

import json
import math
import pathlib

import gguf
import numpy as np
import sentencepiece
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file, save_file

DATA = pathlib.Path(__file__).resolve().parent / "data"
OUT = DATA / "gguf"


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def types():
    """Tensors of all types, and their values after gguf's own decoding; fields of all types."""
    random = np.random.default_rng(7)
    values = random.normal(size=(6, 3, 64)).astype(np.float32)
    values[0, 0] = 0
    values[1, 1, 32:] *= 1e-9  # a scale that is subnormal in f16
    values[2, 0, 5] = 3.5  # ties of Q8_0
    writer = gguf.GGUFWriter(OUT / "types.gguf", "none")
    expected = {"values": values}
    for kind in (Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.MXFP4):
        stored = gguf.quants.quantize(values, kind)
        writer.add_tensor(kind.name, stored, raw_dtype=kind)
        expected[kind.name] = gguf.quants.dequantize(stored, kind).astype(np.float32).reshape(values.shape)
        expected["bytes." + kind.name] = np.frombuffer(stored.tobytes(), np.uint8).copy()
    for kind in (np.float64, np.int8, np.int32, np.int64):
        name = np.dtype(kind).name
        expected[name] = (np.arange(24).reshape(2, 3, 4) - 9).astype(kind)
        writer.add_tensor(name, expected[name])
    expected["scalar"] = np.array([2.5], np.float32)
    writer.add_tensor("scalar", expected["scalar"])
    fields = {"uint8": 200, "int8": -100, "uint16": 60000, "int16": -30000, "uint32": 4000000000, "int32": -2000000000,
              "uint64": 2**63 - 1, "int64": -2**62, "float32": 0.1, "float64": 0.1, "bool": True, "string": "é\n☃"}
    for name, value in fields.items():
        getattr(writer, "add_" + name)("field." + name, value)
    writer.add_array("field.numbers", [3, 1, 2])
    writer.add_array("field.texts", ["a", "", "ü"])
    writer.add_array("field.floats", [0.5, -1.5])
    write(writer)
    save_file(expected, OUT / "types.safetensors")


LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "mlp.gate_up_proj": "ffn_up", "post_attention_layernorm": "ffn_norm"}
SANDWICH = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm"}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def permute(weights, heads):
    """LlamaModel.permute of convert_hf_to_gguf.py."""
    return weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def tensors_of(folder, config, arch):
    """The tensors of a folder by their names in a GGUF file, in the form that they have there."""
    gemma = arch.startswith("gemma")
    names = {**LAYER, **(SANDWICH if gemma else {})}
    tensors = {}
    for full, values in load_file(folder / "model.safetensors").items():
        stem, kind = full.rsplit(".", 1)
        if stem in OUTER:
            own = OUTER[stem]
        else:
            _, _, layer, part = stem.split(".", 3)
            own = f"blk.{layer}.{names[part]}"
            if arch == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
                values = permute(values, config["num_attention_heads" if "q_proj" in part else "num_key_value_heads"])
        tensors[f"{own}.{kind}"] = values + 1 if gemma and full.endswith("norm.weight") else values
    return tensors


def model(name, arch):
    config = json.loads((DATA / "decoders" / name / "config.json").read_text())
    gemma = arch == "gemma2"
    writer = gguf.GGUFWriter(OUT / f"{name}.gguf", arch)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_file_type(0)
    for key, add in (("bos_token_id", writer.add_bos_token_id), ("eos_token_id", writer.add_eos_token_id)):
        if config[key] is not None:
            add(config[key])
    rope = config["rope_parameters"]
    if not gemma:
        writer.add_rope_freq_base(rope["rope_theta"])
        writer.add_rope_dimension_count(config["head_dim"])
    if arch == "llama":
        writer.add_vocab_size(config["vocab_size"])
    if gemma:
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        writer.add_sliding_window(config["sliding_window"])
    if arch == "phi3":
        writer.add_sliding_window(config["sliding_window"] or 0)
        writer.add_rope_scaling_orig_ctx_len(config["max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        factors = []
        for i in range(0, config["head_dim"], 2):
            wavelength = 2 * math.pi * rope["rope_theta"] ** (i / config["head_dim"])
            low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
            high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
            smooth = (rope["original_max_position_embeddings"] / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 if wavelength < high else rope["factor"] if wavelength > low else
                           1 / ((1 - smooth) / rope["factor"] + smooth))
        writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    for own, values in tensors_of(DATA / "decoders" / name, config, arch).items():
        writer.add_tensor(own, np.ascontiguousarray(values))
    write(writer)


def byte_level():
    """The pairs of byte_level.json without the added tokens that take white space."""
    tokenizer = json.loads((DATA / "tokenizers" / "byte_level.json").read_text())
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    tokens = {id: text for text, id in tokenizer["model"]["vocab"].items()}
    tokens |= {id: token["content"] for id, token in added.items() if token["special"]}
    count = max(tokens) + 1
    writer = gguf.GGUFWriter(OUT / "byte_level.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens.get(id, f"[PAD{id}]") for id in range(count)])
    writer.add_token_types([3 if id in added and added[id]["special"] else 1 if id in tokens else 5 for id in range(count)])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(next(id for id, token in added.items() if token["content"] == "<s>"))
    writer.add_eos_token_id(next(id for id, token in added.items() if token["content"] == "</s>"))
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages }}")
    write(writer)


def pieces():
    """bpe.model, as convert_hf_to_gguf.py's _create_vocab_sentencepiece writes it."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(DATA / "tokenizers" / "bpe.model"))
    ids = range(model.vocab_size())
    writer = gguf.GGUFWriter(OUT / "sentencepiece.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([model.id_to_piece(id).encode() for id in ids])
    writer.add_token_scores([model.get_score(id) for id in ids])
    writer.add_token_types([2 if model.is_unknown(id) else 3 if model.is_control(id) else 5 if model.is_unused(id) else 6 if model.is_byte(id)
                            else 1 for id in ids])
    writer.add_bos_token_id(model.bos_id())
    writer.add_eos_token_id(model.eos_id())
    writer.add_unk_token_id(model.unk_id())
    write(writer)


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    types()
    for name, arch in (("llama3", "llama"), ("qwen3", "qwen3"), ("gemma2", "gemma2"), ("phi3", "phi3")):
        model(name, arch)
    byte_level()
    pieces()
