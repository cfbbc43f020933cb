"""Weights in the codes of GPTQ, AWQ and bitsandbytes, and what they decode to: data/quantized.

Of bitsandbytes its own functions (0.50.2) give both. Of the others codes, zeros and scales are drawn and packed here,
as the formats are described, and decoded by definition: scale * (code - zero), in the type of the scales. Where
AutoAWQ's sources are there (AUTOAWQ=FOLDER), AWQ's values are compared with those of its dequantize_gemm.

The folder `model` is a Llama whose linear layers are in GPTQ, with the logits of transformers with their values.
"""

import importlib.util
import json
import os

import bitsandbytes.functional as bnb
import torch
from safetensors.torch import load_file

from common import DATA, fresh, make_llama, save_llama, write_tensors

FOLDER = DATA / "quantized"
OUT, IN = 24, 64
MODULE = "model.layers.0.self_attn.q_proj"


def words(codes, bits, dim):
    """Neighbours along a dim in words of 32 bits, the first one in the lowest bits."""
    each = 32 // bits
    codes = codes.movedim(dim, -1).to(torch.int64)
    shifts = torch.arange(each) * bits
    packed = (codes.reshape(*codes.shape[:-1], -1, each) << shifts).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32).movedim(-1, dim).contiguous()


def drawn(seed, bits, group, dtype):
    generator = torch.Generator().manual_seed(seed)
    groups = IN // group
    codes = torch.randint(0, 2**bits, (IN, OUT), generator=generator)
    zeros = torch.randint(0, 2**bits, (groups, OUT), generator=generator)
    zeros[0, :3] = torch.tensor([0, 2**bits - 1, 1])
    scales = (torch.rand((groups, OUT), generator=generator) + 0.1).mul(0.02).to(dtype)
    return codes, zeros, scales


def decoded(codes, zeros, scales, group_of_input):
    """[out, in]: one product of each, rounded once."""
    exact = scales.double()[group_of_input] * (codes - zeros[group_of_input]).double()
    return exact.to(scales.dtype).T.contiguous()


def gptq(name, seed, bits, group, dtype, form="gptq", ordered=True):
    codes, zeros, scales = drawn(seed, bits, group, dtype)
    groups = torch.arange(IN) // group
    tensors = {}
    if not ordered:
        groups = groups[torch.randperm(IN, generator=torch.Generator().manual_seed(seed))]
        tensors[f"{MODULE}.g_idx"] = groups.to(torch.int32)
    stored = (zeros - 1) % 2**bits if form == "gptq" else zeros
    tensors |= {f"{MODULE}.qweight": words(codes, bits, 0), f"{MODULE}.qzeros": words(stored, bits, 1),
                f"{MODULE}.scales": scales}
    config = {"quant_method": "gptq", "bits": bits, "group_size": -1 if group == IN else group,
              "desc_act": not ordered, "sym": False, "checkpoint_format": form}
    write(name, tensors, config, decoded(codes, zeros, scales, groups))


def awq(name, seed, group):
    codes, zeros, scales = drawn(seed, 4, group, torch.float16)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # nibble i of a word has column order[i] of 8

    def packed(x):
        return words(x.reshape(x.shape[0], -1, 8)[:, :, order].reshape(x.shape), 4, 1)

    tensors = {f"{MODULE}.qweight": packed(codes), f"{MODULE}.qzeros": packed(zeros), f"{MODULE}.scales": scales}
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm",
              "modules_to_not_convert": None}
    values = decoded(codes, zeros, scales, torch.arange(IN) // group)
    if "AUTOAWQ" in os.environ:
        spec = importlib.util.spec_from_file_location("p", f"{os.environ['AUTOAWQ']}/awq/utils/packing_utils.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        theirs = module.dequantize_gemm(*tensors.values(), 4, group)
        assert torch.equal(theirs.T, values), "AutoAWQ decodes something else"
    write(name, tensors, config, values)


def four_bits(name, seed, kind, nested, dtype, shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(0.02).to(dtype)
    codes, state = bnb.quantize_4bit(weight, blocksize=64, compress_statistics=nested, quant_type=kind)
    tensors = {f"{MODULE}.weight": codes}
    tensors |= {f"{MODULE}.weight.{part}": value for part, value in state.as_dict(packed=True).items()}
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "_load_in_4bit": True,
              "_load_in_8bit": False, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested,
              "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8", "llm_int8_threshold": 6.0,
              "llm_int8_skip_modules": None, "llm_int8_has_fp16_weight": False,
              "llm_int8_enable_fp32_cpu_offload": False}
    write(name, tensors, config, bnb.dequantize_4bit(codes, state))


def eight_bits(name, seed):
    weight = torch.randn((OUT, IN), generator=torch.Generator().manual_seed(seed)).to(torch.float16)
    codes, largest, _ = bnb.int8_vectorwise_quant(weight)
    tensors = {f"{MODULE}.weight": codes, f"{MODULE}.SCB": largest.float(),
               f"{MODULE}.weight_format": torch.tensor(0, dtype=torch.uint8)}
    config = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True, "llm_int8_threshold": 6.0,
              "llm_int8_has_fp16_weight": False}
    write(name, tensors, config, bnb.int8_vectorwise_dequant(codes, largest.float()).float())


def write(name, tensors, config, values):
    tensors[f"{MODULE}.bias"] = torch.arange(values.shape[0]).to(torch.float16)  # stays as it is
    write_tensors(FOLDER / f"{name}.safetensors", tensors | {"values": values.contiguous()})
    (FOLDER / f"{name}.json").write_text(json.dumps({"quantization_config": config}) + "\n")


def model():
    """Codes of 4 bits by rounding to the nearest, in groups of 16 with a scale and a zero."""
    llama = make_llama(11, 0.1, vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                       num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64)
    tensors, group = {}, 16
    for name, layer in llama.named_modules():
        if not isinstance(layer, torch.nn.Linear) or name == "lm_head":
            continue
        grouped = layer.weight.data.T.reshape(-1, group, layer.out_features)
        low, high = grouped.amin(1), grouped.amax(1)
        scales = ((high - low) / 15).half()
        zeros = (-low / scales.float()).round().clamp(0, 15).long()
        codes = (grouped / scales.float()[:, None] + zeros[:, None]).round().clamp(0, 15).long()
        codes = codes.reshape(layer.in_features, layer.out_features)
        layer.weight.data = decoded(codes, zeros, scales, torch.arange(layer.in_features) // group).float()
        tensors |= {f"{name}.qweight": words(codes, 4, 0), f"{name}.qzeros": words((zeros - 1) % 16, 4, 1),
                    f"{name}.scales": scales}
    folder = FOLDER / "model"
    save_llama(llama, folder)
    with torch.no_grad():
        tensors["logits"] = llama(torch.tensor([[3, 1, 7, 5]])).logits[0, -1]
    write_tensors(FOLDER / "logits.safetensors", {"logits": tensors.pop("logits").contiguous()})
    plain = load_file(folder / "model.safetensors")
    replaced = {f"{name.removesuffix('.qweight')}.weight" for name in tensors if name.endswith(".qweight")}
    write_tensors(folder / "model.safetensors",
                  {name: value for name, value in plain.items() if name not in replaced} | tensors)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main():
    fresh(FOLDER)
    model()
    gptq("gptq", 1, 4, 16, torch.float16)
    gptq("gptq_order", 2, 4, 16, torch.float16, ordered=False)
    gptq("gptq_eight", 3, 8, 32, torch.bfloat16)
    gptq("gptq_second", 4, 4, IN, torch.float16, form="gptq_v2")
    awq("awq", 5, 16)
    four_bits("nf4", 6, "nf4", False, torch.float16, (OUT, IN))
    four_bits("nf4_nested", 7, "nf4", True, torch.bfloat16, (20, 832))
    four_bits("fp4", 8, "fp4", True, torch.float32, (5, 32))
    eight_bits("int8", 9)


if __name__ == "__main__":
    main()
