"""Writes one GPT-2 with random weights twice, for a comparison of speed (docs/performance-beside.md): as a folder
that `model.from` reads, and as the files that llm.c's train_gpt2 reads. Both train on the same tokens.

    llm_c.py FOLDER [LAYERS] [DIM] [HEADS]
"""

import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import save_file

VOCABULARY, POSITIONS = 50257, 1024
PADDED = 50304  # llm.c has rows for these


def weights(layers, dim, random):
    """The tensors of transformers' GPT2LMHeadModel, whose linear layers are stored as [in, out]."""

    def normal(*shape):
        return (0.02 * random.standard_normal(shape)).astype(np.float32)

    def norm(name):
        return {f"{name}.weight": np.ones(dim, np.float32), f"{name}.bias": np.zeros(dim, np.float32)}

    tensors = {"transformer.wte.weight": normal(VOCABULARY, dim), "transformer.wpe.weight": normal(POSITIONS, dim)}
    for layer in range(layers):
        at = f"transformer.h.{layer}"
        tensors |= norm(f"{at}.ln_1") | norm(f"{at}.ln_2")
        for name, inputs, outputs in [("attn.c_attn", dim, 3 * dim), ("attn.c_proj", dim, dim),
                                      ("mlp.c_fc", dim, 4 * dim), ("mlp.c_proj", 4 * dim, dim)]:
            tensors[f"{at}.{name}.weight"] = normal(inputs, outputs)
            tensors[f"{at}.{name}.bias"] = np.zeros(outputs, np.float32)
    return tensors | norm("transformer.ln_f")


def write_llm_c(file, tensors, layers, dim, heads):
    """llm.c's format: 256 integers, then each kind of parameter of all layers together, linear layers as [out, in]."""
    header = np.zeros(256, np.int32)
    header[:8] = [20240326, 3, POSITIONS, VOCABULARY, layers, heads, dim, PADDED]
    file.write(header.tobytes())
    tokens = tensors["transformer.wte.weight"]
    file.write(tokens.tobytes() + np.zeros((PADDED - VOCABULARY, dim), np.float32).tobytes())
    file.write(tensors["transformer.wpe.weight"].tobytes())
    for name in ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
                 "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
                 "mlp.c_proj.weight", "mlp.c_proj.bias"]:
        for layer in range(layers):
            tensor = tensors[f"transformer.h.{layer}.{name}"]
            file.write(np.ascontiguousarray(tensor.T if tensor.ndim == 2 else tensor).tobytes())
    for name in ["weight", "bias"]:
        file.write(tensors[f"transformer.ln_f.{name}"].tobytes())


def main():
    folder = pathlib.Path(sys.argv[1])
    layers, dim, heads = (int(text) for text in (sys.argv[2:5] if len(sys.argv) > 4 else ["12", "768", "12"]))
    random = np.random.default_rng(1)
    tensors = weights(layers, dim, random)
    model = folder / "model"
    data = folder / "dev" / "data" / "tinyshakespeare"
    model.mkdir(parents=True, exist_ok=True)
    data.mkdir(parents=True, exist_ok=True)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    (model / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": layers, "n_embd": dim, "n_head": heads,
        "n_positions": POSITIONS, "n_ctx": POSITIONS, "vocab_size": VOCABULARY, "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}))
    with open(folder / "gpt2_124M.bin", "wb") as file:
        write_llm_c(file, tensors, layers, dim, heads)
    tokens = (random.zipf(1.2, 200_000) % VOCABULARY).astype(np.uint16)
    np.save(folder / "tokens.npy", tokens)
    for name in ["tiny_shakespeare_train.bin", "tiny_shakespeare_val.bin"]:
        with open(data / name, "wb") as file:
            header = np.zeros(256, np.int32)
            header[:3] = [20240520, 1, len(tokens)]
            file.write(header.tobytes() + tokens.tobytes())


if __name__ == "__main__":
    main()
