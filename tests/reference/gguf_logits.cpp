// Logits of a GGUF file in llama.cpp: gguf_logits FILE ID... prints a line of numbers for each
// token. check_gguf_logits.py compiles it.
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
