export module tessera.runs:run_model;

import tessera.base;
import tessera.hub;
import :spec;

// The model and the tokenizer that a config names.

export namespace tessera::runs {

/// That of data.tokenizer; null where all data are token ids. Errors (input): there is none of that
/// name, or it cannot be read; data.chat_template cannot be read; it has not a token of
/// data.end_tokens.
std::shared_ptr<const hub::ModelTokenizer> open_run_tokenizer(const RunSpec& config);

/// The model's sizes: those of the config, with values that stand for a default replaced by it, or
/// those of model.from's config.json, compared with the weights in that folder. `tokenizer`: null
/// for ready-made tokens. Throws Error (input), for
/// instance when the tokenizer is not the one that the folder's model was trained with, or a
/// sequence of the data is longer than the model can compute.
hub::ModelShape model_shape(const RunSpec& config,
                            const std::shared_ptr<const hub::ModelTokenizer>& tokenizer);

}  // namespace tessera::runs
