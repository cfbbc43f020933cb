// Which Llama a config asks for.
#pragma once
#include <cstdint>

#include "config/config.hpp"
#include "llama_config.hpp"

namespace tessera::app {

/// The model's sizes: those of the config, with 0 replaced by what it stands for, or those of
/// model.from's config.json. `tokenizer_vocab` is the tokenizer's number of symbols, 0 for
/// ready-made tokens. Throws Error (input), for instance when the folder's vocabulary is smaller
/// than the tokenizer's.
LlamaConfig model_shape(const Config& config, std::int64_t tokenizer_vocab);

}  // namespace tessera::app
