// Programs of the next token as a family of models: a model's sizes are its file.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/content_hash.hpp>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.exported;

import tessera.base;
import tessera.checkpoint;
import tessera.models;
import tessera.nn;
import tessera.placement;
import tessera.tensor;
import :graph;
import :language;
import :program;

namespace tessera::exported {
namespace {

using models::HubConfig;
using models::HubKey;
using models::ModelSizes;

constexpr const char* architecture_name = "ExportedProgram";
constexpr std::int64_t most = std::int64_t{1} << 50;
constexpr std::int64_t usual_positions = 2048;  // of a program of any length

// Keys of config.json; those of the sizes have the same names.
const std::string file_key(program_file_size);
constexpr const char* hash_key = "program_hash";
constexpr const char* blocks_key = "program_blocks";
constexpr const char* layers_key = "program_layers";
constexpr const char* parameters_key = "program_parameters";
constexpr const char* longest_key = "program_longest";
constexpr const char* shortest_key = "program_shortest";

/// Identifies what is computed: the graph, and the values that no checkpoint of a model has.
std::string program_hash(const TensorSource& file, const ExportedGraph& graph) {
  ContentHash hash;
  hash.add(std::as_bytes(std::span(file.meta())));
  for (const GraphInput& input : graph.inputs) {
    if (input.role == InputRole::constant || (input.role == InputRole::buffer && !input.saved)) {
      const Tensor value = file.read(input.target);
      hash.add({static_cast<const std::byte*>(value.device_address()),
                static_cast<std::size_t>(value.numel()) * size_of(value.dtype())});
    }
  }
  return hash.hex();
}

bool is_weight(const GraphInput& input) {
  return input.role == InputRole::parameter || (input.role == InputRole::buffer && input.saved);
}

/// The longest list of blocks, as text before their numbers.
std::string longest_list(const ExportedGraph& graph) {
  std::map<std::string, int> counts;
  for (const std::string& block : blocks_of(graph)) {
    ++counts[block.substr(0, block.rfind('.') + 1)];
  }
  const auto longest =
      std::ranges::max_element(counts, {}, [](const auto& one) { return one.second; });
  return longest == counts.end() ? "" : longest->first;
}

/// The different numbers that follow `prefix` in the names of weights.
std::int64_t count_layers(const ExportedGraph& graph, const std::string& prefix) {
  std::set<std::string> numbers;
  for (const GraphInput& input : graph.inputs) {
    if (is_weight(input) && input.target.starts_with(prefix)) {
      const std::string rest = input.target.substr(prefix.size());
      const std::size_t dot = rest.find('.');
      if (dot != std::string::npos && dot > 0 && rest.find_first_not_of("0123456789") == dot) {
        numbers.insert(rest.substr(0, dot));
      }
    }
  }
  return std::ssize(numbers);
}

std::int64_t count_parameters(const ExportedGraph& graph) {
  std::set<std::string> storages;
  std::int64_t count = 0;
  for (const GraphInput& input : graph.inputs) {
    if (input.role == InputRole::parameter && storages.insert(input.storage).second) {
      count += Dims(graph.values[static_cast<std::size_t>(input.value)].shape).product();
    }
  }
  return count;
}

/// PyTorch's name of the type of the first weight of floating numbers.
std::string weight_type(const ExportedGraph& graph) {
  for (const GraphInput& input : graph.inputs) {
    const DType dtype = graph.values[static_cast<std::size_t>(input.value)].dtype;
    if (input.role == InputRole::parameter && is_floating(dtype)) {
      return dtype == DType::bf16  ? "bfloat16"
             : dtype == DType::f16 ? "float16"
             : dtype == DType::f64 ? "float64"
                                   : "float32";
    }
  }
  return "float32";
}

/// Error (input): the file has another program than when it was read first.
void check_hash(const std::string& path, const std::string& hash, const std::string& expected) {
  if (hash != expected) {
    fail_input({.thing = path,
                .wrong = "it has another program than the one that the model was trained with",
                .expected = "the hash " + expected,
                .got = hash,
                .advice = "put the program there with which the run was started"});
  }
}

/// Error (input): the file is where it was no more.
void check_is_there(const std::string& path, const std::string& hash) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    fail_input({.thing = path,
                .wrong = "the program that the model was trained with is not there any more",
                .expected = "the program with the hash " + hash,
                .advice = "put it back, or a link to it; a run that continues finds it where "
                          "model.from says"});
  }
}

class ProgramFamily final : public models::ModelFamily {
 public:
  std::vector<models::ModelKey> keys() const override { return {}; }
  std::vector<models::ModelProblem> complete(ModelSizes& /*sizes*/) const override { return {}; }

  std::string describe(const ModelSizes& sizes) const override {
    const Layers blocks = layers(sizes);
    const std::string& prefix = blocks.prefix;
    return fmt::format(
        "a program of torch.export{}",
        prefix.empty() ? std::string() : fmt::format(", {} blocks {}*", blocks.count, prefix));
  }
  double parameters(const ModelSizes& sizes) const override {
    return static_cast<double>(sizes.values.integer(parameters_key));
  }
  std::int64_t longest_sequence(const ModelSizes& sizes) const override {
    return sizes.values.integer(longest_key);
  }

  std::shared_ptr<nn::LanguageModel> build(const ModelSizes& sizes, double dropout) const override {
    const std::string& path = sizes.values.text(file_key);
    if (dropout > 0) {
      fail_input({.thing = path,
                  .wrong = "a program has the dropout that it was exported with",
                  .expected = "model.dropout = 0",
                  .got = fmt::format("{}", dropout),
                  .advice = "set model.dropout to 0, or export the model in train() with dropout"});
    }
    check_is_there(path, sizes.values.text(hash_key));
    const std::unique_ptr<TensorSource> file = checkpoint_format("pt2").open(path);
    ExportedGraph graph = read_exported_graph(*file);
    check_hash(path, program_hash(*file, graph), sizes.values.text(hash_key));
    return std::make_shared<ExportedLanguageModel>(std::move(graph), *file);
  }

  std::string architecture() const override { return architecture_name; }

  ModelSizes read(HubConfig& config) const override {
    ModelSizes sizes;
    sizes.vocab = config.size("vocab_size", most);
    sizes.max_positions = config.size("max_position_embeddings", most, usual_positions);
    for (const std::string& key : {file_key, std::string(hash_key)}) {
      sizes.values.set(key, config.text(key, ""));
      if (config.text(key, "").empty()) {
        config.problem(fmt::format("{} is missing", key));
      }
    }
    sizes.values.set(blocks_key, config.text(blocks_key, ""));
    for (const char* key : {layers_key, parameters_key, longest_key, shortest_key}) {
      sizes.values.set(key, config.size(key, most, 0));
    }
    return sizes;
  }

  std::vector<HubKey> write(const ModelSizes& sizes) const override {
    std::vector<HubKey> keys = {{"vocab_size", sizes.vocab},
                                {"max_position_embeddings", sizes.max_positions}};
    for (const std::string& key : {file_key, std::string(hash_key), std::string(blocks_key)}) {
      keys.emplace_back(key, sizes.values.text(key).c_str());
    }
    for (const char* key : {layers_key, parameters_key, longest_key, shortest_key}) {
      if (const std::int64_t value = sizes.values.integer(key); value > 0) {
        keys.emplace_back(key, value);
      }
    }
    return keys;
  }

  Layers layers(const ModelSizes& sizes) const override {
    return {sizes.values.text(blocks_key), layers_key, sizes.values.integer(layers_key)};
  }
  // The file's own shapes are compared when it is read.
  std::vector<models::SizedTensor> sized_tensors(const ModelSizes& /*sizes*/) const override {
    return {};
  }
};

/// Some tensors of a source that it owns.
class ProgramWeights final : public TensorSource {
 public:
  explicit ProgramWeights(std::unique_ptr<TensorSource> file)
      : TensorSource(file->path()), file_(std::move(file)) {
    for (const GraphInput& input : read_exported_graph(*file_).inputs) {
      if (is_weight(input)) {
        tensors_.emplace(input.target, file_->info(input.target));
      }
    }
    files_ = file_->files();
  }
  std::uint64_t bytes_read() const override { return file_->bytes_read(); }

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override {
    file_->read(name, box, into);
  }

  std::unique_ptr<TensorSource> file_;
};

}  // namespace

const models::ModelFamily& program_family() {
  static const ProgramFamily family;
  return family;
}

bool is_program(const std::string& path) { return checkpoint_format("pt2").recognises(path); }

std::unique_ptr<TensorSource> program_weights(std::unique_ptr<TensorSource> file) {
  return std::make_unique<ProgramWeights>(std::move(file));
}

namespace {

/// `vocab`: of the logits. `length`: of sequences.
std::string config_of(const std::string& path, const TensorSource& file, const ExportedGraph& graph,
                      std::int64_t vocab, const DimRange& length) {
  const bool bounded = length.high < DimRange::unbounded;
  ModelSizes sizes{.vocab = vocab, .max_positions = bounded ? length.high : usual_positions};
  models::ModelValues& values = sizes.values;
  values.set(file_key, std::filesystem::absolute(path).lexically_normal().string());
  values.set(hash_key, program_hash(file, graph));
  values.set(blocks_key, longest_list(graph));
  values.set(layers_key, count_layers(graph, values.text(blocks_key)));
  values.set(parameters_key, count_parameters(graph));
  values.set(longest_key, bounded ? length.high : 0);
  values.set(shortest_key, length.low);
  nlohmann::json json = {{"architectures", {architecture_name}},
                         {"model_type", std::string(program_family_name)},
                         {"dtype", weight_type(graph)}};
  for (const HubKey& key : program_family().write(sizes)) {
    json[key.key] = parse_json(key.json);
  }
  return json_text(json);
}

}  // namespace

std::string program_config(const std::string& path) {
  const std::unique_ptr<TensorSource> file = checkpoint_format("pt2").open(path);
  const ExportedGraph graph = read_exported_graph(*file);
  const TokenProgram program = token_program(graph);
  return config_of(path, *file, graph, program.vocab, program.length);
}

std::string class_program_config(const std::string& path) {
  const std::unique_ptr<TensorSource> file = checkpoint_format("pt2").open(path);
  const ExportedGraph graph = read_exported_graph(*file);
  const ClassProgram program = class_program(graph);
  return config_of(path, *file, graph, program.classes, program.length);
}

}  // namespace tessera::exported
