// The micro-batches of a model in stages, as a schedule says.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.pipeline;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :micro_batches;
import :stage_messages;

namespace tessera {
namespace {

using pipeline::Action;
using pipeline::Work;

/// A stage's computation of one micro-batch, from its forward to its backward.
struct StageMicroBatch {
  Tensor entering = {};  // a leaf; undefined for the first stage
  Draws drawn = {};      // before it, in the micro-batch
  Tensor leaving = {};   // undefined for the last stage
  Draws drawn_after = {};
  MicroLoss loss = {};   // of the last stage
  Tensor gradient = {};  // of what leaves
};

/// Where the parameters are, of which every stage has some.
Device device_of(nn::Module& model) { return nn::all_parameters(model).front()->value.device(); }

/// One step or evaluation of this rank's stages.
class StageWork {
 public:
  StageWork(nn::LanguageModel& model, const parallel::ParallelPlan& plan, StageMessages& messages,
            const MicroBatches& all)
      : model_(model),
        plan_(plan),
        stages_(*plan.stages()),
        messages_(messages),
        all_(all),
        device_(device_of(model)),
        last_own_(stages_.own().back()) {
    messages_.begin(kind(), device_ == meta);
  }

  /// Errors name the stage and the micro-batch.
  void act(const Action& action, bool last_backward) {
    const std::string what = fmt::format("{}, micro-batch {}, {}", stages_.text(action.stage),
                                         action.micro_batch, name_of(action.work));
    if (device_ != meta) {
      collective::World::current().set_progress(all_.step, what);
    }
    try {
      run_phase(pipeline::to_string(action), [&] { perform(action, last_backward); });
    } catch (const collective::PeerFailed&) {
      throw;
    } catch (const Error& error) {
      ErrorFields fields = error.fields();
      fields.details += fmt::format("{}  in {}", fields.details.empty() ? "" : "\n", what);
      throw Error(std::move(fields), error.kind());
    }
  }

  /// Text that is equal for steps in which stages tell each other the same: see StageMessages.
  std::string kind() {
    std::string text =
        fmt::format("{} of {} micro-batches{}:", grad_enabled() ? "training" : "evaluation",
                    all_.count, all_.guards);
    for (const Tensor& x : rows_of(0)) {
      text += fmt::format(" {}{}", name_of(x.dtype()), to_string(x.shape()));
    }
    return text;
  }

  /// Forward of all micro-batches of all own stages, without gradients.
  void evaluate() {
    for (int micro = 0; micro < static_cast<int>(all_.count); ++micro) {
      for (const int stage : stages_.own()) {
        const auto act_on = [&](Work work) { act({work, stage, micro}, false); };
        if (stage > 0 && !stages_.is_own(stage - 1)) {
          act_on(Work::receive_activation);
        }
        act_on(Work::forward);
        if (!stages_.is_last(stage) && !stages_.is_own(stage + 1)) {
          act_on(Work::send_activation);
        }
      }
      live_.clear();
    }
  }

  /// Those of the last stage, if it is this rank's, in the order of the micro-batches.
  StepSums sums() const {
    StepSums all;
    for (const auto& [micro, part] : sums_) {
      add_sums(all, part);
    }
    return all;
  }
  const Draws& drawn() const { return drawn_; }

 private:
  void perform(const Action& action, bool last_backward) {
    const int stage = action.stage;
    const int micro = action.micro_batch;
    switch (action.work) {
      case Work::forward:
        forward(stage, micro);
        return;
      case Work::backward: {
        const StepScope scope([&](StepContext& step) { step.sums_gradients = last_backward; });
        backward_of(stage, micro, false);
        return;
      }
      case Work::input_gradient:
        backward_of(stage, micro, true);
        return;
      case Work::weight_gradient: {
        const StepScope scope([&](StepContext& step) { step.sums_gradients = last_backward; });
        weight_gradients(stage, micro);
        return;
      }
      case Work::send_activation:
        send_states(stage, micro);
        return;
      case Work::receive_activation:
        receive_states(stage, micro);
        return;
      case Work::send_gradient:
        send_gradient(stage, micro);
        return;
      case Work::receive_gradient:
        receive_gradient(stage, micro);
        return;
    }
  }

  StageMicroBatch& live(int stage, int micro) { return live_[{stage, micro}]; }

  /// All stages of the rank use the same ones.
  const Tensors& rows_of(int micro) {
    const auto [found, is_new] = rows_.try_emplace(micro);
    if (is_new) {
      found->second = all_.rows(micro);
    }
    return found->second;
  }

  /// The hidden states that a stage begins with.
  static Tensor leaf_of(const Tensor& states) {
    Tensor leaf = detached(states);
    leaf.set_requires_grad(grad_enabled());
    return leaf;
  }

  void forward(int stage, int micro) {
    StageMicroBatch& now = live(stage, micro);
    if (stage > 0 && !now.entering) {  // the stage before is this rank's too
      const StageMicroBatch& before = live(stage - 1, micro);
      now.entering = leaf_of(before.leaving);
      now.drawn = before.drawn_after;
    }
    const RandomPosition position = after(all_.start, now.drawn);
    const StepScope scope([&](StepContext& step) {
      if (const std::optional<MicroBatch> place = all_.place(micro)) {
        begin_micro_batch(step, position, *place);
      } else if (stage > 0 && grad_enabled()) {
        set_random_state(position.streams);
      }
    });
    const nn::PiecesScope pieces(model_, stages_.pieces(stage), now.entering);
    if (stages_.is_last(stage)) {
      now.loss = all_.loss(rows_of(micro));
      sums_[micro] = now.loss.sums;
    } else {
      now.leaving = all_.states(rows_of(micro));
      if (!now.leaving || !now.leaving.is_distributed()) {
        fail(
            "stages: hidden states are not distributed; make the batch with from_local(rows, "
            "plan.batch_layout())");
      }
    }
    if (grad_enabled()) {  // an evaluation does not move the streams of other stages
      now.drawn_after = draws_since(all_.start);
      drawn_ = now.drawn_after;
    }
    if (stage == last_own_) {
      rows_.erase(micro);
    }
  }

  /// The gradient that a stage's backward begins with is there; none: it begins with the loss.
  void prepare_gradient(int stage, int micro) {
    StageMicroBatch& now = live(stage, micro);
    if (!stages_.is_last(stage) && !now.gradient) {  // the stage after is this rank's too
      now.gradient = gradient_of(live(stage + 1, micro));
      drop_ends(stage + 1, micro);
    }
  }

  void backward_of(int stage, int micro, bool in_two_halves) {
    prepare_gradient(stage, micro);
    StageMicroBatch& now = live(stage, micro);
    const Tensor root = stages_.is_last(stage) ? now.loss.root : now.leaving;
    // Of a stage in which nothing is trained, and before it neither, no gradient is needed.
    if (root.requires_grad() && !in_two_halves) {
      backward({&root, 1}, {&now.gradient, 1});
    } else if (root.requires_grad()) {
      const std::span<const Tensor> inputs(&now.entering, now.entering ? 1 : 0);
      later_[{stage, micro}] = backward_to_inputs({&root, 1}, {&now.gradient, 1}, inputs);
    }
    now.leaving = now.gradient = Tensor();
    now.loss = {};
    if (stage == 0) {
      drop_ends(stage, micro);
    }
  }

  void weight_gradients(int stage, int micro) {
    const auto later = later_.find({stage, micro});
    if (later != later_.end()) {
      LaterGradients gradients = std::move(later->second);
      later_.erase(later);
      gradients.compute();
    }
  }

  /// What a stage began and ended with is not needed any more.
  void drop_ends(int stage, int micro) { live_.erase({stage, micro}); }

  /// The gradient of what a stage began with, in its layout.
  static Tensor gradient_of(const StageMicroBatch& stage) {
    const NoGrad no_grad;
    const Tensor& entering = stage.entering;
    const Tensor gradient = entering.grad() ? entering.grad() : ops::zeros_like(detached(entering));
    return redistribute(detached(gradient), entering.layout());
  }

  enum class Kind : std::uint8_t { states, gradient };
  /// The messages of a step with this tag are one.
  std::int64_t tag_of(Kind kind, int stage, int micro) const {
    const std::int64_t kinds = kind == Kind::states ? 0 : stages_.count();
    return (kinds + stage) * all_.count + micro;
  }

  /// A message to or from the rank of stage `other`.
  void report(const char* operation, std::int64_t received, double seconds) const {
    if (communication_reported()) {
      record_communication({operation, std::string(stages_.mesh().axis_name(stages_.axis())),
                            received, "stages", false, seconds});
    }
  }
  void send(const Tensor& x, int other, std::int64_t tag) {
    const NoGrad no_grad;
    const CommunicationTimer timer;
    const Tensor local = ops::contiguous(detached(x).local());
    ops::send(local, stages_.place_of(other), tag, stages_.group());
    report("send", 0, timer.seconds());
  }
  Tensor receive(const SpecHandle& spec, int other, std::int64_t tag) {
    const NoGrad no_grad;
    const CommunicationTimer timer;
    const Tensor local = empty(local_shape(*spec), spec->dtype, device_);
    ops::receive_(local, stages_.place_of(other), tag, stages_.group());
    report("receive", local.numel() * static_cast<std::int64_t>(size_of(local.dtype())),
           timer.seconds());
    return make_distributed(local, spec);
  }

  void send_states(int stage, int micro) {
    const StageMicroBatch& now = live(stage, micro);
    messages_.send(stage, micro, now.leaving, now.drawn_after);
    send(now.leaving, stage + 1, tag_of(Kind::states, stage, micro));
  }

  void receive_states(int stage, int micro) {
    StageMicroBatch& now = live(stage, micro);
    StatesForm form = messages_.receive(stage, micro, plan_.mesh());
    now.drawn = std::move(form.draws);
    now.entering = leaf_of(receive(form.spec, stage - 1, tag_of(Kind::states, stage - 1, micro)));
  }

  void send_gradient(int stage, int micro) {
    send(gradient_of(live(stage, micro)), stage - 1, tag_of(Kind::gradient, stage - 1, micro));
    drop_ends(stage, micro);
  }

  void receive_gradient(int stage, int micro) {
    StageMicroBatch& now = live(stage, micro);
    now.gradient = receive(now.leaving.spec(), stage + 1, tag_of(Kind::gradient, stage, micro));
  }

  nn::LanguageModel& model_;
  const parallel::ParallelPlan& plan_;
  const parallel::Stages& stages_;
  StageMessages& messages_;
  const MicroBatches& all_;
  Device device_;
  int last_own_;                                         // stage
  std::map<int, Tensors> rows_;                          // by micro-batch, while they are needed
  std::map<std::pair<int, int>, StageMicroBatch> live_;  // by stage and micro-batch
  std::map<std::pair<int, int>, LaterGradients> later_;  // second halves that are still to come
  std::map<int, StepSums> sums_;                         // by micro-batch
  Draws drawn_;
};

class ByStages final : public MicroBatchOrder {
 public:
  ByStages(nn::LanguageModel& model, const parallel::ParallelPlan& plan)
      : model_(model), plan_(plan), stages_(*plan.stages()), messages_(stages_) {}

  StepSums gradients(const MicroBatches& all) override {
    const StepScope scope([](StepContext& step) { step.order = new_order(); });
    const pipeline::Schedule& schedule = stages_.schedule(static_cast<int>(all.count));
    const std::vector<Action>& actions =
        schedule.actions[static_cast<std::size_t>(stages_.place())];
    StageWork work(model_, plan_, messages_, all);
    for (auto action = actions.begin(); action != actions.end(); ++action) {
      const bool last = std::none_of(action + 1, actions.end(), [&](const Action& later) {
        return later.stage == action->stage && pipeline::ends_backward(later.work);
      });
      work.act(*action, last);
    }
    start_ = all.start;
    drawn_ = work.drawn();
    return work.sums();
  }

  StepSums evaluation(const MicroBatches& all) override {
    const StepScope scope([](StepContext& step) { step.order = new_order(); });
    StageWork work(model_, plan_, messages_, all);
    work.evaluate();
    start_.reset();
    drawn_.clear();
    return work.sums();
  }

  StepSums whole(const StepSums& sums) override {
    const NoGrad no_grad;
    const int last = stages_.count() - 1;
    const bool has_sums = stages_.is_own(last);
    const StepEnd end = messages_.end(
        {.measured = static_cast<std::int64_t>(sums.measured.size()), .draws = drawn_});
    if (start_) {
      set_random_state(after(*start_, end.draws).streams);
    }
    Tensor values = zeros({1 + end.measured}, DType::f64, device_of(model_));
    if (has_sums) {
      const StepSums own = summed_on_mesh(sums, plan_);
      std::vector<Tensor> all{ops::cast(own.loss, DType::f64)};
      for (const Tensor& sum : own.measured) {
        all.push_back(ops::cast(sum, DType::f64));
      }
      values = ops::stack(all, 0);
    }
    values = ops::broadcast(values, stages_.place_of(last), stages_.group());
    StepSums result{ops::select(values, 0, 0)};
    for (std::int64_t i = 0; i < end.measured; ++i) {
      result.measured.push_back(ops::select(values, 0, i + 1));
    }
    return result;
  }

  void finish(std::span<const nn::ParameterPointer> parameters) override {
    const NoGrad no_grad;
    const std::vector<int>& ranks = stages_.group().group->ranks;
    for (const parallel::SharedParameter& shared : stages_.shared()) {
      const auto own = std::ranges::find_if(
          parameters, [&](const auto& parameter) { return parameter->name == shared.name; });
      std::vector<int> of_stages;
      for (const int stage : shared.stages) {
        const int rank = ranks[static_cast<std::size_t>(stages_.place_of(stage))];
        if (std::ranges::find(of_stages, rank) == of_stages.end()) {
          of_stages.push_back(rank);
        }
      }
      if (own == parameters.end() || of_stages.size() < 2 || !(*own)->value.grad()) {
        continue;
      }
      Tensor& gradient = (*own)->value.grad();
      gradient =
          make_distributed(ops::all_reduce(ops::contiguous(gradient.local()), ReduceOp::sum,
                                           ops::GroupArgument::of(of_stages, "shared by stages")),
                           gradient.spec());
    }
  }

  Tensor norm_power(std::span<const nn::ParameterPointer> parameters, double p) override {
    std::vector<nn::ParameterPointer> own;
    std::ranges::copy_if(parameters, std::back_inserter(own),
                         [&](const auto& parameter) { return !stages_.is_copy(*parameter); });
    const NoGrad no_grad;
    Tensor power = optim::gradient_norm_power(own, p);
    if (const Device device = device_of(model_); !(power.device() == device)) {
      // Nothing is trained here.
      power = device == meta ? zeros({}, power.dtype(), meta) : ops::to_device(power, device);
    }
    return ops::all_reduce(power, std::isinf(p) ? ReduceOp::max : ReduceOp::sum, stages_.group());
  }

  void set_planned(std::shared_ptr<StageStates> planned) override {
    messages_.set_planned(std::move(planned));
  }
  bool is_planned() const override { return messages_.is_planned(); }

 private:
  nn::LanguageModel& model_;
  const parallel::ParallelPlan& plan_;
  const parallel::Stages& stages_;
  StageMessages messages_;
  std::optional<RandomPosition> start_;  // of the step whose sums come next
  Draws drawn_;
};

}  // namespace

std::unique_ptr<MicroBatchOrder> by_stages(nn::Module& model, const parallel::ParallelPlan& plan) {
  auto* const language = dynamic_cast<nn::LanguageModel*>(&model);
  require(language != nullptr, "stages: the model is no nn::LanguageModel");
  return std::make_unique<ByStages>(*language, plan);
}

}  // namespace tessera
