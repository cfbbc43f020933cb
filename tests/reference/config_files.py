"""config.json of every family, as transformers writes and reads it. Run it with transformers 4.57 and with 5.x.

Adds to data/config_files.json what this version has:
  keys      of each family, all that transformers' class has, with their values where nothing is given
  rotary    of config.json files with a scaled rotary embedding, the factor of cosines and sines
Then it compares, for each of data/config_exports.json (pairs of a config.json and what Tessera makes of it, which the tests
hold Tessera to), the logits of a small model made from the one and from the other: the exit code is 1 if they differ.
"""

import json
import pathlib
import sys
import tempfile

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

DATA = pathlib.Path(__file__).resolve().parent / "data"
FAMILIES = ["apertus", "bamba", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4", "falcon",
            "gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "glm4", "glm4_moe", "glm4_moe_lite", "gpt2", "gpt_neox", "gpt_oss", "gptj", "granite",
            "granitemoe", "granitemoehybrid", "helium", "hunyuan_v1_dense", "kimi_linear", "lfm2", "llama", "llama4_text", "mamba2",
            "minicpm3", "minimax_m2", "ministral3", "mistral", "mixtral", "nanochat", "nemotron_h", "olmo", "olmo2", "olmo3", "olmoe",
            "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_5_text", "qwen3_moe", "qwen3_next", "seed_oss", "smollm3", "stablelm",
            "starcoder2"]
SMALL = {"model_type": "llama", "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "vocab_size": 101,
         "max_position_embeddings": 512}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
ROTARY = {
    "yarn": YARN,
    "an older name": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    "mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 0.3},
    "mscale alone": YARN | {"mscale": 0.7},
    "mscale 0": YARN | {"mscale": 0.7, "mscale_all_dim": 0},
    "mscale and attention_factor": YARN | {"mscale": 0.7, "mscale_all_dim": 0.3, "attention_factor": 1.5},
    "no factor": YARN | {"factor": 1.0, "mscale": 0.7, "mscale_all_dim": 0.3},
    "without the positions of pretraining": {"rope_type": "yarn", "factor": 4.0},
}


def config_of(values):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(values))
        return AutoConfig.from_pretrained(folder)


def rotary(scaling):
    values = SMALL | {"rope_scaling": scaling}
    model = AutoModelForCausalLM.from_config(config_of(values))
    return {"config": values, "amplitude": float(model.model.rotary_emb.attention_scaling)}


def logits(values):
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config_of(values)).to(torch.float32).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        return model(torch.arange(300).reshape(1, -1) * 7 % 101).logits


def main():
    version = transformers.__version__
    file = DATA / "config_files.json"
    stored = json.loads(file.read_text()) if file.exists() else {"keys": {}, "rotary": {}}
    stored["keys"][version] = {family: json.loads(CONFIG_MAPPING[family]().to_json_string(use_diff=False)) for family in FAMILIES}
    stored["rotary"][version] = {name: rotary(scaling) for name, scaling in ROTARY.items()}
    file.write_text("{\n" + ",\n".join(f"{json.dumps(part)}: {{\n" + ",\n".join(
        f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(stored[part].items())) + "}" for part in stored) + "\n}\n")
    wrong = 0
    for name, case in json.loads((DATA / "config_exports.json").read_text()).items():
        off = float((logits(case["config"]) - logits(case["export"])).abs().max())
        print(f"transformers {version}: {name}: logits differ by {off:.3g}")
        wrong += off > 1e-5
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
