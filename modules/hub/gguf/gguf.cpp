module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <variant>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.ggml;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.models;
import tessera.checkpoint;
import tessera.exported;
import :gguf;
import :gguf_config;
import :gguf_tensor_forms;
import :gguf_types;
import :hub_weights;
import :model_shape;
import :model_sizes;
import :quantized_folder;

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// A tensor whose first dim is divided into units that are made of rows of other ones.
struct ConvertedTensor {
  std::vector<std::string> from = {};
  std::vector<std::int64_t> rows = {};                          // of each of these, for a unit
  std::int64_t unit = 1;                                        // rows of the result
  std::function<Tensor(const std::vector<Tensor>&)> make = {};  // all other dims are whole
  bool by_rows = false;  // the other dims stay as they are, so that parts of them can be read
  double added = 0;      // to each value; then there is one source, and nothing else is changed
};

/// Parameters of a model by the same names in another form.
class ConvertedSource final : public TensorSource {
 public:
  /// All tensors of `from` that no conversion uses stay as they are. The source must outlive this.
  ConvertedSource(const TensorSource& from, std::map<std::string, ConvertedTensor> conversions,
                  std::map<std::string, TensorInfo> made)
      : TensorSource(from.path()), from_(from), conversions_(std::move(conversions)) {
    std::set<std::string> used;
    for (const auto& [name, conversion] : conversions_) {
      used.insert(conversion.from.begin(), conversion.from.end());
    }
    tensors_ = std::move(made);
    for (const auto& [name, info] : from.tensors()) {
      if (!used.contains(name)) {
        tensors_.emplace(name, info);
      }
    }
  }

  std::uint64_t bytes_read() const override { return from_.bytes_read(); }
  std::string stored_type(const std::string& name) const override {
    info(name);  // throws for a name that is not there
    const auto found = conversions_.find(name);
    return from_.stored_type(found == conversions_.end() ? name : found->second.from[0]);
  }
  Tensor stored_rows(const std::string& name, std::int64_t row, std::int64_t rows) const override {
    info(name);
    const auto found = conversions_.find(name);
    if (found == conversions_.end()) {
      return from_.stored_rows(name, row, rows);
    }
    const ConvertedTensor& conversion = found->second;
    if (!conversion.by_rows || info(name).shape.size() != 2) {
      return {};
    }
    const std::int64_t begin = row / conversion.unit * conversion.unit;
    const std::int64_t end = (row + rows + conversion.unit - 1) / conversion.unit * conversion.unit;
    const Tensor whole = from_.stored_rows(conversion.from[0], begin, end - begin);
    return whole ? ops::narrow(conversion.make({whole}), 0, row - begin, rows) : whole;
  }

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override {
    const auto found = conversions_.find(name);
    if (found == conversions_.end()) {
      from_.read(name, box, into);
      return;
    }
    const ConvertedTensor& conversion = found->second;
    if (conversion.added != 0) {
      const Tensor values = empty(box.shape, DType::f32);
      from_.read(conversion.from[0], box, values);
      ops::copy_(into, ops::add_scalar(values, conversion.added));
      return;
    }
    const std::int64_t first = box.offset[0] / conversion.unit;
    const std::int64_t units =
        (box.offset[0] + box.shape[0] + conversion.unit - 1) / conversion.unit - first;
    std::vector<Tensor> sources;
    for (std::size_t i = 0; i < conversion.from.size(); ++i) {
      LocalPart part = box;
      if (!conversion.by_rows) {
        part.shape = from_.info(conversion.from[i]).shape;
        part.offset = Dims::filled(part.shape.size(), 0);
      }
      part.offset[0] = first * conversion.rows[i];
      part.shape[0] = units * conversion.rows[i];
      sources.push_back(empty(part.shape, into.dtype()));
      from_.read(conversion.from[i], part, sources.back());
    }
    Tensor made = conversion.make(sources);
    for (int d = 0; d < box.shape.size(); ++d) {
      const bool is_whole = d > 0 && conversion.by_rows;
      const std::int64_t begin = d == 0 ? first * conversion.unit : 0;
      made = is_whole ? made : ops::narrow(made, d, box.offset[d] - begin, box.shape[d]);
    }
    ops::copy_(into, made);
  }

  const TensorSource& from_;
  std::map<std::string, ConvertedTensor> conversions_;
};

/// Which parameters have another form in a file. `to_model`: the file is read.
class FormsOfFile {
 public:
  FormsOfFile(const models::GgufForm& form, const TensorSource& from,
              const models::ModelSizes& sizes, bool to_model)
      : form_(form), from_(from), sizes_(sizes), to_model_(to_model) {
    const auto& values = sizes.values.all();
    if (values.contains("recurrent_key_heads") && values.contains("recurrent_value_heads")) {
      heads_ = {.keys = sizes.values.integer("recurrent_key_heads"),
                .values = sizes.values.integer("recurrent_value_heads")};
    }
  }

  std::unique_ptr<ConvertedSource> source() {
    for (const auto& [name, info] : from_.tensors()) {
      add(name, info);
    }
    return std::make_unique<ConvertedSource>(from_, std::move(conversions_), std::move(made_));
  }

 private:
  static constexpr std::string_view keys_end = ".keys";
  static constexpr std::string_view values_end = ".values";
  static constexpr std::string_view latent_end = "self_attn.kv_b_proj.weight";
  static constexpr std::string_view shared_gate_end = "mlp.shared_expert_gate.weight";

  void add(const std::string& name, const TensorInfo& info) {
    const Dims& shape = info.shape;
    if (const auto* const forms = forms_of(name)) {
      add_forms(name, info, *forms);
    } else if (form_.norm_offset && name.ends_with("norm.weight") &&
               !name.ends_with(".recurrent.norm.weight")) {
      conversions_[name] = {.from = {name}, .added = to_model_ ? -1.0 : 1.0};
      made_.emplace(name, info);
    } else if (form_.pairs && is_rotated(name)) {
      add_pairs(name, info);
    } else if (to_model_ && name.ends_with(shared_gate_end) && shape.size() == 1) {
      add_row(name, info);
    } else if (form_.split_latents && !to_model_ && name.ends_with(latent_end)) {
      split_latents(name, info);
    } else if (form_.split_latents && to_model_ && name.ends_with(keys_end)) {
      join_latents(name.substr(0, name.size() - keys_end.size()));
    }
  }

  /// By the name after the layer's; null: none.
  const std::vector<models::GgufTensorForm>* forms_of(const std::string& name) const {
    constexpr std::string_view layers = "model.layers.";
    if (!name.starts_with(layers)) {
      return nullptr;
    }
    const std::size_t end = name.find('.', layers.size());
    const auto found =
        end == std::string::npos ? form_.forms.end() : form_.forms.find(name.substr(end + 1));
    return found == form_.forms.end() ? nullptr : &found->second;
  }

  void add_forms(const std::string& name, const TensorInfo& info,
                 const std::vector<models::GgufTensorForm>& forms) {
    std::vector<TensorForm> steps;
    for (const models::GgufTensorForm form : forms) {
      steps.emplace_back(form, heads_);
    }
    if (to_model_) {
      std::ranges::reverse(steps);
    }
    Dims shape = info.shape;
    for (const TensorForm& step : steps) {
      shape = step.shape(shape, to_model_);
      if (shape.empty()) {
        fail_input({.thing = from_.path(),
                    .wrong = fmt::format("the parameter '{}' has another form than in files of the "
                                         "architecture {}",
                                         shown(name, 120), form_.architecture),
                    .got = to_string(info.shape)});
      }
    }
    conversions_[name] = {.from = {name},
                          .rows = {info.shape[0]},
                          .unit = shape[0],
                          .make = [steps, to_model = to_model_](const std::vector<Tensor>& whole) {
                            Tensor made = whole[0];
                            for (const TensorForm& step : steps) {
                              made = to_model ? step.to_model(made) : step.to_file(made);
                            }
                            return made;
                          }};
    made_.emplace(name, TensorInfo{info.dtype, shape});
  }

  static bool is_rotated(const std::string& name) {
    return name.find("self_attn.q_proj.") != std::string::npos ||
           name.find("self_attn.k_proj.") != std::string::npos;
  }

  /// A head's rows are [2, width / 2] in transformers, the first halves of all pairs before the
  /// second ones.
  void add_pairs(const std::string& name, const TensorInfo& info) {
    const std::int64_t width = sizes_.values.integer("head_dim");
    if (width < 2 || width % 2 != 0 || info.shape.empty() || info.shape[0] % width != 0) {
      return;
    }
    const std::int64_t outer = to_model_ ? width / 2 : 2;
    conversions_[name] = {.from = {name},
                          .rows = {width},
                          .unit = width,
                          .make =
                              [outer, width](const std::vector<Tensor>& rows) {
                                Dims divided{rows[0].size(0) / width, outer, width / outer};
                                for (int d = 1; d < rows[0].dims(); ++d) {
                                  divided.push_back(rows[0].size(d));
                                }
                                return ops::reshape(
                                    ops::transpose(ops::view(rows[0], divided), 1, 2),
                                    rows[0].shape());
                              },
                          .by_rows = true};
    made_.emplace(name, info);
  }

  /// A vector in the file is a matrix of one row.
  void add_row(const std::string& name, const TensorInfo& info) {
    const Dims shape = {1, info.shape[0]};
    conversions_[name] = {
        .from = {name}, .rows = {info.shape[0]}, .make = [shape](const std::vector<Tensor>& rows) {
          return ops::reshape(rows[0], shape);
        }};
    made_.emplace(name, TensorInfo{info.dtype, shape});
  }

  /// Of a head's rows the first ones make keys, [rank, features] in a file, the others values.
  void split_latents(const std::string& name, const TensorInfo& info) {
    const std::int64_t plain = sizes_.values.integer("plain_dim");
    const std::int64_t values = sizes_.values.integer("value_dim");
    const std::int64_t width = plain + values;
    if (info.shape.size() != 2 || info.shape[0] % width != 0) {
      return;
    }
    const std::int64_t heads = info.shape[0] / width;
    const std::int64_t rank = info.shape[1];
    const std::string module = name.substr(0, name.rfind('.'));
    const auto part = [&](std::string_view end, std::int64_t begin, std::int64_t count,
                          bool turned) {
      const std::string made = module + std::string(end);
      conversions_[made] = {
          .from = {name}, .rows = {width}, .make = [=](const std::vector<Tensor>& rows) {
            const Tensor all = ops::reshape(rows[0], {rows[0].size(0) / width, width, rank});
            const Tensor own = ops::narrow(all, 1, begin, count);
            return turned ? ops::transpose(own, 1, 2) : own;
          }};
      made_.emplace(made, TensorInfo{info.dtype,
                                     turned ? Dims{heads, rank, count} : Dims{heads, count, rank}});
    };
    part(keys_end, 0, plain, true);
    part(values_end, plain, values, false);
  }

  /// `module`: its name.
  void join_latents(const std::string& module) {
    const std::string keys = module + std::string(keys_end);
    const std::string values = module + std::string(values_end);
    const TensorInfo info = from_.info(keys);
    const Dims& other = from_.info(values).shape;
    if (info.shape.size() != 3 || other.size() != 3 || info.shape[0] != other[0] ||
        info.shape[1] != other[2]) {
      fail_input({.thing = from_.path(),
                  .wrong = fmt::format("the two parts of {} do not fit together", module),
                  .expected = "[heads, rank, features] and [heads, features, rank]",
                  .got = fmt::format("{} and {}", to_string(info.shape), to_string(other))});
    }
    const std::int64_t width = info.shape[2] + other[1];
    const std::int64_t rank = info.shape[1];
    const std::string name = module + ".weight";
    conversions_[name] = {
        .from = {keys, values},
        .rows = {1, 1},
        .unit = width,
        .make = [=](const std::vector<Tensor>& heads) {
          const std::vector<Tensor> both = {ops::transpose(heads[0], 1, 2), heads[1]};
          return ops::reshape(ops::cat(both, 1), {heads[0].size(0) * width, rank});
        }};
    made_.emplace(name, TensorInfo{info.dtype, {info.shape[0] * width, rank}});
  }

  const models::GgufForm& form_;
  const TensorSource& from_;
  const models::ModelSizes& sizes_;
  bool to_model_;
  RecurrentHeads heads_;
  std::map<std::string, ConvertedTensor> conversions_;
  std::map<std::string, TensorInfo> made_;
};

/// The last one of sources that are made of each other, and owns them.
class HeldSource final : public TensorSource {
 public:
  /// `files`: of the first one.
  HeldSource(std::vector<std::shared_ptr<const TensorSource>> chain,
             const std::vector<std::string>& files, std::string meta)
      : TensorSource(chain.back()->path()), chain_(std::move(chain)) {
    tensors_ = chain_.back()->tensors();
    files_ = files;
    meta_ = std::move(meta);
  }

  /// Errors (internal): no such tensor.
  void set_type(const std::string& name, const std::string& type) {
    tensors_.at(name).dtype = WrittenTypes::dtype(type);
    types_[name] = type;
  }
  void remove(const std::string& name) { tensors_.erase(name); }
  void add(const std::string& name, const Tensor& values) {
    tensors_[name] = {values.dtype(), values.shape()};
    values_[name] = values;
    types_[name] = "F32";
  }

  std::uint64_t bytes_read() const override { return chain_.back()->bytes_read(); }
  std::string stored_type(const std::string& name) const override {
    info(name);  // throws for a name that is not there
    const auto found = types_.find(name);
    return found != types_.end() ? found->second : chain_.back()->stored_type(name);
  }
  Tensor stored_rows(const std::string& name, std::int64_t row, std::int64_t rows) const override {
    info(name);
    return types_.contains(name) ? Tensor() : chain_.back()->stored_rows(name, row, rows);
  }

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override {
    const auto found = values_.find(name);
    if (found == values_.end()) {
      chain_.back()->read(name, box, into);
      return;
    }
    Tensor part = found->second;
    for (int d = 0; d < box.shape.size(); ++d) {
      part = ops::narrow(part, d, box.offset[d], box.shape[d]);
    }
    ops::copy_(into, part);
  }

  std::vector<std::shared_ptr<const TensorSource>> chain_;
  std::map<std::string, std::string> types_;
  std::map<std::string, Tensor> values_;
};

/// What a file calls the parameters of a model.
HubNames file_names(const models::ModelFamily& family, const models::ModelSizes& sizes) {
  return {.tensors = family.gguf_tensors(sizes), .without_prefix = {}};
}

/// Whether a tensor is of one of so many layers after the model's.
bool is_of_further_layer(const std::string& name, const models::ModelSizes& sizes,
                         std::int64_t count) {
  const std::int64_t layers = count > 0 ? sizes.values.integer("layers") : 0;
  bool is = false;
  for (std::int64_t layer = layers; layer < layers + std::min<std::int64_t>(count, 16); ++layer) {
    is = is || name.starts_with(fmt::format("blk.{}.", layer));
  }
  return is;
}

/// The end of a name in GgufForm::numbers of a vector with one entry; others are scalars.
constexpr std::string_view only_entry = "[0]";

/// The parameter of a layer by a name in GgufForm::numbers.
std::string layer_parameter(std::int64_t layer, std::string_view name) {
  name.remove_suffix(name.ends_with(only_entry) ? only_entry.size() : 0);
  return fmt::format("model.layers.{}.{}", layer, name);
}

/// Parameters of one value that files have as fields with a number for each layer, as tensors.
/// Error (input): such a list is missing, or has another length.
std::map<std::string, Tensor> numbers_of_fields(const TensorSource& file,
                                                const models::GgufForm& form,
                                                const models::ModelSizes& sizes) {
  std::map<std::string, Tensor> tensors;
  if (form.numbers.empty()) {
    return tensors;
  }
  const Json fields = parse_json(file.meta()).value("gguf", Json::object());
  const std::int64_t layers = sizes.values.integer("layers");
  for (const auto& [parameter, name] : form.numbers) {
    const Json found = fields.value(name, Json::object());
    const Json list = found.value("values", Json::array());
    const Json one = found.value("value", Json());
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const Json number = layer < std::ssize(list) ? list[static_cast<std::size_t>(layer)] : one;
      if (!number.is_number()) {
        fail_input({.thing = fmt::format("{}: field '{}'", file.path(), name),
                    .wrong = fmt::format("there is no number for layer {} of {}", layer, layers)});
      }
      const float value = number.get<float>();
      tensors[layer_parameter(layer, parameter)] = from_values(
          std::span<const float>(&value, 1), parameter.ends_with(only_entry) ? Dims{1} : Dims{});
    }
  }
  return tensors;
}

/// Those parameters of a model as such fields.
Json fields_of_numbers(const TensorSource& parameters, const models::GgufForm& form,
                       std::int64_t layers) {
  Json fields = Json::object();
  for (const auto& [parameter, field] : form.numbers) {
    Json values = Json::array();
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      values.push_back(to_doubles(parameters.read(layer_parameter(layer, parameter))).at(0));
    }
    fields[field] = {{"type", "f32"}, {"values", std::move(values)}};
  }
  return fields;
}

/// Whether a parameter of a layer is one of these.
bool is_number(const models::GgufForm& form, const std::string& name) {
  return std::ranges::any_of(form.numbers, [&](const auto& one) {
    const std::string any = layer_parameter(0, one.first);
    return name.starts_with("model.layers.") && name.ends_with(any.substr(any.find(".0.") + 2));
  });
}

/// Error (input): a tensor that is not one of these, or a parameter of the model.
void check_names(const TensorSource& source, const std::set<std::string>& known,
                 const std::string& wrong) {
  for (const auto& [name, info] : source.tensors()) {
    if (!known.contains(name)) {
      fail_input(
          {.thing = source.path(), .wrong = fmt::format("tensor '{}' {}", shown(name, 80), wrong)});
    }
  }
}

}  // namespace

std::string gguf_file(const std::string& path) {
  std::error_code ignored;
  if (is_gguf(path)) {
    return path;
  }
  const std::string inside = (fs::path(path) / "model.gguf").string();
  return !fs::exists(fs::path(path) / "config.json", ignored) && is_gguf(inside) ? inside : "";
}

ModelShape gguf_shape(const ModelShape& shape) {
  const models::ModelFamily& family = family_of(shape);
  ModelShape same = shape;
  same.values = family.gguf_sizes(sizes_of(shape)).values.all();
  if (const std::string other = family.gguf().same_as; !other.empty()) {
    same.family = other;
  }
  return same;
}

std::string gguf_config(const TensorSource& file) { return read_gguf_model(file).config; }

OpenedTensors open_hub_tensors(const std::string& path) {
  const std::string named = gguf_file(path);
  OpenedTensors opened = open_tensors(named.empty() ? path : named);
  if (named.empty()) {
    if (exported::is_program(path)) {
      opened.source = exported::program_weights(std::move(opened.source));
    }
    opened.source = decoded_folder(std::move(opened.source));
    return opened;
  }
  const std::shared_ptr<const TensorSource> file = std::move(opened.source);
  const GgufModel model = read_gguf_model(*file);
  const ModelShape shape = parse_hub_config(model.config, named);
  const models::ModelFamily& family = family_of(shape);
  const models::ModelSizes sizes = sizes_of(shape);
  const models::GgufForm form = family.gguf();
  HubNames names = file_names(family, sizes);
  std::set<std::string> known;
  for (const models::HubTensor& entry : names.tensors) {
    known.insert(entry.tensor);
  }
  for (const auto& [name, info] : file->tensors()) {
    // Those of the rotary embedding are a part of the config.
    if (is_rotary_tensor(name) || is_of_further_layer(name, sizes, model.further_layers)) {
      names.ignored.push_back(name);
      known.insert(name);
    }
  }
  check_names(*file, known, fmt::format("is not one of the architecture {}", form.architecture));
  const auto stored = std::make_shared<HubWeights>(*file, names);
  const std::shared_ptr<const TensorSource> converted =
      FormsOfFile(form, *stored, sizes, true).source();
  const auto folder = std::make_shared<HubExport>(*converted, "", family, sizes);
  auto held = std::make_unique<HeldSource>(
      std::vector<std::shared_ptr<const TensorSource>>{file, stored, converted, folder},
      file->files(), "{}");
  for (const auto& [name, value] : numbers_of_fields(*file, form, sizes)) {
    held->add(name, value);
  }
  opened.source = std::move(held);
  return opened;
}

std::unique_ptr<TensorSource> gguf_tensors(const TensorSource& folder, const GgufContent& content) {
  const ModelShape shape = parse_hub_config(content.config, folder.path());
  const models::ModelFamily& family = family_of(shape);
  const models::ModelSizes sizes = sizes_of(shape);
  const models::GgufForm form = family.gguf();
  if (form.architecture.empty()) {
    fail_input(
        {.thing = folder.path(),
         .wrong = fmt::format("models of the family {} cannot be written as GGUF", shape.family),
         .advice = "export it for transformers"});
  }
  const auto parameters = std::make_shared<HubWeights>(folder, family, sizes);
  const std::shared_ptr<const TensorSource> converted =
      FormsOfFile(form, *parameters, sizes, false).source();
  const HubNames names = file_names(family, sizes);
  std::set<std::string> known;
  for (const models::HubTensor& entry : names.tensors) {
    known.insert(entry.parameter);
  }
  for (const auto& [name, info] : converted->tensors()) {
    if (is_number(form, name)) {
      known.insert(name);
    }
  }
  check_names(*converted, known,
              fmt::format("has no place in a GGUF file of the architecture {}", form.architecture));
  const auto written = std::make_shared<HubExport>(*converted, "", names);
  const GgufFields fields = gguf_fields(form, content);
  Json all_fields = parse_json(fields.fields);
  const auto integer = [&](const char* key) {
    const auto found = shape.values.find(key);
    const auto* const value =
        found == shape.values.end() ? nullptr : std::get_if<std::int64_t>(&found->second);
    return value == nullptr ? std::int64_t{0} : *value;
  };
  all_fields.update(fields_of_numbers(*parameters, form, integer("layers")));
  auto chained = std::make_unique<HeldSource>(
      std::vector<std::shared_ptr<const TensorSource>>{parameters, converted, written},
      folder.files(), json_text(Json{{"gguf", std::move(all_fields)}}));
  std::set<std::int64_t> value_layers;
  for (const auto& [name, info] : written->tensors()) {
    if (WrittenTypes::makes_values(name)) {
      value_layers.insert(WrittenTypes::layer_of(name));
    }
  }
  const WrittenTypes types(content.type,
                           {.architecture = form.architecture,
                            .layers = integer("layers"),
                            .experts = integer("experts"),
                            .shares_keys = integer("heads") != integer("kv_heads"),
                            .has_head = written->contains("output.weight"),
                            .value_layers = {value_layers.begin(), value_layers.end()}});
  for (const auto& [name, info] : written->tensors()) {
    if (is_number(form, name)) {
      chained->remove(name);
    } else {
      chained->set_type(name, types.of(name, info.shape));
    }
  }
  for (const auto& [name, factors] : fields.factors) {
    chained->add(name, from_values(std::span<const float>(factors), {std::ssize(factors)}));
  }
  return chained;
}

}  // namespace tessera::hub
