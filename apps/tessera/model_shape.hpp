// Which Llama a config asks for.
#pragma once
#include <cstdint>

#include "config/config.hpp"
#include "llama_config.hpp"

namespace tessera::app {

/// The model's sizes: those of the config, with 0 replaced by the default that it means, or those
/// of model.from's config.json, compared with the weights in that folder. `tokenizer_vocab` is the
/// tokenizer's number of symbols, 0 for ready-made tokens. Throws Error (input), for instance when
/// the tokenizer is not the one that the folder's model was trained with.
LlamaConfig model_shape(const Config& config, std::int64_t tokenizer_vocab);

}  // namespace tessera::app
