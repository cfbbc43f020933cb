module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.collective;
import tessera.passes;
import tessera.models;
import tessera.optim;
import tessera.train;
import tessera.data;
import :key_problems;

namespace tessera::runs {
namespace {

class Checks : private KeyProblems {
 public:
  Checks(const RunSpec& config, const std::set<std::string>& unread, Problems& problems)
      : KeyProblems(config, unread, problems), c_(config) {}

  void all(const std::optional<OwnTask>& own) {
    own_ = own.has_value();
    if (own) {
      own_task(*own);
    } else {
      model();
      data();
    }
    training();
    mesh();
    trace();
    for (std::size_t i = 0; i < c_.parallel.size(); ++i) {
      style(i);
    }
  }

 private:
  void own_task(const OwnTask& own) {
    for (const auto& [key, place] : c_.given) {
      if (is_of_own_task(key, own.optimizer) && key != "data.seq_len") {
        add({key}, key.starts_with("optimizer.")
                       ? "the program's own optimizer determines this; remove one of the two"
                       : "only a language model on texts has it, and the program has a task of its "
                         "own; remove it");
      }
    }
  }

  void model() {
    const ModelConfig& m = c_.model;
    if (!m.from.empty()) {
      for (const auto& [key, place] : c_.given) {
        if (key.starts_with("model.") && key != "model.from" && key != "model.family" &&
            key != "model.dropout" && key != "model.adapter" && key != "model.new_tokens" &&
            key != "model.base" && key != "model.further_layers") {
          add({key}, "the folder of model.from determines this; remove one of the two");
        }
      }
      return;
    }
    if (!m.base.empty()) {
      add({"model.base"}, "only a checkpoint has a base; set model.from");
    }
    if (m.adds_tokens()) {
      add({"model.new_tokens"}, "only the model of a folder gets new tokens; set model.from");
    }
    const std::vector<models::ModelKey> keys = models::model_family(c_.model.family).keys();
    if (!known({"model.vocab", "data.seq_len"}) || std::ranges::any_of(keys, [&](const auto& key) {
          return unread_.contains("model." + key.name);
        })) {
      return;
    }
    models::ModelSizes sizes{.vocab = m.vocab, .max_positions = c_.data.seq_len};
    for (const auto& [name, value] : m.sizes) {
      sizes.values.set(name, value);
    }
    const auto problems = models::model_family(c_.model.family).complete(sizes);
    for (const models::ModelProblem& problem : problems) {
      std::vector<std::string> paths;
      for (const std::string& key : problem.keys) {
        paths.push_back("model." + key);
      }
      add(paths, problem.text);
    }
    if (problems.empty()) {
      total(keys, sizes);
    }
  }

  /// Each size may be in its range while their product is a number of bytes that overflows.
  void total(const std::vector<models::ModelKey>& keys, const models::ModelSizes& sizes) {
    const double all = models::model_family(c_.model.family).parameters(sizes);
    constexpr double most = 1e15;
    if (all > most) {
      std::vector<std::string> paths;
      for (const models::ModelKey& key : keys) {
        paths.push_back("model." + key.name);
      }
      paths.emplace_back("model.vocab");
      add(paths, fmt::format("the sizes of the model make up to {:.1e} parameters (expected at "
                             "most {:.0e})",
                             all, most));
    }
  }

  void data() {
    if (!known({"data.text", "data.jsonl", "data.tokens", "data.sources"})) {
      return;
    }
    std::vector<std::string> named;
    for (const auto& [key, given] : {std::pair("data.text", !c_.data.text.empty()),
                                     std::pair("data.jsonl", !c_.data.jsonl.empty()),
                                     std::pair("data.tokens", !c_.data.tokens.empty()),
                                     std::pair("data.sources", c_.data.sources.text != "[]")}) {
      if (given) {
        named.emplace_back(key);
      }
    }
    if (named.size() > 1) {
      add({named.back()}, named.front() + " is set too; remove one of the two");
      return;
    }
    if (named.empty()) {
      add({"data.text", "data.tokens"},
          "there is nothing to train on; set text = [\"FILE or FOLDER\"], jsonl = "
          "[\"FILE.jsonl\"] or tokens = [\"FILE.npy\"]");
      return;
    }
    std::vector<SourceConfig> sources;
    try {
      sources = data_sources(c_);
    } catch (const Error& error) {
      add({"data.sources", "data.columns"}, error.fields().wrong);
      return;
    }
    const bool from_text = std::ranges::any_of(sources, [](const SourceConfig& source) {
      return source.kind != SourceConfig::Kind::tokens;
    });
    if (!c_.data.validation_files.empty() && c_.given.contains("data.validation") &&
        c_.data.validation > 0) {
      add({"data.validation"}, "data.validation_files is set too; remove one of the two");
    }
    const std::vector<std::string>& kinds = data::dropped_content_kinds();
    for (const std::string& kind : c_.data.allow_dropped) {
      if (std::ranges::find(kinds, kind) == kinds.end()) {
        add({"data.allow_dropped"},
            fmt::format("'{}' is not a kind of contents (only {}){}", shown(kind),
                        join_words(kinds), did_you_mean(kind, kinds)));
      }
    }
    for (const std::string& name : c_.data.template_members) {
      if (name == "messages" || name == "tools" || name == "add_generation_prompt") {
        add({"data.template_members"},
            fmt::format("'{}' is a variable of every template already", name));
      }
    }
    if (from_text && c_.given.contains("model.vocab") && c_.model.vocab != 0) {
      add({"model.vocab"}, "the tokenizer determines this; only data.tokens needs it");
    }
    if (!from_text && c_.given.contains("data.tokenizer")) {
      add({"data.tokenizer"}, "data.tokens are token ids already; remove the tokenizer");
    }
    if (!from_text && c_.model.vocab == 0 && c_.model.from.empty() && known({"model.vocab"})) {
      add({"data.tokens"}, "token ids need model.vocab, the number of different ids");
    }
  }

  void healing() {
    const TrainConfig& t = c_.train;
    if (known({"train.heal", "train.heal_every", "train.checksums"}) && t.heal && t.checksums > 0 &&
        t.heal_every % t.checksums != 0) {
      add({"train.checksums", "train.heal_every"},
          fmt::format("states are kept that were not compared; let heal_every ({}) be a multiple "
                      "of checksums ({})",
                      t.heal_every, t.checksums));
    }
  }

  void spikes() {
    if (!known({"train.on_spike"})) {
      return;
    }
    std::optional<SpikePolicy> policy;
    try {
      policy = spike_policy(c_);
    } catch (const Error& error) {
      add({"train.on_spike"}, error.fields().wrong);
      return;
    }
    if (!policy || policy->action != SpikeAction::rollback) {
      return;
    }
    if (known({"checkpoint.folder"}) && c_.checkpoint.folder.empty()) {
      add({"train.on_spike"}, "rollback needs checkpoints to go back to; set checkpoint.folder");
    }
    if (known({"train.heal"}) && c_.train.heal) {
      add({"train.on_spike", "train.heal"},
          "ranks that heal continue from memory, and rollback from a checkpoint; remove one of "
          "the two, or set action = \"skip\"");
    }
    if (own_) {
      add({"train.on_spike"},
          "rollback leaves out rows of files, and the program has a task of its own; set action = "
          "\"skip\"");
    }
  }

  void training() {
    healing();
    spikes();
    if (c_.train.epochs > 0 && c_.given.contains("train.steps")) {
      add({"train.epochs", "train.steps"}, "both say how long the run is; remove one of the two");
    }
    if (known({"train.batch", "train.micro_batch"}) && c_.train.micro_batch > c_.train.batch) {
      add({"train.micro_batch", "train.batch"},
          fmt::format("is larger than train.batch (batch {}, micro_batch {})", c_.train.batch,
                      c_.train.micro_batch));
    }
    check_graph(c_, *this);
    if (known({"train.precision", "train.loss_scaling"}) && c_.train.precision == DType::f16 &&
        c_.train.loss_scaling == LossScaling::none) {
      add({"train.precision"},
          "gradients in f16 leave the range of the type; set train.loss_scaling=dynamic, or "
          "train.precision=bf16");
    }
    if (known({"train.precision", "train.parameters"}) && c_.train.parameters == DType::bf16 &&
        c_.train.precision != DType::bf16) {
      add({"train.parameters"},
          fmt::format("parameters that are stored in bf16 do not compute in {}; set "
                      "train.precision=bf16",
                      name_of(c_.train.precision)));
    }
    reproducible();
    objective();
    clipping();
    schedule();
    const std::vector<std::string> names = allowable_names(c_.model.family);
    for (const std::string& name : c_.checkpoint.allow) {
      if (std::ranges::find(names, name) == names.end()) {
        add({"checkpoint.allow"},
            fmt::format("'{}' is not a key or a section that a checkpoint is compared by{}",
                        shown(name), did_you_mean(name, names)));
      }
    }
    if (c_.checkpoint.folder.empty() && known({"checkpoint.folder"}) &&
        c_.given.contains("checkpoint.every") && c_.checkpoint.every > 0) {
      add({"checkpoint.every"}, "checkpoint.folder is empty, so none can be written");
    }
  }

  /// What can be said before the model and its plan are there.
  void reproducible() {
    const TrainConfig& t = c_.train;
    if (!known({"train.reproducible"}) || !t.is_layout_free()) {
      for (const Key& key : config_keys(c_.model.family)) {
        if (key.of_layout_free && known({"train.reproducible"}) && c_.given.contains(key.path)) {
          add({key.path}, "only train.reproducible=layout has it");
        }
      }
      return;
    }
    const auto refuse = [&](const char* key, bool wrong, const std::string& text) {
      if (known({key}) && wrong) {
        add({key, "train.reproducible"}, text);
      }
    };
    const std::string problem = problem_of(VirtualShards{.batch = 1, .features = t.feature_shards});
    refuse("train.feature_shards", !problem.empty(), problem);
    refuse("train.precision", t.feature_shards > 1 && t.precision != DType::f32,
           "sums over ranks that share features are rounded to 16 bits at other places in every "
           "layout; set train.precision=f32 or train.feature_shards=1");
    refuse("train.head_rows", t.feature_shards > 1 && t.head_rows != 0,
           "the head's products in parts are not cut into feature shards; set train.head_rows=0");
    if (!known({"train.virtual_shards", "train.batch"})) {
      return;
    }
    refuse("train.batch", t.batch % t.virtual_shards != 0,
           fmt::format("{} sequences cannot be divided into {} equal virtual shards "
                       "(train.virtual_shards)",
                       t.batch, t.virtual_shards));
    refuse("train.micro_batch", t.micro_batch != 0 && t.micro_batch * t.virtual_shards != t.batch,
           fmt::format("with train.reproducible=layout a micro-batch is a virtual shard (expected "
                       "{} or 0, got {})",
                       t.batch / t.virtual_shards, t.micro_batch));
    refuse("train.parameters", t.parameters != DType::f32,
           "gradients of 16 bits are rounded at other places in every layout; set "
           "train.parameters=f32, which computes in train.precision all the same");
    refuse("graph.mode", !c_.graph.mode.empty(),
           "a mode places the sums of a recorded step; use [[parallel]] entries");
    refuse("mesh.device_collectives",
           c_.mesh.device_collectives == collective::DeviceCollectives::own_order,
           "sums of the plugin's library have an order of their own; set ordered");
    refuse("experts.balance_loss", c_.experts.balance_loss > 0,
           "the loss is of the tokens of a micro-batch on all ranks, which depend on their number");
    refuse("experts.z_loss", c_.experts.z_loss > 0,
           "the loss is of the tokens of a micro-batch on all ranks, which depend on their number");
  }

  void objective() {
    if (!known({"train.objective"})) {
      return;
    }
    for (const auto& [key, place] : c_.given) {
      if (key.starts_with("dpo.") && c_.train.objective != ObjectiveKind::dpo) {
        add({key}, "only train.objective=dpo has it");
      }
      if (key == "data.labels" && !c_.classifies()) {
        add({key}, "only train.objective=classification and token_classification have it");
      }
    }
    if (c_.classifies()) {
      classification();
    }
    if (c_.train.objective != ObjectiveKind::dpo) {
      return;
    }
    const auto refuse = [&](const char* key, bool wrong, const char* text) {
      if (known({key}) && wrong) {
        add({key, "train.objective"}, text);
      }
    };
    refuse("data.packing", c_.data.packs(),
           "the answers that train.objective=dpo compares have rows of their own; set "
           "data.packing=none");
    refuse("data.train_on", c_.data.train_on == data::TrainOn::all,
           "train.objective=dpo compares answers, without their prompts; set "
           "data.train_on=answers");
    for (const auto& [key, weight] : {std::pair{"experts.balance_loss", c_.experts.balance_loss},
                                      {"experts.z_loss", c_.experts.z_loss}}) {
      refuse(key, weight > 0,
             "train.objective=dpo has the losses of answers only; balance by experts.bias_rate");
    }
    refuse("graph.mode", !c_.graph.mode.empty(),
           "a mode places steps that read one model's next tokens, and train.objective=dpo has a "
           "reference too; use [[parallel]] entries");
  }

  void classification() {
    constexpr std::array<std::string_view, 20> of_texts = {"model.vocab",
                                                           "model.dropout",
                                                           "model.adapter",
                                                           "model.new_tokens",
                                                           "model.base",
                                                           "data.text",
                                                           "data.tokens",
                                                           "data.train_on",
                                                           "data.packing",
                                                           "data.chat_template",
                                                           "data.template_options",
                                                           "data.template_members",
                                                           "data.end_tokens",
                                                           "data.allow_dropped",
                                                           "train.head_rows",
                                                           "log.sample",
                                                           "experts.balance_loss",
                                                           "experts.z_loss",
                                                           "experts.bias_rate",
                                                           "experts.capacity"};
    for (const auto& [key, place] : c_.given) {
      if (std::ranges::find(of_texts, key) != of_texts.end()) {
        add({key}, fmt::format("train.objective={} does not have it; remove it",
                               word_of(c_, "train.objective")));
      }
    }
    if (known({"model.from"}) && c_.model.from.empty()) {
      add({"model.from", "train.objective"},
          c_.tags()
              ? "train.objective=token_classification begins from a folder of an encoder; set "
                "model.from"
              : "train.objective=classification begins from a folder of an encoder or a "
                "decoder, or a program of torch.export; set model.from");
    }
  }

  void clipping() {
    if (known({"train.clip_norm_type"}) && !norm_order(c_.train.clip_norm_type)) {
      add({"train.clip_norm_type"},
          fmt::format("expected \"inf\" or a number more than 0 as a text, got \"{}\"",
                      shown(c_.train.clip_norm_type)));
    }
    if (known({"train.clip_grad_norm", "train.clip_grad_value"}) && c_.train.clip_grad_value > 0 &&
        c_.train.clip_grad_norm > 0) {
      add({"train.clip_grad_value"},
          fmt::format("train.clip_grad_norm limits the gradients too ({}); set one of them to 0",
                      c_.train.clip_grad_norm));
    }
  }

  void schedule() {
    const OptimizerConfig& o = c_.optimizer;
    if (!known({"optimizer.schedule", "optimizer.schedule_unit", "optimizer.schedule_end",
                "optimizer.warmup", "optimizer.cooldown", "train.steps", "train.batch",
                "data.seq_len"}) ||
        c_.train.steps == 0) {  // follows from train.epochs when the data are there
      return;
    }
    if (!o.schedule_ends() && o.schedule_end != 0) {
      add({"optimizer.schedule_end"},
          fmt::format("the schedule {} has no end; remove one of the two",
                      word_of(c_, "optimizer.schedule")));
      return;
    }
    const std::int64_t end = c_.schedule_end();
    const std::string unit = word_of(c_, "optimizer.schedule_unit");
    const std::string at = fmt::format("{} {}", end, unit);
    const bool is_wsd = o.schedule == optim::ScheduleKind::warmup_stable_decay;
    if (o.warmup > end) {
      add({"optimizer.warmup", "optimizer.schedule_end", "train.steps"},
          fmt::format("is longer than the {} (expected at most {}, got {})",
                      o.schedule_end > 0 ? "schedule" : "run", at, o.warmup));
    } else if (is_wsd && (o.cooldown < 1 || o.cooldown > end - o.warmup)) {
      add({"optimizer.cooldown", "optimizer.schedule"},
          fmt::format("wsd lowers the learning rate in the last cooldown {0} (expected 1 to {1}, "
                      "the {0} between warm-up and end, got {2})",
                      unit, end - o.warmup, o.cooldown));
    } else if (!is_wsd && o.cooldown != 0) {
      add({"optimizer.cooldown"}, fmt::format("only the schedule wsd has it; the schedule is {}",
                                              word_of(c_, "optimizer.schedule")));
    }
  }

  void trace() {
    const std::vector<std::int64_t>& steps = c_.trace.steps;
    if (!known({"trace.file", "trace.steps"}) || steps.empty()) {
      return;
    }
    if (c_.trace.file.empty()) {
      add({"trace.steps"}, "needs trace.file, the file to write");
    }
    if (steps.size() != 2) {
      add({"trace.steps"},
          fmt::format("expected two numbers, the first and the last step, got {}", steps.size()));
    } else if (steps[0] > steps[1]) {
      add({"trace.steps"},
          fmt::format("the first step is after the last one (got [{}, {}])", steps[0], steps[1]));
    } else if (known({"train.steps"}) && c_.train.steps > 0 && steps[1] > c_.train.steps) {
      add({"trace.steps", "train.steps"},
          fmt::format("the run ends before the last step to trace (steps {}, got [{}, {}])",
                      c_.train.steps, steps[0], steps[1]));
    }
  }

  void mesh() {
    add_errors("mesh.transport",
               "launch: ", [&] { collective::check_transport(c_.mesh.transport); });
    if (!known({"mesh.axes", "mesh.shape"})) {
      return;
    }
    const auto& axes = c_.mesh.axes;
    if (axes.size() != c_.mesh.shape.size()) {
      add({"mesh.shape", "mesh.axes"},
          fmt::format("needs one extent for each of mesh.axes ({} axes, {} extents)", axes.size(),
                      c_.mesh.shape.size()));
    }
    const std::size_t latencies = c_.mesh.latency_us.size();
    const std::size_t bandwidths = c_.mesh.bandwidth_gb.size();
    if (known({"mesh.latency_us", "mesh.bandwidth_gb"}) && latencies + bandwidths > 0 &&
        (latencies != axes.size() || bandwidths != axes.size())) {
      add({"mesh.latency_us", "mesh.bandwidth_gb"},
          fmt::format("mesh.latency_us and mesh.bandwidth_gb need one number each for each of "
                      "mesh.axes ({} axes, {} and {} numbers)",
                      axes.size(), latencies, bandwidths));
    }
    if (known({"mesh.measure_links", "mesh.latency_us"}) && c_.mesh.measure_links &&
        latencies > 0) {
      add({"mesh.measure_links"}, "the links are given by mesh.latency_us; remove one of the two");
    }
    if (axes.size() > 8) {
      add({"mesh.axes"}, fmt::format("at most 8 axes, got {}", axes.size()));
    }
    for (std::size_t i = 0; i < axes.size(); ++i) {
      constexpr std::size_t longest = 64;  // of a group of ranks
      if (axes[i].size() > longest) {
        add({"mesh.axes"}, fmt::format("the name of axis {} is too long (expected at most {} "
                                       "bytes, got {})",
                                       i, longest, axes[i].size()));
      }
      if (std::find(axes.begin(), axes.begin() + static_cast<std::ptrdiff_t>(i), axes[i]) !=
          axes.begin() + static_cast<std::ptrdiff_t>(i)) {
        add({"mesh.axes"}, fmt::format("the axis '{}' is named twice", shown(axes[i])));
      }
    }
    double product = 1;
    for (const std::int64_t extent : c_.mesh.shape) {
      product *= static_cast<double>(extent);
    }
    if (product > 65536) {
      add({"mesh.shape"}, fmt::format("at most 65536 ranks, got {}", product));
    }
  }

  void style(std::size_t i) {
    const StyleConfig& s = c_.parallel[i];
    const std::string name = fmt::format("parallel[{}]", i);
    for (const std::string& axis : s.axis.all) {
      if (!known({"mesh.axes"}) || unread_.contains(name + ".axis") ||
          std::ranges::find(c_.mesh.axes, axis) != c_.mesh.axes.end()) {
        continue;
      }
      add({name + ".axis"},
          fmt::format("the mesh has no axis '{}'{}", shown(axis),
                      c_.mesh.axes.empty()
                          ? "; it has no axes: set mesh.axes and mesh.shape"
                          : fmt::format(" (it has {}){}", shown(join_words(c_.mesh.axes)),
                                        did_you_mean(axis, c_.mesh.axes))));
    }
    if (unread_.contains(name + ".on")) {
      return;
    }
    if (s.on.empty()) {
      add({name + ".on"},
          "is empty; name modules: on = [\"model.layers.*\"], or [\".\"] for the whole model");
    }
    for (const std::string& pattern : s.on) {
      try {
        expand_braces(pattern);
      } catch (const Error& error) {
        add({name + ".on"}, error.what());
      }
    }
  }

  const RunSpec& c_;
  bool own_ = false;  // the program has a task of its own
};

}  // namespace

std::optional<std::int64_t> bytes_of_text(const std::string& text) {
  constexpr std::pair<std::string_view, int> units[] = {
      {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  const auto found = std::ranges::find(units, unit, &std::pair<std::string_view, int>::first);
  const double bytes = found == std::end(units) ? 0 : std::ldexp(value, found->second);
  if (error != std::errc() || !(bytes >= 1) || bytes > 0x1p60) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(bytes);
}

std::optional<double> norm_order(const std::string& text) {
  if (text == "inf") {
    return std::numeric_limits<double>::infinity();
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0 &&
                 std::isfinite(value)
             ? std::optional(value)
             : std::nullopt;
}

bool is_of_own_task(const std::string& path, bool own_optimizer) {
  constexpr std::array<std::string_view, 4> sections = {"model.", "data.", "dpo.", "log.sample"};
  constexpr std::array<std::string_view, 5> of_optimizer = {"optimizer.name", "optimizer.options",
                                                            "optimizer.weight_decay",
                                                            "optimizer.decay", "optimizer.groups"};
  return (path != "data.validate_every" &&
          std::ranges::any_of(sections, [&](auto section) { return path.starts_with(section); })) ||
         path == "train.objective" || path == "train.epochs" ||
         (own_optimizer && std::ranges::find(of_optimizer, path) != of_optimizer.end());
}

void check_config(const RunSpec& config, const std::set<std::string>& unread, Problems& problems,
                  const std::optional<OwnTask>& own) {
  Checks(config, unread, problems).all(own);
}

std::vector<std::string> default_passes() { return graph::default_passes(); }

}  // namespace tessera::runs
