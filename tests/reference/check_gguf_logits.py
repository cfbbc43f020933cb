"""Logits of GGUF files in llama.cpp beside those of the folders of transformers that they were exported from, in float32.

    check_gguf_logits.py SOURCE BUILD FILE FOLDER [FILE FOLDER]...

SOURCE and BUILD: the folders of llama.cpp's source and of its build with static libraries (cmake -D BUILD_SHARED_LIBS=OFF),
with which a small program is compiled. Packages: requirements.txt and gguf. Prints, for each, the largest difference of 20
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

# PROGRAM FILE ID... prints a line of logits for each token.
PROGRAM = r"""
#include <llama.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int count, char** arguments) {
  llama_backend_init();
  llama_model_params model_options = llama_model_default_params();
  model_options.n_gpu_layers = 0;
  llama_model* const model = llama_model_load_from_file(arguments[1], model_options);
  if (model == nullptr) {
    return 3;
  }
  llama_context_params options = llama_context_default_params();
  options.n_ctx = 64;
  options.n_batch = 64;
  options.n_threads = 1;
  options.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  options.type_k = GGML_TYPE_F32;
  options.type_v = GGML_TYPE_F32;
  llama_context* const context = llama_init_from_model(model, options);
  if (context == nullptr) {
    return 4;
  }
  llama_batch batch = llama_batch_init(count, 0, 1);
  for (int i = 2; i < count; ++i) {
    const int at = batch.n_tokens++;
    batch.token[at] = std::atoi(arguments[i]);
    batch.pos[at] = at;
    batch.n_seq_id[at] = 1;
    batch.seq_id[at][0] = 0;
    batch.logits[at] = 1;
  }
  if (llama_decode(context, batch) != 0) {
    return 5;
  }
  const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (int i = 0; i < batch.n_tokens; ++i) {
    const float* const logits = llama_get_logits_ith(context, i);
    for (int j = 0; j < vocab; ++j) {
      std::printf("%.9g ", logits[j]);
    }
    std::puts("");
  }
}
"""


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
    text = to.with_suffix(".cpp")
    text.write_text(PROGRAM)
    command += [str(text), "-o", str(to)]
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
