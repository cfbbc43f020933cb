module;
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.tokenize;
import tessera.data;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;
import tessera.hub;

namespace tessera::runs {
namespace {

/// As data.tokenizer names it.
hub::ModelTokenizer named_tokenizer(const RunSpec& config) {
  const std::string where = config.place("data.tokenizer_options");
  const std::string& options = config.data.tokenizer_options.text;
  if (config.data.tokenizer == DataConfig().tokenizer) {
    return at_key(config, "model.from",
                  [&] { return hub::folder_tokenizer(config.model.from, options, where); });
  }
  return at_key(config, "data.tokenizer", [&] {
    return hub::named_tokenizer(config.data.tokenizer, config.file.parent_path(), options, where);
  });
}

void check_family(const RunSpec& config, const hub::ModelShape& shape) {
  if (config.given.contains("model.family") && config.model.family != shape.family) {
    fail_input({.where = config.place("model.family"),
                .wrong = fmt::format("the model in {} is of another family", config.model.from),
                .expected = fmt::format("\"{}\"", shape.family),
                .got = fmt::format("\"{}\"", config.model.family),
                .advice = "correct it, or remove it"});
  }
}

/// What a run asks for besides what the folder says. Error (input): the family has none.
void set_further_layers(const RunSpec& config, hub::ModelShape& shape) {
  const std::string key = "further_layers";
  if (!config.given.contains("model." + key)) {
    return;
  }
  const auto own = shape.values.find(key);
  if (own == shape.values.end()) {
    fail_input({.where = config.place("model." + key),
                .wrong = fmt::format("models of the family '{}' have no layers of tokens after the "
                                     "next one",
                                     shape.family),
                .advice = "remove it"});
  }
  own->second = config.model.sizes.at(key);
}

/// Error (input): the data's sequences are longer than the model can compute.
void check_longest(const RunSpec& config, const hub::ModelShape& shape) {
  const std::int64_t longest = hub::family_of(shape).longest_sequence(hub::sizes_of(shape));
  if (longest > 0 && config.data.seq_len > longest) {
    fail_input({.where = config.place("data.seq_len"),
                .wrong = "the model has no positions for sequences of this length",
                .expected = fmt::format("at most {}", longest),
                .got = fmt::format("{}", config.data.seq_len)});
  }
}

hub::ModelShape folder_shape(const RunSpec& config,
                             const std::shared_ptr<const hub::ModelTokenizer>& tokenizer) {
  const std::filesystem::path folder = config.model.from;
  hub::ModelShape shape = hub::read_model_folder(folder);
  hub::check_model_files(folder, config.model.adapter, config.place("model.from"));
  check_family(config, shape);
  set_further_layers(config, shape);
  if (tokenizer) {
    std::string own = folder.string();
    if (hub::is_checkpoint(own)) {
      const CheckpointReader reader(own, OpenFiles::when_read);
      const std::string kept = hub::stored_tokenizer_folder(reader.meta(), own);
      own = kept.empty() ? own : kept;
    }
    hub::check_tokenizer_fits(*tokenizer, shape.vocab, own, config.place("model.from"),
                              config.model.adds_tokens());
  }
  const hub::FolderWeights opened(folder.string(), shape, {.base = config.model.base});
  const TensorSource& weights = opened.source();
  const std::string gguf = hub::gguf_file(folder.string());
  hub::check_stored_sizes(shape, weights, "",
                          !gguf.empty() ? gguf
                          : hub::is_checkpoint(folder.string())
                              ? folder.string()
                              : (folder / "config.json").string());
  hub::set_stored_type(shape, weights);
  if (tokenizer && config.model.adds_tokens()) {
    shape.vocab = std::max(shape.vocab, tokenizer->vocab());
  }
  // Trained on longer sequences, the model is meant for them too.
  shape.max_positions = std::max(shape.max_positions, config.data.seq_len);
  return shape;
}

}  // namespace

std::shared_ptr<const hub::ModelTokenizer> open_run_tokenizer(const RunSpec& config) {
  const std::vector<SourceConfig> sources = data_sources(config);
  if (std::ranges::all_of(sources, [](const SourceConfig& source) {
        return source.kind == SourceConfig::Kind::tokens;
      })) {
    return nullptr;
  }
  hub::ModelTokenizer made = named_tokenizer(config);
  const DataConfig& data = config.data;
  if (data.template_options.text != JsonText().text) {  // else those of model.from's run
    made.template_options = data.template_options.text;
  }
  made.records = {.special = data.special_tokens,
                  .allow_dropped = data.allow_dropped,
                  .template_members = data.template_members};
  if (!data.chat_template.empty()) {
    at_key(config, "data.chat_template", [&] { hub::set_template(made, data.chat_template); });
  }
  if (!data.end_tokens.empty()) {
    at_key(config, "data.end_tokens", [&] { hub::add_end_tokens(made, data.end_tokens); });
  }
  return std::make_shared<const hub::ModelTokenizer>(std::move(made));
}

hub::ModelShape model_shape(const RunSpec& config,
                            const std::shared_ptr<const hub::ModelTokenizer>& tokenizer) {
  const ModelConfig& model = config.model;
  hub::ModelShape shape;
  if (!model.from.empty()) {
    shape = folder_shape(config, tokenizer);
  } else {
    models::ModelSizes sizes = hub::sizes_of({.family = model.family,
                                              .vocab = tokenizer ? tokenizer->vocab() : model.vocab,
                                              .values = model.sizes,
                                              .max_positions = config.data.seq_len});
    models::model_family(model.family).complete(sizes);  // its problems: check_config
    shape = hub::shape_of(model.family, sizes, config.place("model.dim"));
  }
  check_longest(config, shape);
  return shape;
}

}  // namespace tessera::runs
