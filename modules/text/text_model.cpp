module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>
module tessera.text;

import tessera.base;
import tessera.plugin;
import tessera.stores;
import tessera.tokenize;
import tessera.data;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.nn;
import tessera.coded;
import tessera.models;
import tessera.parallel;
import tessera.checkpoint;
import tessera.hub;

namespace tessera::text {
namespace {

namespace fs = std::filesystem;

/// A thread for each 4 million parameters: a token's products are one pass over the weights, and
/// waking a thread for a small part of it costs more than the part.
int threads_of(const hub::ModelShape& shape, const RankGrid& grid) {
  constexpr std::int64_t parameters_of_thread = std::int64_t{1} << 22;
  const std::int64_t cores = std::max(1, available_cores() / grid.ranks());
  return static_cast<int>(
      std::clamp<std::int64_t>(shape.parameters() / grid.split / parameters_of_thread, 1, cores));
}

/// What is stored of a model, with its headers compared.
struct StoredModel {
  hub::ModelShape shape;
  hub::ModelTokenizer tokenizer = {};  // without one: null
  std::function<void(nn::LanguageModel& model)> load = {};
  std::function<bool(const std::string& name)> has = {};  // a tensor, by its name in the model
  /// The form in which a weight is stored; none: plainly, or in a form that is not computed with.
  std::function<std::optional<coded::CodeType>(const std::string& name)> form = {};
};

std::optional<coded::CodeType> form_of(const TensorSource& from, const std::string& name) {
  if (!from.contains(name)) {
    return std::nullopt;
  }
  const auto type = coded::code_type(from.stored_type(name));
  const bool has_rows = type && (coded::block_of(*type) == 1 || from.stored_rows(name, 0, 0));
  return has_rows ? type : std::nullopt;
}

/// The model, with the biases of experts that are stored besides what its family has, on so many
/// ranks.
std::shared_ptr<nn::LanguageModel> model_of(const StoredModel& stored, const ModelFiles& files,
                                            int split) {
  auto model = hub::make_model(stored.shape, 0);
  for (nn::SparseMixture* const mixture : nn::all_mixtures(*model)) {
    if (stored.has(mixture->name() + ".choice_bias")) {
      mixture->add_bias();
    }
  }
  model->set_names();
  set_weight_form(*model, files.precision, split, stored.form, files.activations);
  return model;
}

StoredModel stored_in_checkpoint(const ModelFiles& model_files, hub::BaseUse use) {
  struct Files {
    Files(const ModelFiles& files, hub::BaseUse use)
        : whole(files.path, OpenFiles::all, use, files.base),
          reader(whole.tensors()),
          weights(reader, hub::stored_updates(reader.meta(), files.path), "model.") {}
    hub::WholeCheckpoint whole;
    const TensorSource& reader;
    hub::MergedWeights weights;
  };
  const std::string& path = model_files.path;
  const auto files = std::make_shared<const Files>(model_files, use);
  StoredModel stored{.shape = hub::stored_model(files->reader.meta(), path)};
  if (const auto opened =
          hub::stored_tokenizer(files->reader.meta(), path, model_files.tokenizer)) {
    stored.tokenizer = *opened;
  }
  hub::check_stored_sizes(stored.shape, files->weights, "model.", path);
  stored.has = [files](const std::string& name) { return files->reader.contains("model." + name); };
  stored.form = [files](const std::string& name) {
    return form_of(files->weights, "model." + name);
  };
  stored.load = [files](nn::LanguageModel& model) {
    std::vector<nn::ParameterPointer> plain = nn::all_parameters(model);
    std::erase_if(plain, [](const nn::ParameterPointer& parameter) {
      return parameter->initialization.kind == nn::Initialization::Kind::packed;
    });
    StateDict weights{.tensors = nn::values_by_name(plain), .scalars = {}};
    for (const nn::BufferPointer& buffer : nn::all_buffers(model)) {
      if (buffer->saved && files->reader.contains("model." + buffer->name)) {
        weights.tensors.emplace(buffer->name, buffer->value);
      }
    }
    LoadOptions options;
    options.prefix = "model.";
    for (const std::string& name : hub::packed_names(model)) {
      options.ignore.push_back(options.prefix + name);
    }
    load_state(files->weights, weights, options);
    hub::load_packed_weights(files->weights, model, options.prefix);
  };
  return stored;
}

StoredModel stored_in_folder(const ModelFiles& model_files) {
  struct Files {
    Files(const ModelFiles& files, const hub::HubNames& names)
        : tensors(hub::open_hub_tensors(files.path)),
          adapted(files.adapter.empty() ? nullptr
                                        : std::make_unique<hub::AdapterWeights>(
                                              *tensors.source, names, files.adapter)),
          weights(adapted != nullptr ? *adapted : *tensors.source, names) {}
    OpenedTensors tensors;
    std::unique_ptr<hub::AdapterWeights> adapted;  // null: there is no adapter
    hub::HubWeights weights;
  };
  const std::string& path = model_files.path;
  StoredModel stored{.shape = hub::read_model_folder(path)};
  stored.tokenizer = hub::model_tokenizer(path, stored.shape.vocab, model_files.tokenizer);
  const auto files = std::make_shared<const Files>(
      model_files, hub::names_of(hub::family_of(stored.shape), hub::sizes_of(stored.shape)));
  hub::check_stored_sizes(stored.shape, files->weights, "", path);
  stored.has = [files](const std::string& name) { return files->weights.contains(name); };
  stored.form = [files](const std::string& name) { return form_of(files->weights, name); };
  stored.load = [files](nn::LanguageModel& model) {
    hub::load_model_weights(files->weights, model);
  };
  return stored;
}

/// Whether a model is one of a folder or file of others, and no checkpoint.
bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::path(path) / "config.json", ignored) || !hub::gguf_file(path).empty() ||
         checkpoint_format("pt2").recognises(path);
}

StoredModel stored_at(const ModelFiles& files, hub::BaseUse use) {
  const std::string& path = files.path;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    fail_input({.thing = path,
                .wrong = "there is no such file or folder",
                .advice = "name a checkpoint of 'tessera train', a model folder or a GGUF file"});
  }
  const bool folder = is_folder(path);
  if (folder && !files.base.empty()) {
    fail_input({.thing = path,
                .wrong = "it has all its weights, and no base",
                .advice = "leave out --base"});
  }
  if (!folder && (files.adapters || !files.adapter.empty())) {
    fail_input({.thing = path,
                .wrong = "a checkpoint takes no adapter",
                .advice = "name a model folder; 'tessera checkpoint export' makes one"});
  }
  StoredModel stored = folder ? stored_in_folder(files) : stored_in_checkpoint(files, use);
  stored.tokenizer.opened = tokenize::limited(stored.tokenizer.opened, stored.shape.vocab, path);
  return stored;
}

constexpr const char* context_axis = "context";
constexpr const char* split_axis = "tensor";

/// The ranks of a copy.
DeviceMesh mesh_of(const RankGrid& grid, int copy) {
  std::vector<int> ranks(static_cast<std::size_t>(grid.of_copy()));
  std::iota(ranks.begin(), ranks.end(), copy * grid.of_copy());
  std::vector<std::string> axes;
  Dims shape;
  for (const auto& [name, size] :
       {std::pair{context_axis, grid.context}, std::pair{split_axis, grid.split}}) {
    if (size > 1) {
      axes.emplace_back(name);
      shape.push_back(size);
    }
  }
  return DeviceMesh::make(std::move(axes), shape, std::move(ranks));
}

/// The styles that give each rank a part of every layer, as the family says which are split.
void add_split(std::vector<parallel::StyleEntry>& entries, const hub::ModelShape& shape,
               const std::string& where) {
  const models::TensorSplit layers = hub::family_of(shape).tensor_split(hub::sizes_of(shape));
  if (layers.columns.empty() && layers.rows.empty()) {
    fail_input({.thing = where,
                .wrong = fmt::format("the family '{}' does not say how its layers are split",
                                     shape.family),
                .advice = "use one rank for each copy, or split texts with --context"});
  }
  entries.push_back({"ColwiseParallel", split_axis, layers.columns});
  entries.push_back({"RowwiseParallel", split_axis, layers.rows});
  if (!layers.logits.empty()) {
    entries.push_back({"ColwiseParallel", split_axis, {layers.logits}});
    entries.push_back({"LossParallel", split_axis, {"loss"}});
  }
}

/// The style that gives each rank a part of every text.
void add_context(std::vector<parallel::StyleEntry>& entries, nn::LanguageModel& model,
                 const hub::ModelShape& shape, const RankGrid& grid, const std::string& where) {
  const std::int64_t longest = hub::family_of(shape).longest_sequence(hub::sizes_of(shape));
  if (longest % grid.context != 0) {
    fail_input({.thing = where,
                .wrong = fmt::format("the longest text that the model computes cannot be split "
                                     "over {} ranks",
                                     grid.context),
                .expected = fmt::format("a divisor of {} tokens", longest)});
  }
  nn::KeyValueCache cache{.axis = 0};
  try {
    model.set_cache(&cache);
  } catch (const Error& error) {
    fail_at(where + ": texts cannot be split", error);
  }
  model.set_cache(nullptr);
  entries.push_back({"ContextParallel", context_axis, {"**.inner_attention"}});
}

/// The styles of training.
std::unique_ptr<parallel::ParallelPlan> split(nn::LanguageModel& model,
                                              const hub::ModelShape& shape, const RankGrid& grid,
                                              const DeviceMesh& mesh) {
  const std::string where = fmt::format("{} ranks for a copy of the model", mesh.size());
  std::vector<parallel::StyleEntry> entries;
  if (grid.split > 1) {
    add_split(entries, shape, where);
  }
  if (grid.context > 1) {
    add_context(entries, model, shape, grid, where);
  }
  try {
    return std::make_unique<parallel::ParallelPlan>(model, mesh, entries, plugin::host());
  } catch (const Error& error) {
    fail_at(where, error);
  }
}

}  // namespace

ModelFiles local_files(ModelFiles files) {
  const stores::CopyRules rules{.choose = hub::leave_out_other_formats};
  for (std::string* const path : {&files.path, &files.tokenizer, &files.base, &files.adapter}) {
    if (stores::is_address(*path)) {
      *path = files.copies.emplace_back(*path, rules).path();
    }
  }
  return files;
}

void set_weight_form(
    nn::LanguageModel& model, coded::WeightForm form, std::int64_t split,
    const std::function<std::optional<coded::CodeType>(const std::string& weight)>& stored,
    coded::Activations activations) {
  bool integers = false;
  const bool as_stored = form == coded::WeightForm::stored;
  const auto type_of = [&](const coded::CodableWeight& weight) {
    const auto own = stored ? stored(weight.name) : std::nullopt;
    const std::int64_t columns = weight.shape.back();
    const auto type = coded::code_type_for(form, columns, weight.of_tokens, own);
    const std::int64_t parts = weight.splits_columns ? split : 1;
    const bool whole = !type || columns % (parts * coded::block_of(*type)) == 0;
    const auto chosen = as_stored && !whole ? std::nullopt : type;
    integers = integers || (chosen && coded::is_integer(*chosen));
    return chosen;
  };
  try {
    coded::use_codes(model, type_of, activations);
  } catch (const Error&) {
    if (!as_stored) {
      throw;
    }
    // A family whose layers cannot be replaced: weights are what they are without codes.
    integers = false;
  }
  if (activations == coded::Activations::int8 && !integers) {
    fail_input(
        {.thing = "activations",
         .wrong = "no weight of the model is kept in integers, with which products of 8 "
                  "bits are made",
         .advice = "choose a form with --precision, such as q8_0, or leave out --activations"});
  }
}

std::int64_t parameter_bytes(nn::LanguageModel& model) {
  std::int64_t bytes = 0;
  for (const nn::ParameterPointer& parameter : nn::all_parameters(model)) {
    const Tensor& own = local_of(parameter->value);
    bytes += own.numel() * static_cast<std::int64_t>(size_of(own.dtype()));
  }
  return bytes;
}

TextModel::TextModel(const ModelFiles& files) : path_(files.path) { open(files, {}, nullptr); }

TextModel::TextModel(const ModelFiles& files, const RankGrid& grid, collective::World& world)
    : path_(files.path), copies_(grid, world) {
  open(files, grid, &world);
}

TextModel::TextModel(const ModelFiles& files, std::unique_ptr<RankProcess> ranks)
    : path_(files.path) {
  StoredModel stored = stored_at(files, hub::BaseUse::compared);
  model_ = hub::make_model(stored.shape, 0);
  take_texts(std::move(stored.shape), std::move(stored.tokenizer));
  ranks_ = std::make_unique<ModelRanks>(*model_, std::move(ranks));
}

void TextModel::take_texts(hub::ModelShape shape, hub::ModelTokenizer tokenizer) {
  shape_ = std::move(shape);
  tokenizer_ = std::move(tokenizer);
  if (tokenizer_.opened.tokenizer) {
    encoder_.emplace(tokenizer_.opened, tokenizer_.records.special);
  }
}

void TextModel::open(const ModelFiles& files, const RankGrid& grid, collective::World* world) {
  StoredModel stored =
      stored_at(files, world == nullptr ? hub::BaseUse::values : hub::BaseUse::compared);
  model_ = model_of(stored, files, grid.split);
  take_texts(std::move(stored.shape), std::move(stored.tokenizer));
  ops::set_threads(threads_of(shape_, grid));
  auto adapters = files.adapters ? std::make_unique<AdapterLayers>(*model_) : nullptr;
  DeviceMesh mesh;
  if (grid.of_copy() == 1) {
    nn::materialize(*model_);
    stored.load(*model_);
  } else {
    mesh = mesh_of(grid, world->rank() / grid.of_copy());
    plan_ = split(*model_, shape_, grid, mesh);
    plan_->materialize();
    stored.load(*model_);
    plan_->initialized();
  }
  model_->train(false);
  ranks_ = std::make_unique<ModelRanks>(*model_, world, mesh,
                                        grid.context > 1 ? mesh.axis_index(context_axis) : -1,
                                        files.keys, std::move(adapters));
}

std::int64_t check_split(const ModelFiles& files, const RankGrid& grid) {
  const StoredModel stored = stored_at(files, hub::BaseUse::values);
  const auto model = model_of(stored, files, grid.split);
  const auto plan =
      grid.of_copy() == 1 ? nullptr : split(*model, stored.shape, grid, mesh_of(grid, 0));
  return parameter_bytes(*model);
}

namespace {

collective::LaunchOptions launch_options(const ModelFiles& files, const RankGrid& grid) {
  collective::LaunchOptions options;
  options.ranks = grid.ranks();
  options.rank_bytes = static_cast<std::size_t>(check_split(files, grid));
  // Ranks wait for whoever types, for requests, and for copies with longer documents.
  options.timeout_seconds = options.report_seconds = 1e9;
  options.grace_seconds = 0.5;  // they have nothing to keep
  return options;
}

/// What a rank does: the first one of a copy leads.
int run_rank(const ModelFiles& files, const RankGrid& grid, collective::World& world,
             const std::function<int(const TextModel&)>& lead) {
  const TextModel model(files, grid, world);
  if (!model.ranks().leads()) {
    model.ranks().follow();
    return 0;
  }
  const int code = lead(model);
  model.ranks().dismiss();
  return code;
}

}  // namespace

int with_text_model(const ModelFiles& files, const RankGrid& grid,
                    const std::function<int(const TextModel&)>& lead, bool heals) {
  if (heals) {
    require(grid.copies == 1, "model: copies of it are not started again");
    auto ranks = std::make_unique<RankProcess>(
        launch_options(files, grid), [&](collective::World& world, int control) {
          return run_rank(files, grid, world, [&](const TextModel& model) {
            model.ranks().answer_calls(connect_first(control));
            return 0;
          });
        });
    return lead(TextModel(files, std::move(ranks)));
  }
  if (grid.ranks() == 1) {
    return lead(TextModel(files));
  }
  return collective::launch(launch_options(files, grid), [&](collective::World& world) {
    return run_rank(files, grid, world, lead);
  });
}

std::vector<hub::LayerUpdate> TextModel::read_adapter(const std::string& folder) const {
  if (!is_folder(path_)) {
    fail_input({.thing = path_,
                .wrong = "a checkpoint takes no adapter",
                .advice = "name a model folder; 'tessera checkpoint export' makes one"});
  }
  const OpenedTensors tensors = hub::open_hub_tensors(path_);
  return hub::read_layer_updates(*tensors.source,
                                 hub::names_of(hub::family_of(shape_), hub::sizes_of(shape_)),
                                 folder, most_adapter_rank);
}

const tokenize::OpenedTokenizer& TextModel::tokenizer() const { return texts().opened; }

const data::TextEncoder& TextModel::encoder() const {
  static_cast<void>(texts());  // an error where there is none
  return *encoder_;
}

const hub::ModelTokenizer& TextModel::texts() const {
  if (!tokenizer_.opened.tokenizer) {
    fail_input({.thing = path_,
                .wrong = "there is no tokenizer for text: the model was trained on token ids, or "
                         "came without one",
                .advice = "name one with --tokenizer"});
  }
  return tokenizer_;
}

bool TextModel::ends_at(std::int64_t token) const {
  const auto& stop = tokenizer_.opened.special.stop;
  return std::ranges::find(shape_.eos, token) != shape_.eos.end() ||
         std::ranges::find(stop, token) != stop.end();
}

std::int64_t TextModel::longest() const {
  return hub::family_of(shape_).longest_sequence(hub::sizes_of(shape_));
}

std::int64_t TextModel::usual_length() const {
  const std::int64_t meant = std::max<std::int64_t>(shape_.max_positions, 1);
  return longest() > 0 ? std::min(meant, longest()) : meant;
}

std::int64_t TextModel::parameter_bytes() const { return text::parameter_bytes(*model_); }

}  // namespace tessera::text
