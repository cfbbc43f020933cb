"""Logits of GGUF files in llama.cpp beside those of the folders of transformers that they were exported from, in float32.

    check_gguf_logits.py SOURCE BUILD FILE FOLDER [FILE FOLDER]...

SOURCE and BUILD: the folders of llama.cpp's source and of its build with static libraries (cmake -D BUILD_SHARED_LIBS=OFF),
with which gguf_logits.cpp is compiled. Packages: requirements.txt and gguf. Prints, for each, the largest difference of 20
tokens, or that llama.cpp does not compute the file.
"""

import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM

LENGTH = 20


def with_no_vocabulary(file, to):
    """llama.cpp reads no file without a tokenizer: the same file, which says that there is none."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(to, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "tokenizer.")) and name != "general.architecture":
            kind = field.types[0]
            of_a_list = {"sub_type": field.types[-1]} if kind == gguf.GGUFValueType.ARRAY else {}
            writer.add_key_value(name, field.contents(), kind, **of_a_list)
    if f"{reader.fields['general.architecture'].contents()}.vocab_size" not in reader.fields:
        rows = next(one for one in reader.tensors if one.name == "token_embd.weight").shape[1]
        writer.add_vocab_size(int(rows))
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def compile_program(source, build, to):
    libraries = ["src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a", "ggml/src/libggml-base.a"]
    command = ["g++", "-std=c++17", "-O1", f"-I{source}/include", f"-I{source}/ggml/include"]
    command += [str(pathlib.Path(__file__).with_name("gguf_logits.cpp")), "-o", str(to)]
    command += [f"{build}/{one}" for one in libraries] + ["-fopenmp", "-lpthread", "-ldl"]
    subprocess.run(command, check=True)


def logits_of(program, file, ids, vocab):
    done = subprocess.run([program, file, *map(str, ids)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if done.returncode != 0:
        return None
    return np.array([[float(one) for one in line.split()] for line in done.stdout.splitlines()])[:, :vocab]


with tempfile.TemporaryDirectory() as temporary:
    program = pathlib.Path(temporary) / "gguf_logits"
    compile_program(sys.argv[1], sys.argv[2], program)
    for file, folder in zip(sys.argv[3::2], sys.argv[4::2], strict=True):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
        vocab = model.config.vocab_size
        ids = [int(id) for id in np.random.default_rng(3).integers(0, vocab, LENGTH)]
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0].numpy()
        copy = pathlib.Path(temporary) / "model.gguf"
        with_no_vocabulary(file, copy)
        found = logits_of(program, copy, ids, vocab)
        print(folder, "is not computed" if found is None else f"{np.abs(found - expected).max():.1e}", flush=True)
