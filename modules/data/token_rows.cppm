module;
#include <nlohmann/json_fwd.hpp>
module tessera.data:token_rows;

import tessera.base;
import :examples;

// Records whose text is tokens already, as data sets that transformers' Trainer reads have them.

namespace tessera::data {

/// The tokens of a record's `input_ids`, of which those are trained that `labels` repeats; without
/// `labels`, and with TrainOn::all, all are. Tokens at both ends that `attention_mask` leaves out
/// are padding. Errors (input), without a place: a member is not a list of whole numbers, or of
/// another length than `input_ids`, which is empty; an id is not below `vocabulary`; a label is
/// neither -100 nor the token at its place, or is of padding; the mask leaves out a token between
/// others.
Example example_of_tokens(const nlohmann::json& record, std::int64_t vocabulary, TrainOn train_on);

}  // namespace tessera::data
