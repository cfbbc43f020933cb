module;
#include <string>
#include <utility>
#include <variant>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.options;
import tessera.models;
import :section_keys;

namespace tessera::runs {
namespace {

Range range_of(const models::ModelRange& range) {
  Range result;
  result.low = range.low.value_or(result.low);
  result.high = range.high.value_or(result.high);
  result.low_open = range.low_open;
  return result;
}

}  // namespace

std::vector<Key> model_keys() {
  using M = ModelConfig;
  constexpr auto s = &RunSpec::model;
  return {
      {"model.family", field<s, &M::family>,
       "The family of models ([models.md](models.md)): `llama`, or what a plugin provides. It "
       "determines the further keys of this section."},
      {.path = "model.from",
       .slot = field<s, &M::from>,
       .doc = "A folder in Hugging Face's format (`config.json`, `*.safetensors`), a GGUF "
              "file, a program of torch.export ([exported-programs.md](exported-programs.md)), or "
              "a checkpoint of another run (its tokenizer, template and options too), to "
              "start from. It "
              "determines every size, so the other keys of this section except `dropout`, "
              "`adapter`, `base` and `further_layers` must be absent.",
       .is_path = true,
       .reads = Reads::model},
      {.path = "model.base",
       .slot = field<s, &M::base>,
       .doc = "Where the base of the checkpoint in `model.from` is now, if it has moved since the "
              "checkpoint was saved ([checkpoint-base.md](checkpoint-base.md)).",
       .is_path = true,
       .reads = Reads::model},
      {.path = "model.adapter",
       .slot = field<s, &M::adapter>,
       .doc = "A folder in PEFT's format (`adapter_config.json`, `adapter_model.safetensors`) with "
              "the low-rank updates to start from. Ranks, scales and layers must be those that the "
              "styles make.",
       .is_path = true,
       .reads = Reads::model},
      {"model.new_tokens",
       words<s, &M::new_tokens, NewTokens>(
           {{"error", NewTokens::error}, {"mean", NewTokens::mean}}),
       "What happens to tokens that `data.tokenizer` has and the model in `model.from` has not "
       "([data.md](data.md#new-tokens)). `error`: the run is refused. `mean`: embedding and head "
       "get a row for each, the mean of the folder's rows."},
      {"model.vocab", field<s, &M::vocab>,
       "Number of token ids; only with `data.tokens`, otherwise the tokenizer determines it.",
       from(0, largest_size)},
      {"model.dropout", field<s, &M::dropout>,
       "Probability with which an activation is dropped while training, also of a model from a "
       "folder, whatever its config.json says.",
       below_one},
  };
}

std::vector<Key> family_keys(const std::string& family) {
  std::vector<Key> keys;
  for (const models::ModelKey& own : models::model_family(family, "model.family").keys()) {
    Key key{.path = "model." + own.name,
            .slot =
                [name = own.name, initial = own.initial](RunSpec& config, std::size_t /*entry*/) {
                  auto& value = config.model.sizes.try_emplace(name, initial).first->second;
                  return std::visit([](auto& number) { return Slot(&number); }, value);
                },
            .doc = own.doc,
            .range = range_of(own.range),
            .choices = own.choices,
            .of_family = true};
    keys.push_back(std::move(key));
  }
  return keys;
}

}  // namespace tessera::runs
