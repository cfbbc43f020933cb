module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tessera/content_hash.hpp>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.tokenize;
import tessera.data;
import tessera.mesh;
import tessera.placement;
import tessera.device;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.train;
import :repeated_spec;

namespace tessera::runs {
namespace {

using Json = nlohmann::json;

constexpr std::size_t most_tokens = 20;  // that lost most

/// A tensor of which every rank has all, as values.
std::vector<double> whole_values(const Tensor& x) {
  const NoGrad constant;
  const Tensor whole =
      x.is_distributed() ? redistribute(x, Layout::replicated(x.layout().mesh())).local() : x;
  return to_doubles(ops::to_device(whole, cpu));
}

/// The sum of the squares of a tensor's elements, over all ranks.
double squares(const Tensor& x) {
  const NoGrad constant;
  Tensor whole = x;
  if (x.is_distributed()) {  // a square is not linear in what ranks have a part of
    Layout layout = x.layout();
    for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
      if (layout.placement(axis).is_partial()) {
        layout = layout.with_placement(axis, Replicate());
      }
    }
    whole = redistribute(x, layout);
  }
  const Tensor wide = ops::cast(whole, DType::f32);
  return whole_values(ops::sum(ops::mul(wide, wide))).at(0);
}

/// The losses of a step's rows.
class RowWatch {
 public:
  explicit RowWatch(Trainer& trainer) : trainer_(trainer) {}

  /// False: the task cannot tell them.
  bool begin() {
    division_ = trainer_.division();
    return trainer_.task().watch_losses([this](const WatchedLosses& watched) { add(watched); });
  }
  void end() { trainer_.task().watch_losses(nullptr); }

  Json result() const {
    Json rows = Json::array();
    // One rank tells for all that share the stage.
    const bool tells = trainer_.plan().mesh().ranks().front() == current_rank();
    for (const auto& [row, losses] : tells ? losses_ : std::map<std::int64_t, Losses>()) {
      rows.push_back({{"row", row}, {"losses", losses}});
    }
    Json terms = Json::object();
    for (const auto& [name, sum] : tells ? terms_ : std::map<std::string, double>()) {
      terms[name] = sum;
    }
    return {{"rows", rows}, {"terms", terms}, {"add_up", add_up_}};
  }

 private:
  using Losses = std::vector<double>;
  void add(const WatchedLosses& watched) {
    const NoGrad constant;
    const Tensor& losses = watched.losses;
    Tensor again = ops::sum(losses);
    for (const nn::LossTerm& term : watched.terms) {
      again = ops::add(again, term.sum);
      terms_[term.name] += whole_values(term.sum).at(0);
    }
    const auto local = [](const Tensor& x) { return to_doubles(ops::to_device(local_of(x), cpu)); };
    const std::vector<double> a = local(again);
    const std::vector<double> b = local(watched.sum);
    add_up_ = add_up_ && a.size() == b.size() && std::ranges::equal(a, b, [](double x, double y) {
                return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
              });
    // Rows are told by a tensor that is distributed as they are.
    const MicroPart part = division_.at(0, number_++);
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(part.batch.rows));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = part.batch.first + static_cast<std::int64_t>(i);
    }
    const Tensor rows = from_local(
        ops::to_device(from_values(std::span<const std::int64_t>(numbers), {part.batch.rows}),
                       local_of(losses).device()),
        trainer_.plan().row_layout());
    const std::vector<double> of_rows = whole_values(rows);
    const std::vector<double> values = whole_values(losses);
    const std::size_t each = of_rows.empty() ? 0 : values.size() / of_rows.size();
    for (std::size_t i = 0; i < of_rows.size(); ++i) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(i * each);
      losses_[static_cast<std::int64_t>(of_rows[i])] =
          Losses(begin, begin + static_cast<std::ptrdiff_t>(each));
    }
  }

  Trainer& trainer_;
  RowDivision division_;
  std::int64_t number_ = 0;  // of the next micro-batch
  bool add_up_ = true;
  std::map<std::int64_t, Losses> losses_;  // of each row's tokens
  std::map<std::string, double> terms_;    // what is added to them, by its name
};

/// The norms of what modules return, and of its gradients.
class ModuleWatch {
 public:
  void begin(nn::Module& model) {
    for (nn::Module* const module : nn::all_modules(model)) {
      const std::size_t place = sums_.size();
      sums_.push_back({.name = module->name()});
      hooks_.push_back(module->add_hook(
          [this, place](nn::Module&, const Tensors&, Tensors& outputs) { see(place, outputs); }));
    }
    // Blocks that compute their activations again do so in backward.
    hooks_.push_back(model.add_outer_pre_hook([this](nn::Module&, Tensors&) { forward_ = true; }));
    hooks_.push_back(
        model.add_hook([this](nn::Module&, const Tensors&, Tensors&) { forward_ = false; }));
  }
  void end() {
    for (nn::HookHandle& hook : hooks_) {
      hook.remove();
    }
  }
  Json result() const {
    Json all = Json::array();
    for (const Sums& one : sums_) {
      if (one.seen) {
        Json entry = {{"name", one.name}, {"activations", one.activations}};
        if (one.has_gradients) {
          entry["gradients"] = one.gradients;
        }
        all.push_back(entry);
      }
    }
    return all;
  }

 private:
  struct Sums {
    std::string name;
    double activations = 0;  // of squares
    double gradients = 0;
    bool seen = false;
    bool has_gradients = false;
  };

  void see(std::size_t place, const Tensors& outputs) {
    for (const Tensor& x : outputs) {
      if (!x || !is_floating(x.dtype())) {
        continue;
      }
      if (forward_ && grad_enabled()) {  // not of a model that losses are compared with
        sums_[place].activations += squares(x);
        sums_[place].seen = true;
      }
      if (x.requires_grad()) {
        add_gradient_hook(x, [this, place](const Tensor& gradient) {
          sums_[place].gradients += squares(gradient);
          sums_[place].has_gradients = true;
          return Tensor();
        });
      }
    }
  }

  std::vector<Sums> sums_;
  std::vector<nn::HookHandle> hooks_;
  bool forward_ = false;
};

/// Parameters before a step, and what it changes of them, by the groups of the config.
class UpdateWatch {
 public:
  UpdateWatch(const RunSpec& config, Trainer& trainer) : trainer_(trainer) {
    const Json groups = parse_json(config.optimizer.groups.text, false);
    for (const Json& group : groups.is_array() ? groups : Json::array()) {
      std::vector<std::string>& patterns = patterns_.emplace_back();
      const Json on = group.is_object() ? group.value("on", Json()) : Json();
      for (const Json& one : on.is_array() ? on : Json::array({on})) {
        if (one.is_string()) {
          patterns.push_back(one.get<std::string>());
        }
      }
    }
  }

  void begin() {
    const NoGrad constant;
    for (const nn::ParameterPointer& parameter : parameters()) {
      before_.push_back(ops::clone(parameter->value));
    }
  }

  Json end() {
    const NoGrad constant;
    Json changes = Json::array();
    const std::vector<nn::ParameterPointer> all = parameters();
    for (std::size_t i = 0; i < all.size(); ++i) {
      changes.push_back({{"name", all[i]->name},
                         {"group", group_of(*all[i])},
                         {"elements", all[i]->value.numel()},
                         {"before", squares(before_[i])},
                         {"change", squares(ops::sub(all[i]->value, before_[i]))}});
    }
    return changes;
  }

 private:
  std::vector<nn::ParameterPointer> parameters() {
    std::vector<nn::ParameterPointer> trained;
    for (const nn::ParameterPointer& parameter : nn::all_parameters(trainer_.model())) {
      if (parameter->value.requires_grad()) {
        trained.push_back(parameter);
      }
    }
    return trained;
  }
  /// The last one that matches.
  std::string group_of(const nn::Parameter& parameter) const {
    std::string group = patterns_.empty() ? "all parameters" : "others";
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      for (const std::string& pattern : patterns_[i]) {
        group = nn::matches(parameter, pattern) ? fmt::format("optimizer.groups[{}]", i) : group;
      }
    }
    return group;
  }

  Trainer& trainer_;
  std::vector<std::vector<std::string>> patterns_;
  std::vector<Tensor> before_;
};

/// The texts of all ranks, on rank 0.
std::vector<std::string> texts_of_ranks(collective::World& world, const std::string& mine) {
  collective::Communicator& everyone = world.everyone();
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto size = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> sizes(ranks);
  everyone.all_gather(&size, sizes.data(), 1, DType::i64);
  const auto longest = static_cast<std::size_t>(std::ranges::max(sizes));
  std::string padded = mine;
  padded.resize(longest);
  std::string all(longest * ranks, '\0');
  if (longest > 0) {
    everyone.all_gather(padded.data(), all.data(), static_cast<std::int64_t>(longest), DType::u8);
  }
  std::vector<std::string> texts;
  for (std::size_t rank = 0; world.rank() == 0 && rank < ranks; ++rank) {
    texts.push_back(all.substr(rank * longest, static_cast<std::size_t>(sizes[rank])));
  }
  return texts;
}

/// Whether the steps of a run can be taken as they are written with the same bits.
std::string why_not_eager(const RunSpec& config) {
  if (!config.graph.mode.empty()) {
    return "graph.mode places recorded steps, which have no modules and no losses of tokens";
  }
  if (!config.graph.transforms.empty()) {
    return "graph.transforms change recorded steps, which have no modules and no losses of tokens";
  }
  return "";
}

}  // namespace

RunSpec with_layout(RunSpec spec, const RunSpec& layout) {
  std::vector<std::string> differ;
  for (const Key& key : config_keys(spec.model.family)) {
    if (layout.model.family == spec.model.family && has_influence(key) && !key.of_family &&
        json_of(key, spec) != json_of(key, layout) && key.section() != "data") {
      differ.push_back(key.path);
    }
  }
  if (layout.model.family != spec.model.family || !differ.empty()) {
    fail_input(
        {.thing = "--layout",
         .wrong = differ.empty() ? "its config is of a model of another family"
                                 : fmt::format("its config is of another run: {} differ{}",
                                               join_words(differ), differ.size() == 1 ? "s" : ""),
         .expected = "the run's config with another mesh and other entries of [[parallel]]"});
  }
  spec.mesh = layout.mesh;
  spec.parallel = layout.parallel;
  spec.plugins = layout.plugins;
  spec.train.micro_batch = layout.train.micro_batch;
  spec.train.threads = layout.train.threads;
  spec.train.device = layout.train.device;
  return spec;
}

OpenedRun open_replay(const RecordedRun& run, const ReplayRequest& request,
                      const std::optional<RunSpec>& layout, const std::string& scratch) {
  check_step(run, request.step);
  const std::string from =
      request.from_beginning ? std::string("never") : checkpoint_before(run, request.first()).path;
  RecordedRun replayed = run;
  if (layout) {
    if (!run.spec.train.is_layout_free() && !request.record) {
      fail_input({.thing = "--layout",
                  .wrong = "the run's bits depend on its layout",
                  .expected = "a run with train.reproducible = \"layout\"",
                  .advice = "leave it out"});
    }
    replayed.spec = with_layout(run.spec, *layout);
  }
  if (!replayed.spec.graph.offload.empty()) {
    replayed.spec.graph.offload = scratch;
  }
  if (request.record && request.record->captured) {
    replayed.spec.graph.capture = true;
  }
  if (!request.device.empty()) {
    replayed.spec.train.device = request.device;
  }
  replayed.spec.checkpoint.resume = from;
  std::shared_ptr<const DataTask> task = open_task(replayed);
  RunSpec spec = with_data(replayed.spec, task->data());
  OpenedRun opened = open_run(std::move(spec), std::move(task), false);
  check_run(opened);
  check_start(opened, false);
  return opened;
}

std::string replay_rank(const OpenedRun& opened, const ReplayRequest& request,
                        collective::World& world) {
  const Run& run = opened.run;
  ops::set_threads(threads_of_rank(run.config));
  world.set_background(run.config.mesh.background);
  world.set_device_collectives(run.config.mesh.device_collectives);
  const DeviceMesh mesh = make_mesh(run.config);
  set_configured_links(run.config, mesh);
  const Device device = device_of(run.config, world.number_here(), world.ranks_here());
  const StepScope kernels([&](StepContext& step) { step.planned_device = device.type; });
  Trainer trainer(run, device);
  if (opened.start.checkpoint) {
    trainer.resume(*opened.start.checkpoint);
  }
  const std::string why_not = why_not_eager(run.config);
  const bool as_program = !why_not.empty() || (request.record && request.record->captured);
  if (run.config.graph.capture && (request.first() - trainer.done() > 1 || as_program)) {
    trainer.capture_ahead();
  }
  std::optional<CallRecorder> recorder;
  const auto begin_step = [&] {
    const std::int64_t step = trainer.done() + 1;
    world.set_progress(step, "replaying");
    if (step == request.first() && !as_program) {
      trainer.set_capture(false);
    }
    if (request.record && step >= request.first()) {
      if (!recorder) {
        recorder.emplace(*request.record, trainer.model());
      }
      recorder->begin_step(step);
    }
  };
  while (trainer.done() + 1 < request.step) {
    begin_step();
    trainer.step(trainer.done() + 2 == request.step);
    if (recorder) {
      recorder->begin_step(0);
    }
  }
  RowWatch rows(trainer);
  ModuleWatch modules;
  UpdateWatch update(run.config, trainer);
  const bool has_rows = request.rows && why_not.empty() && rows.begin();
  if (request.modules && why_not.empty()) {
    modules.begin(trainer.model());
  }
  update.begin();
  begin_step();
  const StepResult result = trainer.step(true);
  if (recorder) {
    recorder->finish();
  }
  Json mine = {{"step", request.step},
               {"loss", result.loss},
               {"grad_norm", result.grad_norm},
               {"lr", result.lr},
               {"skipped", result.skipped},
               {"updates", update.end()},
               {"note", request.rows || request.modules ? why_not : ""}};
  modules.end();
  rows.end();
  mine["modules"] = modules.result();
  if (has_rows) {
    mine["rows"] = rows.result();
  }
  const std::vector<std::string> all = texts_of_ranks(world, json_text(mine));
  return all.empty() ? "" : fmt::format("[{}]", fmt::join(all, ","));
}

bool ReplayStep::same() const {
  const auto equal = [](double a, const std::optional<double>& b) {
    return b && std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(*b);
  };
  return equal(loss, recorded_loss) && equal(grad_norm, recorded_norm);
}

namespace {

std::string text_of_token(const Dataset& data, std::int64_t id) {
  if (!data.labels().empty()) {
    const auto place = static_cast<std::size_t>(id);
    return id >= 0 && place < data.labels().size() ? data.labels()[place] : "";
  }
  return data.tokenizer() ? data.tokenizer()
                                ->opened.tokenizer->token(static_cast<tokenize::TokenId>(id))
                                .value_or("")
                          : "";
}

/// A row's losses, its documents', and its tokens.
void add_row(ReplayStep& step, const Dataset& data, std::int64_t number,
             const std::vector<double>& losses) {
  const std::int64_t index = step.step - 1;
  const data::Mixture::SourceRow at = data.history().at(index, number);
  const Batch batch = data.rows(index, number, 1);
  const std::vector<data::DocumentPlace> padded =
      data.history().padded(index, {.source = at.source, .row = at.row});
  const bool by_token = losses.size() == batch.targets.size();
  ReplayRow row{.row = number, .trained = 1};
  if (by_token) {
    row.trained = data.history().trained(index, {.source = at.source, .row = at.row});
  }
  for (const double loss : losses) {
    row.loss += loss;
  }
  for (const data::RowRecord& record : data.training().source(at.source).records(at.row)) {
    if (std::ranges::find(padded, record.begin, &data::DocumentPlace::begin) != padded.end()) {
      continue;
    }
    ReplayDocument document{.place = to_string(record.place),
                            .begin = record.begin,
                            .end = record.end,
                            .trained = record.trained,
                            .loss = by_token ? 0 : row.loss};
    for (std::int64_t i = record.begin; by_token && i < record.end; ++i) {
      const auto place = static_cast<std::size_t>(i);
      document.loss += losses[place];
      if (batch.targets[place] != data::ignored_target) {
        step.tokens.push_back({.row = number,
                               .position = i,
                               .place = document.place,
                               .token = batch.targets[place],
                               .loss = losses[place]});
      }
    }
    row.documents.push_back(std::move(document));
  }
  step.rows.push_back(std::move(row));
  const std::size_t kept = std::min(most_tokens, step.tokens.size());
  std::ranges::partial_sort(step.tokens, step.tokens.begin() + static_cast<std::ptrdiff_t>(kept),
                            std::ranges::greater(), &ReplayToken::loss);
  step.tokens.resize(kept);
}

/// JSON has no numbers that are not finite.
double number_of(const Json& json) { return json.is_number() ? json.get<double>() : NAN; }

}  // namespace

void record_rows(const OpenedRun& opened, const ReplayRequest& request) {
  const Dataset& data = data_task_of(opened.run).data();
  Json rows = Json::array();
  for (std::int64_t step = request.first(); step <= request.step; ++step) {
    for (std::int64_t row = 0; row < opened.run.config.train.batch; ++row) {
      const Batch batch = data.rows(step - 1, row, 1);
      ContentHash hash;
      for (const std::vector<std::int64_t>* const numbers :
           {&batch.inputs, &batch.targets, &batch.documents, &batch.positions, &batch.lengths}) {
        hash.add(std::as_bytes(std::span(*numbers)));
      }
      hash.add(std::as_bytes(std::span(batch.pixels)));
      const data::Mixture::SourceRow at = data.place_of(step - 1, row);
      const std::vector<data::RowRecord> records =
          data.training().source(at.source).records(at.row);
      rows.push_back({{"step", step},
                      {"row", row},
                      {"place", records.empty() ? "" : to_string(records.front().place)},
                      {"hash", hash.hex()}});
    }
  }
  write_output("replay", rows_file(request.record->folder), json_text(Json{{"rows", rows}}));
}

ReplayStep replayed_step(const std::string& json, const RecordedRun& run, const OpenedRun& opened) {
  const Json ranks = parse_json(json);
  const Dataset& data = data_task_of(opened.run).data();
  const Json& first = ranks.at(0);
  ReplayStep step{.step = first["step"].get<std::int64_t>(),
                  .checkpoint = opened.start.checkpoint.value_or(""),
                  .loss = number_of(first["loss"]),
                  .grad_norm = number_of(first["grad_norm"]),
                  .lr = number_of(first["lr"]),
                  .skipped = first["skipped"].get<bool>(),
                  .note = first["note"].get<std::string>()};
  std::map<std::int64_t, std::vector<double>> losses;
  std::map<std::string, std::size_t> places;
  std::map<std::string, std::size_t> groups;
  for (const Json& rank : ranks) {
    if (rank.contains("rows")) {
      for (const Json& row : rank["rows"]["rows"]) {
        std::vector<double>& of_row = losses[row["row"].get<std::int64_t>()];
        std::ranges::transform(row["losses"], std::back_inserter(of_row), number_of);
      }
      for (const auto& [name, sum] : rank["rows"]["terms"].items()) {
        step.terms[name] += number_of(sum);
      }
      step.rows_are_loss = step.rows_are_loss.value_or(true) && rank["rows"]["add_up"].get<bool>();
    }
    // Ranks of other stages have other modules and parameters; those of one stage have the same.
    for (const Json& module : rank["modules"]) {
      if (places.try_emplace(module["name"].get<std::string>(), step.modules.size()).second) {
        step.modules.push_back(
            {.name = module["name"].get<std::string>(),
             .activations = std::sqrt(number_of(module["activations"])),
             .gradients = module.contains("gradients")
                              ? std::optional(std::sqrt(number_of(module["gradients"])))
                              : std::nullopt});
      }
    }
  }
  for (const auto& [row, of_row] : losses) {
    add_row(step, data, row, of_row);
  }
  for (ReplayToken& token : step.tokens) {
    token.text = text_of_token(data, token.token);
  }
  std::ranges::stable_sort(step.rows, std::ranges::greater(), [](const ReplayRow& row) {
    return row.loss / static_cast<double>(std::max<std::int64_t>(row.trained, 1));
  });
  std::set<std::string> parameters;
  for (const Json& rank : ranks) {
    for (const Json& update : rank["updates"]) {
      if (!parameters.insert(update["name"].get<std::string>()).second) {
        continue;
      }
      const std::string group = update["group"].get<std::string>();
      const auto [place, fresh] = groups.try_emplace(group, step.updates.size());
      if (fresh) {
        step.updates.push_back({.group = group});
      }
      ReplayUpdate& sum = step.updates[place->second];
      sum.parameters += update["elements"].get<std::int64_t>();
      sum.before += number_of(update["before"]);
      sum.change += number_of(update["change"]);
    }
  }
  for (ReplayUpdate& update : step.updates) {
    update.before = std::sqrt(update.before);
    update.change = std::sqrt(update.change);
  }
  if (const std::optional<StepMetrics> recorded = recorded_metrics(run, step.step)) {
    step.recorded_loss = recorded->loss;
    step.recorded_norm = recorded->grad_norm;
  }
  return step;
}

}  // namespace tessera::runs
