module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.options;
import tessera.mesh;
import tessera.tensor;
import tessera.nn;
import tessera.models;
import tessera.optim;
import tessera.parallel;

namespace tessera::runs {

namespace {

/// Error (input): the config asks for the balance of experts, and the model has none.
void balance_experts(nn::Module& model, const RunSpec& config) {
  const ExpertsConfig& wanted = config.experts;
  const int mixtures = nn::balance_experts(model, {.loss = wanted.balance_loss,
                                                   .z_loss = wanted.z_loss,
                                                   .bias_rate = wanted.bias_rate,
                                                   .capacity = wanted.capacity});
  for (const auto& [key, value] : {std::pair{"experts.balance_loss", wanted.balance_loss},
                                   {"experts.z_loss", wanted.z_loss},
                                   {"experts.bias_rate", wanted.bias_rate},
                                   {"experts.capacity", wanted.capacity}}) {
    if (value > 0 && mixtures == 0) {
      fail_input({.where = config.place(key),
                  .wrong = "the model has no mixture of experts",
                  .advice = "remove it, or choose a family with experts, such as mixtral"});
    }
  }
}

/// Error (input): the config asks for what only a LanguageModel does.
void refuse_of_others(const RunSpec& config, const std::string& key, bool asked) {
  if (asked) {
    fail_input({.where = config.place(key),
                .wrong = "the model is not an nn::LanguageModel, which alone can do this",
                .advice = "remove it"});
  }
}

}  // namespace

std::shared_ptr<nn::Module> training_model(const Task& task, const RunSpec& config,
                                           const std::function<void(nn::Module& model)>& change) {
  std::shared_ptr<nn::Module> model = task.model(config);
  balance_experts(*model, config);
  if (change) {
    change(*model);
  }
  if (nn::LanguageModel* const language = nn::as_language_model(*model)) {
    language->set_further_weight(config.train.further_weight);
    try {
      language->set_head_rows(config.train.head_rows);
    } catch (const Error& error) {
      fail_at(config.place("train.head_rows"), error);
    }
  } else {
    refuse_of_others(config, "train.head_rows", config.train.head_rows != 0);
  }
  if (!task.set_activation_checkpointing(*model, config.train.activation_checkpointing)) {
    refuse_of_others(config, "train.activation_checkpointing",
                     config.train.activation_checkpointing);
  }
  try {
    nn::freeze(*model, config.train.freeze);
  } catch (const Error& error) {
    fail_at(config.place("train.freeze"), error);
  }
  parallel::Precision precision;
  if (config.train.parameters != DType::f32) {
    precision.stored = config.train.parameters;
  }
  if (config.train.precision != DType::f32) {
    precision.parameters = config.train.precision;
  }
  parallel::set_precision(*model, precision);
  return model;
}

DeviceMesh make_mesh(const RunSpec& config) {
  if (config.mesh.axes.empty()) {
    return DeviceMesh::make({"rank"}, {1});
  }
  return DeviceMesh::make(config.mesh.axes, Dims(config.mesh.shape));
}

Device device_of(const RunSpec& config, int number, int ranks) {
  const std::string& name = config.train.device;
  try {
    Device device = find_device(name);
    if (name.find(':') == std::string::npos) {
      device = device_for_rank(device.type, number, ranks);
    }
    if (device == meta) {
      fail_input("device 'meta': it has no memory and runs nothing; use a device that does");
    }
    return device;
  } catch (const Error& error) {
    fail_at(config.place("train.device"), error);
  }
}

std::vector<parallel::StyleEntry> style_entries(const RunSpec& config) {
  std::vector<parallel::StyleEntry> entries;
  entries.reserve(config.parallel.size());
  for (const StyleConfig& style : config.parallel) {
    entries.push_back({style.style, style.axis.all, style.on, style.options.text, style.where});
  }
  return entries;
}

void fully_shard(RunSpec& spec, const parallel::FullyShardOptions& options) {
  for (const parallel::StyleEntry& entry : parallel::fully_shard_entries(spec.mesh.axes, options)) {
    if (entry.make) {
      fail_input({.thing = "fully_shard",
                  .wrong = fmt::format("the style '{}' is a class of the program, and ranks of a "
                                       "run load styles by their names",
                                       entry.style),
                  .advice = "build it as a plugin"});
    }
    const std::span<const std::string> axes = entry.axis.names();
    spec.parallel.push_back({.style = entry.style,
                             .axis = {{axes.begin(), axes.end()}},
                             .on = entry.on,
                             .options = {entry.options}});
  }
}

namespace {

/// Error (input): the optimizer of this name does not update what the run stores.
void check_stored(const RunSpec& config, std::string_view name, const optim::UpdateRule& rule,
                  const std::string& place) {
  const DType stored = config.train.parameters;
  if (!rule.takes_type(stored)) {
    fail_input({.where = place,
                .wrong = fmt::format("{} does not update parameters that are stored in {}", name,
                                     name_of(config.train.parameters)),
                .expected = "adamw, without state_bits",
                .advice = "set train.parameters=f32, or use adamw"});
  }
}

}  // namespace

namespace {

/// The patterns of a group without those that match parameters of other stages only.
std::vector<std::string> own_patterns(std::vector<std::string> patterns,
                                      std::span<const nn::ParameterPointer> own,
                                      std::span<const nn::ParameterPointer> whole) {
  std::erase_if(patterns, [&](const std::string& pattern) {
    const auto match = [&](const nn::ParameterPointer& p) { return nn::matches(*p, pattern); };
    return std::ranges::none_of(own, match) && std::ranges::any_of(whole, match);
  });
  return patterns;
}

}  // namespace

std::unique_ptr<optim::Optimizer> make_optimizer(const RunSpec& config,
                                                 std::vector<nn::ParameterPointer> parameters,
                                                 std::span<const nn::ParameterPointer> whole) {
  const OptimizerConfig& o = config.optimizer;
  optim::OptimizerOptions options{.weight_decay = o.weight_decay, .decay = o.decay};
  const std::string place = config.place("optimizer.groups");
  PluginOptions section(fmt::format(R"({{"groups": {}}})", o.groups.text),
                        place.substr(0, place.rfind('.')));
  for (PluginOptions& table : section.tables("groups")) {
    optim::ParameterGroup group;
    group.on = own_patterns(table.texts("on"), parameters, whole);
    if (const auto lr = table.optional_number("lr", "a number more than 0",
                                              [](double value) { return value > 0; })) {
      group.lr_scale = *lr / o.lr;
    }
    group.weight_decay = table.optional_number("weight_decay", "a number of at least 0",
                                               [](double decay) { return decay >= 0; });
    if (const std::string name = table.text("name", ""); !name.empty()) {
      PluginOptions own = table.table("options");
      optim::check_rule_name(name, place);
      group.rule = optim::load_rule(name, own);
      check_stored(config, name, *group.rule, place);
    }
    options.groups.push_back(std::move(group));
  }
  section.finish();
  optim::check_rule_name(o.name, config.place("optimizer.name"));
  auto rule = optim::load_rule(o.name, o.options.text, config.place("optimizer.options"));
  check_stored(config, o.name, *rule, config.place("optimizer.name"));
  try {
    return std::make_unique<optim::Optimizer>(std::move(parameters), std::move(rule), options);
  } catch (const Error& error) {
    fail_at(place, error);
  }
}

std::unique_ptr<optim::Optimizer> task_optimizer(const Task& task, const RunSpec& config,
                                                 nn::Module& model) {
  auto own = task.optimizer(nn::all_parameters(model));
  return own ? std::move(own)
             : make_optimizer(config, nn::all_parameters(model), nn::whole_parameters(model));
}

optim::Schedule make_schedule(const RunSpec& config) {
  const OptimizerConfig& o = config.optimizer;
  return {.kind = o.schedule,
          .lr = o.lr,
          .unit = o.schedule_unit,
          .warmup = o.warmup,
          .end = config.schedule_end(),
          .min_ratio = o.min_lr_ratio,
          .cooldown = o.cooldown};
}

optim::Clipping make_clipping(const TrainConfig& config) {
  return {.max_norm = config.clip_grad_norm,
          .norm = norm_order(config.clip_norm_type).value(),
          .max_value = config.clip_grad_value,
          .nonfinite = config.nonfinite_gradients};
}

int threads_of_rank(const RunSpec& config) {
  const std::int64_t threads = config.train.threads;
  return static_cast<int>(
      threads > 0 ? threads : std::max<std::int64_t>(1, available_cores() / config.ranks()));
}

}  // namespace tessera::runs
