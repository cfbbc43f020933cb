module;
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>
module tessera.app.model;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;
import tessera.hub;
import tessera.app.config;
import tessera.app.data;

namespace tessera::app {

bool operator==(const ModelShape& a, const ModelShape& b) = default;

namespace {

/// PyTorch's name of a type, as config.json has it.
std::string torch_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    case DType::f64:
      return "float64";
    default:
      return "float32";
  }
}

void check_family(const Config& config, const ModelShape& shape) {
  if (config.given.contains("model.family") && config.model.family != shape.family) {
    fail_input({.where = config.place("model.family"),
                .wrong = fmt::format("the model in {} is of another family", config.model.from),
                .expected = fmt::format("\"{}\"", shape.family),
                .got = fmt::format("\"{}\"", config.model.family),
                .advice = "correct it, or remove it"});
  }
}

/// Error (input): the data's sequences are longer than the model can compute.
void check_longest(const Config& config, const ModelShape& shape) {
  const std::int64_t longest = family_of(shape).longest_sequence(sizes_of(shape));
  if (longest > 0 && config.data.seq_len > longest) {
    fail_input({.where = config.place("data.seq_len"),
                .wrong = "the model has no positions for sequences of this length",
                .expected = fmt::format("at most {}", longest),
                .got = fmt::format("{}", config.data.seq_len)});
  }
}

ModelShape folder_shape(const Config& config,
                        const std::shared_ptr<const RunTokenizer>& tokenizer) {
  const std::filesystem::path folder = config.model.from;
  ModelShape shape = read_model_folder(folder);
  check_model_files(folder, config.model.adapter, config.place("model.from"));
  check_family(config, shape);
  if (tokenizer) {
    std::string own = folder.string();
    if (is_checkpoint(own)) {
      const CheckpointReader reader(own, OpenFiles::when_read);
      const std::string kept = stored_tokenizer_folder(reader.meta(), own);
      own = kept.empty() ? own : kept;
    }
    check_tokenizer_fits(*tokenizer, shape.vocab, own, config.place("model.from"),
                         config.model.adds_tokens());
  }
  ModelConfig as_stored;
  as_stored.from = folder.string();
  const FolderWeights opened(as_stored, shape);
  const TensorSource& weights = opened.source();
  const std::string gguf = gguf_file(folder.string());
  check_stored_sizes(shape, weights, "",
                     !gguf.empty()                    ? gguf
                     : is_checkpoint(folder.string()) ? folder.string()
                                                      : (folder / "config.json").string());
  if (shape.dtype.empty()) {
    const std::string first = family_of(shape).sized_tensors(sizes_of(shape)).front().parameter;
    shape.dtype = torch_name(weights.info(first).dtype);
  }
  if (tokenizer && config.model.adds_tokens()) {
    shape.vocab = std::max(shape.vocab, tokenizer->vocab());
  }
  // Trained on longer sequences, the model is meant for them too.
  shape.max_positions = std::max(shape.max_positions, config.data.seq_len);
  return shape;
}

}  // namespace

const models::ModelFamily& family_of(const ModelShape& shape) {
  return models::model_family(shape.family);
}

models::ModelSizes sizes_of(const ModelShape& shape) {
  models::ModelSizes sizes{.vocab = shape.vocab, .max_positions = shape.max_positions};
  for (const auto& [name, value] : shape.values) {
    sizes.values.set(name, value);
  }
  return sizes;
}

ModelShape shape_of(const std::string& family, const models::ModelSizes& sizes,
                    const std::string& name) {
  ModelShape shape{.family = family,
                   .vocab = sizes.vocab,
                   .values = sizes.values.all(),
                   .max_positions = sizes.max_positions};
  const double all = family_of(shape).parameters(sizes);
  constexpr double limit = 0x1p50;
  if (all > limit) {
    fail_input({.thing = name,
                .wrong = fmt::format("the sizes make {:.3g} parameters", all),
                .expected = fmt::format("at most {:.3g}", limit)});
  }
  return shape;
}

std::int64_t ModelShape::parameters() const {
  return static_cast<std::int64_t>(family_of(*this).parameters(sizes_of(*this)));
}

std::string ModelShape::text() const {
  return fmt::format("{}, vocabulary {}", family_of(*this).describe(sizes_of(*this)), vocab);
}

ModelShape model_shape(const Config& config, const std::shared_ptr<const RunTokenizer>& tokenizer) {
  const ModelConfig& model = config.model;
  ModelShape shape;
  if (!model.from.empty()) {
    shape = folder_shape(config, tokenizer);
  } else {
    models::ModelSizes sizes = sizes_of({.family = model.family,
                                         .vocab = tokenizer ? tokenizer->vocab() : model.vocab,
                                         .values = model.sizes,
                                         .max_positions = config.data.seq_len});
    models::model_family(model.family).complete(sizes);  // its problems: check_config
    shape = shape_of(model.family, sizes, config.place("model.dim"));
  }
  check_longest(config, shape);
  return shape;
}

}  // namespace tessera::app
