module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.plugin_suite;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.models;
import tessera.parallel;
import tessera.checkpoint;
import tessera.hub;
import :split_batch;

// What every family of models promises: the sizes of the built model, the gradient of differences,
// equal results of generation, layouts and packed rows, and folders that are read back.
namespace tessera::plugin_suite {
namespace {

constexpr int ranks = 2;
constexpr std::int64_t vocab = 12;
constexpr std::int64_t rows = 4;
constexpr std::int64_t length = 6;
constexpr double tolerance = 1e-9;
constexpr double difference_tolerance = 1e-6;  // of central differences in f64

using Family = models::ModelFamily;

/// Small sizes where the family has the usual keys, else its defaults.
models::ModelSizes sizes_for(const Family& family) {
  const std::vector<models::ModelKey> keys = family.keys();
  const models::ModelSizes usual{
      .vocab = vocab, .max_positions = 2 * length, .values = models::ModelValues(keys)};
  models::ModelSizes small = usual;
  const std::map<std::string, std::int64_t> smaller = {{"dim", 16}, {"layers", 2}, {"heads", 4}};
  for (const models::ModelKey& key : keys) {
    if (const auto found = smaller.find(key.name); found != smaller.end()) {
      small.values.set(key.name, found->second);
    }
  }
  for (models::ModelSizes sizes : {small, usual}) {
    if (family.complete(sizes).empty()) {
      return sizes;
    }
  }
  fail("complete() refuses the initial values of its own keys");
}

/// A model in f64 on the meta device.
std::shared_ptr<nn::LanguageModel> build(const Family& family) {
  auto model = family.build(sizes_for(family), 0);
  for (const nn::ParameterPointer& parameter : nn::all_parameters(*model)) {
    parameter->value = empty(parameter->value.shape(), DType::f64, meta);
    parameter->value.set_requires_grad();
  }
  return model;
}

std::shared_ptr<nn::LanguageModel> build_with_values(const Family& family) {
  auto model = build(family);
  nn::materialize(*model);
  set_seed(3);
  nn::initialize(*model);
  return model;
}

Tensor tokens(std::int64_t shift) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < rows * length; ++i) {
    values.push_back((i * i + 5 * i + 7 * shift) % vocab);
  }
  return from_values(std::span<const std::int64_t>(values), {rows, length});
}

std::string sizes_describe_the_model(const Family& family) {
  const models::ModelSizes sizes = sizes_for(family);
  const auto model = family.build(sizes, 0);
  double elements = 0;
  std::map<std::string, Dims> shapes;
  for (const auto& [name, parameter] : nn::named_parameters(*model)) {
    if (!parameter->value.is_meta()) {
      return fmt::format("build() gave parameter '{}' memory", name);
    }
    shapes.emplace(name, parameter->value.shape());
  }
  for (const nn::ParameterPointer& parameter : nn::all_parameters(*model)) {
    elements += static_cast<double>(parameter->value.numel());
  }
  if (elements != family.parameters(sizes)) {
    return fmt::format("parameters() is {}, but the model has {}", family.parameters(sizes),
                       elements);
  }
  const models::ModelFamily::Layers layers = family.layers(sizes);
  std::set<std::string> numbers;
  for (const auto& [name, shape] : shapes) {
    if (name.starts_with(layers.prefix)) {
      numbers.insert(name.substr(layers.prefix.size(),
                                 name.find('.', layers.prefix.size()) - layers.prefix.size()));
    }
  }
  if (std::ssize(numbers) != layers.count) {
    return fmt::format("layers() counts {}, but {} layers begin with '{}'", layers.count,
                       numbers.size(), layers.prefix);
  }
  for (const models::SizedTensor& sized : family.sized_tensors(sizes)) {
    const auto found = shapes.find(sized.parameter);
    if (found == shapes.end() || !(found->second == sized.shape)) {
      return fmt::format(
          "sized_tensors() has {} with shape {}, the model {}", sized.parameter,
          to_string(sized.shape),
          found == shapes.end() ? "has no such parameter" : to_string(found->second));
    }
  }
  return "";
}

double loss_of(nn::LanguageModel& model) {
  const NoGrad no_grad;
  return to_doubles(model.loss_sum(tokens(0), tokens(1)))[0];
}

/// Moves all parameters along a fixed direction, and returns that of one parameter.
Tensor direction_of(const nn::Parameter& parameter, std::size_t number) {
  const Tensor direction = empty(parameter.value.shape(), DType::f64);
  for (std::int64_t i = 0; i < direction.numel(); ++i) {
    direction.data<double>()[i] =
        std::sin(1.3 * static_cast<double>(i) + 0.7 * static_cast<double>(number));
  }
  return direction;
}

std::string gradient_is_that_of_differences(const Family& family) {
  const auto model = build_with_values(family);
  const double loss = loss_of(*model);
  if (!std::isfinite(loss)) {
    return fmt::format("the loss of initial parameters is {}", loss);
  }
  backward(model->loss_sum(tokens(0), tokens(1)));
  const auto parameters = nn::all_parameters(*model);
  for (std::size_t number = 0; number < parameters.size(); ++number) {
    nn::Parameter& parameter = *parameters[number];
    if (!parameter.value.grad()) {
      return fmt::format("parameter '{}' gets no gradient", parameter.name);
    }
    const NoGrad no_grad;
    const Tensor direction = direction_of(parameter, number);
    const double slope = to_doubles(ops::sum(ops::mul(direction, parameter.value.grad())))[0];
    constexpr double step = 1e-5;
    ops::add_(parameter.value, direction, step);
    const double above = loss_of(*model);
    ops::add_(parameter.value, direction, -2 * step);
    const double below = loss_of(*model);
    ops::add_(parameter.value, direction, step);
    const double difference = (above - below) / (2 * step);
    if (!(std::abs(difference - slope) <= difference_tolerance * (1 + std::abs(slope)))) {
      return fmt::format("along parameter '{}' the loss changes by {}, the gradient says {}",
                         parameter.name, difference, slope);
    }
  }
  return "";
}

/// The style that splits every linear layer that is not tied by columns and gathers its output.
class SplitColumns final : public parallel::ParallelStyle {
 public:
  parallel::StyleFacts facts() const override {
    return {.places_parameters = true, .converts_values = true, .needs_split = "columns"};
  }
  void apply(const parallel::StyleTarget& target) override {
    parallel::redistribute_around(target, std::nullopt, target.split("columns"), Replicate());
  }
};

std::vector<std::string> untied_linears(nn::LanguageModel& model) {
  std::map<const nn::Parameter*, int> uses;
  for (const nn::Module* module : nn::all_modules(model)) {
    for (const auto& [name, parameter] : module->parameters()) {
      ++uses[parameter.get()];
    }
  }
  std::vector<std::string> names;
  for (const nn::Module* module : nn::all_modules(model)) {
    if (module->kind() == "Linear" && uses[module->parameter("weight").get()] == 1) {
      names.push_back(module->name());
    }
  }
  return names;
}

template <class Style>
parallel::StyleEntry entry_of(const char* name, std::vector<std::string> on) {
  parallel::StyleEntry entry{.style = name, .axis = "ranks", .on = std::move(on)};
  entry.make = [](parallel::Options&) { return std::make_unique<Style>(); };
  return entry;
}

/// The loss and the whole gradients, in the plan's layout; without a plan on this rank alone.
std::vector<double> computed(nn::LanguageModel& model, const parallel::ParallelPlan* plan) {
  const auto placed = [&](const Tensor& all) {
    return plan == nullptr ? all : distribute(all, plan->batch_layout());
  };
  const Tensor loss = model.loss_sum(placed(tokens(0)), placed(tokens(1)));
  backward(loss);
  std::vector<double> seen;
  const auto look = [&](const Tensor& tensor) {
    const std::vector<double> values =
        to_doubles(tensor.is_distributed() ? full_tensor(detached(tensor)) : detached(tensor));
    seen.insert(seen.end(), values.begin(), values.end());
  };
  look(loss);
  for (const nn::ParameterPointer& parameter : nn::all_parameters(model)) {
    if (parameter->value.grad()) {
      look(parameter->value.grad());
    }
  }
  return seen;
}

std::string layouts_agree(const Family& family) {
  const auto whole = build_with_values(family);
  const std::vector<double> expected = computed(*whole, nullptr);
  const std::vector<std::string> linears = untied_linears(*whole);
  for (const bool batch : {true, false}) {
    if (!batch && linears.empty()) {
      continue;
    }
    trying(batch ? "half of the batch on each rank" : "linear layers split by columns");
    std::vector<double> got;
    collective::run_threads(ranks, [&](collective::World& world) {
      const auto model = build(family);
      parallel::ParallelPlan plan(*model, DeviceMesh::make({"ranks"}, {ranks}),
                                  {batch ? entry_of<SplitBatch>("SplitBatch", {"."})
                                         : entry_of<SplitColumns>("SplitColumns", linears)},
                                  plugin::host());
      plan.materialize();
      set_seed(3);
      nn::initialize(*model);
      const std::vector<double> mine = computed(*model, &plan);
      if (world.rank() == 0) {
        got = mine;
      }
    });
    if (const double difference = largest_difference(got, expected); difference > tolerance) {
      return fmt::format("with {} two ranks differ from one in loss or gradients (by {:.1e})",
                         batch ? "half of the batch each" : "linear layers split by columns",
                         difference);
    }
  }
  return "";
}

std::string cache_changes_nothing(const Family& family) {
  const auto model = build_with_values(family);
  const NoGrad no_grad;
  model->train(false);
  const std::vector<double> expected = to_doubles((*model)(tokens(0)));
  nn::KeyValueCache cache;
  try {
    model->set_cache(&cache);
  } catch (const Error&) {
    return "";  // it takes none: texts are generated without one
  }
  std::vector<Tensor> parts;
  for (const auto& [begin, count] : {std::pair{0, 3}, {3, 1}, {4, 2}}) {
    parts.push_back((*model)(ops::contiguous(ops::narrow(tokens(0), 1, begin, count))));
  }
  const double difference = largest_difference(to_doubles(ops::cat(parts, 1)), expected);
  return difference <= tolerance
             ? ""
             : fmt::format(
                   "logits with a cache differ from those of the whole sequence (by {:.1e})",
                   difference);
}

/// The numbers of the first tokens, and positions, of documents that begin at 0 and `second`.
nn::RowDocuments two_documents(std::int64_t second) {
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> positions;
  for (std::int64_t i = 0; i < rows * length; ++i) {
    first.push_back(i % length < second ? 0 : second);
    positions.push_back(i % length - first.back());
  }
  return {.first = from_values(std::span<const std::int64_t>(first), {rows, length}),
          .positions = from_values(std::span<const std::int64_t>(positions), {rows, length})};
}

std::string documents_are_alone(const Family& family) {
  const auto model = build_with_values(family);
  if (!model->takes_documents()) {
    return "";
  }
  const NoGrad no_grad;
  model->train(false);
  constexpr std::int64_t second = 2;
  const nn::RowDocuments documents = two_documents(second);
  const std::vector<double> packed =
      to_doubles((*model)({tokens(0), documents.first, documents.positions})[0]);
  std::vector<Tensor> alone;
  for (const auto& [begin, count] :
       {std::pair{std::int64_t{0}, second}, {second, length - second}}) {
    alone.push_back((*model)(ops::contiguous(ops::narrow(tokens(0), 1, begin, count))));
  }
  const double difference = largest_difference(packed, to_doubles(ops::cat(alone, 1)));
  return difference <= tolerance
             ? ""
             : fmt::format(
                   "logits of documents in one row differ from those of each alone (by "
                   "{:.1e})",
                   difference);
}

std::string folder_comes_back(const Family& family, const std::string& name) {
  const models::ModelSizes sizes = sizes_for(family);
  std::string json;
  for (const models::HubKey& key : family.write(sizes)) {
    json += fmt::format("{}\"{}\": {}", json.empty() ? "{" : ", ", key.key, key.json);
  }
  models::HubConfigFile config(json + fmt::format(R"(, "model_type": "{}"}})", name),
                               "config.json");
  const models::ModelSizes again = family.read(config);
  config.finish();
  if (again.vocab != sizes.vocab || !(again.values == sizes.values)) {
    return "read() of what write() wrote gives other sizes";
  }
  const NoGrad no_grad;
  const auto model = build_with_values(family);
  const TensorsInMemory memory(nn::values_by_name(nn::all_parameters(*model)));
  const hub::HubExport folder(memory, "", family, sizes);
  const hub::HubWeights back(folder, family, sizes);
  if (back.tensors() != memory.tensors()) {
    return "tensors() does not lead back to the names and shapes of the parameters";
  }
  for (const auto& [parameter, info] : memory.tensors()) {
    if (to_doubles(back.read(parameter)) != to_doubles(memory.read(parameter))) {
      return fmt::format("parameter '{}' has other values after a folder", parameter);
    }
  }
  return "";
}

}  // namespace

std::vector<SuiteCheck> model_suite(const std::string& name) {
  const auto with = [name](std::string (*check)(const Family&)) {
    return [name, check] { return check(models::model_family(name)); };
  };
  return {{"its sizes describe the model that it builds", with(sizes_describe_the_model)},
          {"the loss is finite and its gradient is that of differences",
           with(gradient_is_that_of_differences)},
          {"a cache changes no logit", with(cache_changes_nothing)},
          {"documents of a row are computed alone, where it takes them", with(documents_are_alone)},
          {"two ranks compute what one does", with(layouts_agree)},
          {"a folder in Hugging Face's format comes back",
           [name] { return folder_comes_back(models::model_family(name), name); }}};
}

}  // namespace tessera::plugin_suite
