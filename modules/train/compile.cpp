// Compiled steps: which program a call has, and how it is taken, recorded and replayed.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.device;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.execute;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import :meta_step;
import :capture_parts;
import :compile;
import :made_tensors;
import :step_plan;
import :step_objects;
import :verification;

namespace tessera {
namespace {

[[noreturn]] void not_given(const std::string& name, const char* what) {
  fail({.thing = "compiled step",
        .wrong = fmt::format("the call has no {} '{}'", what, name),
        .advice = fmt::format("pass it in StepNumbers::{}s", what)});
}

/// Of a number that a call is given.
std::string number_name(const std::string& name) { return "number." + name; }

/// The options with the passes and other changes of `changes`.
CompileOptions checked(CompileOptions options) {
  graph::add_changes(options.execution, options.changes);
  options.execution.verify = options.verify != 0 ? options.verify : options.execution.verify;
  graph::check(options.execution);
  if (options.mode && options.execution.verify > 0) {
    fail_input({.thing = "compile",
                .wrong = "a step that a mode places cannot be taken as it is written, so there is "
                         "nothing to verify it by",
                .advice = "leave verify out, or use a plan instead of a mode"});
  }
  if (options.execution.across_steps) {
    fail_input({.thing = "compile",
                .wrong = "the update of a step cannot be left to the next call, as callers see "
                         "parameters between two calls",
                .advice = "use Training"});
  }
  return options;
}

/// What a call was given, which may be split as a batch is.
void add_inputs(StepInputs& all, const Tensors& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    all.emplace(call_input(i), StepInput{.value = local_of(inputs[i]), .role = Role::rows});
  }
}

bool same_view(const Tensor& a, const Tensor& b) {
  return &a.storage() == &b.storage() && a.offset() == b.offset() && a.shape() == b.shape() &&
         a.strides() == b.strides() && a.dtype() == b.dtype();
}

/// Bytes of a storage from the first element to the last one.
std::pair<std::int64_t, std::int64_t> range_of(const Tensor& x) {
  std::int64_t last = x.offset();
  for (int dim = 0; dim < x.dims(); ++dim) {
    last += (x.shape()[dim] - 1) * x.strides()[dim];
  }
  const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
  return {x.offset() * size, (last + 1) * size};
}

/// Whether one view of a storage begins before another one ends.
bool overlap(const Tensor& a, const Tensor& b) {
  const auto [first, end] = range_of(a);
  const auto [other_first, other_end] = range_of(b);
  return first < other_end && other_first < end;
}

/// Of an input that is another one too, which of them; of one that is a parameter or a buffer, its
/// name; "": neither.
std::string sharing_of(const Tensors& inputs, std::size_t i, const StepObjects& objects) {
  const Tensor& x = local_of(inputs[i]);
  for (std::size_t k = 0; k < i && x.numel() > 0; ++k) {
    if (same_view(x, local_of(inputs[k]))) {
      return fmt::format(" (input {})", k);
    }
  }
  const std::string owner = x.is_meta() ? std::string() : objects.owner_of(x.storage());
  return owner.empty() ? owner : fmt::format(" ({})", owner);
}

/// What calls that one program is right for have in common: types, shapes, layouts, and which
/// inputs are one tensor.
std::string form_of(const Tensors& inputs, const StepObjects& objects) {
  std::string text;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& x = inputs[i];
    text += text.empty() ? "" : ", ";
    text += x.is_distributed() ? to_string(*x.spec())
                               : fmt::format("{}{}", name_of(x.dtype()), to_string(x.shape()));
    text += sharing_of(inputs, i, objects);
  }
  return text;
}

/// Inputs as programs take them: in row-major order, and each in memory of its own or the same as
/// another one. What the call writes into copies is written back into the caller's tensors.
class SeparateInputs {
 public:
  explicit SeparateInputs(const Tensors& given) : given_(given) {
    for (std::size_t i = 0; i < given.size(); ++i) {
      const Tensor& x = given[i];
      const Tensor& local = local_of(x);
      versions_.push_back(local.storage().version());
      overlaps_.push_back(overlapped(i));
      const bool is_separate = local.is_contiguous() && !overlaps_.back();
      if (is_separate || x.requires_grad()) {  // one with a gradient stays what it is
        inputs_.push_back(x);
        continue;
      }
      const NoGrad no_grad;
      const Tensor copy = ops::clone(local);
      versions_.back() = copy.storage().version();
      inputs_.push_back(x.is_distributed() ? make_distributed(copy, x.spec()) : copy);
    }
  }

  const Tensors& inputs() const { return inputs_; }
  /// `written`: names of inputs that a program has written. Error: one of them shares memory with
  /// another one.
  void write_back(const std::vector<std::string>& written) const {
    const auto is_written = [&](std::size_t i) {
      return local_of(inputs_[i]).storage().version() != versions_[i] ||
             std::ranges::count(written, call_input(i)) > 0;
    };
    const NoGrad no_grad;
    for (std::size_t i = 0; i < given_.size(); ++i) {
      if (overlaps_[i] && (is_written(i) || is_written(*overlaps_[i]))) {
        fail({.thing = "compiled step",
              .wrong = fmt::format("inputs {} and {} are different views of one memory, and the "
                                   "step writes one of them",
                                   *overlaps_[i], i),
              .advice = "pass the whole, and take the views within the step"});
      }
      if (!inputs_[i].same_as(given_[i]) && is_written(i)) {
        ops::copy_(local_of(given_[i]), local_of(inputs_[i]));
      }
    }
  }

 private:
  /// An earlier input that has some of the input's memory and is not the same.
  std::optional<std::size_t> overlapped(std::size_t i) const {
    const Tensor& x = local_of(given_[i]);
    for (std::size_t k = 0; k < i && x.numel() > 0; ++k) {
      const Tensor& other = local_of(given_[k]);
      if (&x.storage() == &other.storage() && !same_view(x, other) && overlap(x, other)) {
        return k;
      }
    }
    return std::nullopt;
  }

  const Tensors& given_;
  Tensors inputs_;
  std::vector<std::uint64_t> versions_;
  std::vector<std::optional<std::size_t>> overlaps_;
};

std::vector<SpecHandle> layouts_of(const Tensors& results) {
  std::vector<SpecHandle> layouts;
  for (const Tensor& x : results) {
    layouts.push_back(x.is_distributed() ? x.spec() : SpecHandle());
  }
  return layouts;
}

/// The same inputs without values; those of `parts` ranks together.
Tensors on_meta_device(const Tensors& inputs, std::int64_t parts) {
  Tensors all;
  for (const Tensor& x : inputs) {
    const auto same = std::ranges::find_if(inputs, [&](const Tensor& other) {
      return &local_of(other).storage() == &local_of(x).storage();
    });
    if (const auto first = static_cast<std::size_t>(same - inputs.begin()); first < all.size()) {
      all.push_back(all[first]);  // one tensor
      continue;
    }
    Dims shape = local_of(x).shape();
    if (!shape.empty()) {
      shape[0] *= parts;
    }
    const Tensor made = empty(shape, x.dtype(), meta);
    all.push_back(x.is_distributed() ? make_distributed(made, x.spec()) : made);
  }
  return all;
}

std::vector<bool> with_gradients(const Tensors& inputs) {
  std::vector<bool> have;
  for (const Tensor& x : inputs) {
    have.push_back(x.grad().defined());
  }
  return have;
}

/// Error: the call has given an input a gradient, which the caller may read.
void check_gradients(const Tensors& inputs, const std::vector<bool>& before) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].grad() && !before[i]) {
      fail({.thing = "record",
            .wrong = fmt::format("input {} has a gradient after the call, which no replay would "
                                 "give it",
                                 i),
            .advice = "return it as a result, and drop it within the step (x.grad() = Tensor())"});
    }
  }
}

/// The places of some objects among all. Error (input): one is not there.
template <class T>
std::vector<std::size_t> places_of(const std::vector<T*>& some, const std::vector<T*>& all) {
  std::vector<std::size_t> places;
  for (T* const one : some) {
    const auto found = std::ranges::find(all, one);
    if (found == all.end()) {
      fail_input({.thing = "compile",
                  .wrong = "the step uses a module or an optimizer that its factory has not made",
                  .advice = "make it in the factory, on the device that this is given"});
    }
    places.push_back(static_cast<std::size_t>(found - all.begin()));
  }
  return places;
}

/// A program, and what its results are for the caller.
struct Capture final : CapturedFunction::Entry {
  std::optional<Program> recorded = {};  // before passes, where calls are verified
  std::string form = {};                 // of the inputs
  std::vector<SpecHandle> layouts = {};  // of the results; null: not distributed
  StepState state = {};
  std::unique_ptr<Executor> executor = nullptr;
  StepState::Updated updated = {};

  const Program& program() const override { return executor->program(); }
  void abandon() noexcept override { executor->abandon(); }
  void release_memory() noexcept override { executor->release_memory(); }
};

}  // namespace

StepCall::StepCall(StepObjects& objects, const Tensors& inputs, StepPlan& plan)
    : objects_(objects), inputs_(&inputs), plan_(plan) {}

Number StepCall::number(const std::string& name) const {
  const std::string full_name = number_name(name);
  if (!plan_.variables().numbers.contains(full_name)) {
    not_given(name, "number");
  }
  return plan_.number(full_name);
}

double StepCall::guard(const std::string& name) const {
  const auto found = plan_.guards().find(name);
  if (found == plan_.guards().end()) {
    not_given(name, "guard");
  }
  return found->second;
}

void StepCall::note_models() {
  for (nn::Module* const module : watch_.called()) {
    objects_.add(*module);
  }
}

void StepCall::uses(nn::Module& module) { objects_.add(module); }

Tensor StepCall::gradient_norm(optim::Optimizer& optimizer, double p) {
  note_models();
  return objects_.gradient_norm(objects_.add(optimizer), p);
}

void StepCall::update(optim::Optimizer& optimizer, const Number& lr,
                      const optim::Clipping& clipping, const Number& grad_scale) {
  note_models();  // which have the names of the optimizer's parameters
  const std::size_t number = objects_.add(optimizer);
  if (!updated_.insert(number).second) {
    fail({.thing = "compiled step",
          .wrong = "the optimizer was updated before in this call",
          .advice = "make two calls"});
  }
  objects_.update(number, lr, clipping, grad_scale, plan_);
}

struct CompiledStep::State {
  CompileOptions options;
  StepBody body = nullptr;
  StepFactory make = nullptr;             // null: there is none, or it was used
  std::vector<nn::Module*> modules = {};  // made by the factory, in its order
  std::vector<optim::Optimizer*> optimizers = {};
  StepObjects objects = {};
  graph::AddedState added = {};  // by changes of programs
  std::string reads = {};
  std::int64_t calls = 0;
  std::int64_t verify = 0;  // of how many replayed calls one is verified; 0: none
  bool replayed_last = false;
  CapturedFunction function = CapturedFunction([this] { replayed_last = false; });

  explicit State(const CompileOptions& o) : options(checked(o)) {
    function.set_comparing(options.execution.compares_recordings);
    verify = options.mode ? 0 : graph::verified_every(options.execution);
  }

  StepPlan plan_of(const StepNumbers& numbers, Recorder* recorder = nullptr) const {
    StepPlan plan(recorder, numbers.guards);
    for (const auto& [name, value] : numbers.numbers) {
      plan.set_number(number_name(name), value);
    }
    plan.set_count(step_numbers::steps_begun.name, step_numbers::steps_begun.of({.done = calls}));
    objects.set_counts(plan);
    return plan;
  }

  Tensors take(const Tensors& inputs, StepPlan plan) {
    const MemoryScope scope(MemoryCategory::activation);
    StepCall call(objects, inputs, plan);
    Tensors results;
    const auto in_phase = [&] {
      run_phase(name_of(Phase::step), [&] {
        objects.begin_sums(plan.count(step_numbers::steps_begun));
        results = body(call);
        call.note_models();                  // whose plans end the call too
        objects.finish_sums(call.updated_);  // that are under way
        for (Tensor& x : results) {
          x = detached(x);
        }
        objects.before_optimizer();
      });
    };
    try {
      plan.section(SectionKind::step, [&] {
        in_phase();
        for (std::size_t i = 0; plan.recorder() != nullptr && i < results.size(); ++i) {
          plan.recorder()->output(call_output(i), local_of(results[i]));
        }
      });
    } catch (...) {
      call.note_models();
      throw;
    }
    objects.drop_gradients();
    ++calls;
    replayed_last = false;
    return results;
  }

  Tensors record(const Tensors& inputs, const StepNumbers& numbers,
                 std::optional<Recording>& recording) {
    objects.prepare_state();  // what the call makes does not outlive it
    Recorder recorder;
    const StepPlan plan = plan_of(numbers, &recorder);
    record_inputs(recorder, all_inputs(inputs));
    const std::size_t known = objects.count();
    const std::vector<Tensor> held = objects.held();
    const std::vector<bool> had_gradients = with_gradients(inputs);
    MadeTensors made;
    Tensors results;
    {
      const ModeScope scope(ModeLevel::below_distribution, made);
      results = take(inputs, plan);
    }
    objects.check_kept(held);
    check_gradients(inputs, had_gradients);
    if (objects.count() == known) {  // otherwise what was found in it was not an input
      made.check_gone(results);
      recording = recorder.finish(plan.variables());
    }
    return results;
  }

  StepInputs all_inputs(const Tensors& inputs) const {
    StepInputs all = objects.inputs(added);
    add_inputs(all, inputs);
    return all;
  }

  /// Executes a program; nothing counts it.
  Tensors execute(Capture& capture, const Tensors& inputs, const StepVariables& variables) {
    if (!std::exchange(replayed_last, false)) {
      objects.after_optimizer();  // what styles derive from parameters is an input of the program
    }
    const MemoryScope scope(MemoryCategory::activation);
    const StepInputs all = all_inputs(inputs);
    Executor& executor = *capture.executor;
    Tensors results;
    try {
      executor.begin_in_order(arranged_inputs(executor, all, true));
      run_phase("replayed step", [&] { run_section(executor, SectionKind::step, variables); });
      for (std::size_t i = 0; i < capture.layouts.size(); ++i) {
        Tensor own = ops::clone(executor.output(call_output(i)));
        results.push_back(capture.layouts[i] ? make_distributed(std::move(own), capture.layouts[i])
                                             : std::move(own));
      }
      executor.end();
    } catch (...) {
      executor.abandon();
      throw;
    }
    return results;
  }

  Tensors replay(Capture& capture, const Tensors& inputs, const StepNumbers& numbers) {
    if (capture.recorded && (function.counts().replayed + 1) % verify == 0) {
      return verified(capture, inputs, numbers);
    }
    Tensors results = execute(capture, inputs, plan_of(numbers).variables());
    objects.count_step(capture.updated);
    ++calls;
    replayed_last = true;
    return results;
  }

  /// A call by its program, and as it is written, which counts.
  Tensors verified(Capture& capture, const Tensors& inputs, const StepNumbers& numbers) {
    const auto with_outputs = [&](const Tensors& results) {
      StepInputs all = all_inputs(inputs);
      for (std::size_t i = 0; i < results.size(); ++i) {
        all.emplace(call_output(i), StepInput{.value = local_of(results[i])});
      }
      return copied_values(all);
    };
    objects.prepare_state();
    const NamedValues before = copied_values(all_inputs(inputs));
    const std::map<std::string, RandomStream> streams = random_state();
    const NamedValues replayed =
        with_outputs(execute(capture, inputs, plan_of(numbers).variables()));
    function.release_memory();
    std::vector<std::uint64_t> versions;  // a value that is restored was not written
    for (const Tensor& x : inputs) {
      versions.push_back(local_of(x).storage().version());
    }
    write_values(all_inputs(inputs), before);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      local_of(inputs[i]).storage().set_version(versions[i]);
    }
    set_random_state(streams);
    std::optional<Recording> again;
    Tensors results = record(inputs, numbers, again);
    check_same_bits(*capture.recorded, replayed, with_outputs(results), std::move(again));
    ++function.counts().verified;
    return results;
  }

  std::unique_ptr<Capture> capture_of(Program program, std::string form,
                                      std::vector<SpecHandle> layouts, StepState state) {
    auto capture = std::make_unique<Capture>();
    capture->form = std::move(form);
    capture->layouts = std::move(layouts);
    capture->state = std::move(state);
    if (verify > 0) {
      capture->recorded = program;
    }
    capture->executor = graph::make_executor(std::move(program), options.execution, &added);
    capture->updated = objects.updated_by(capture->program());
    for (auto& [name, value] : added) {
      value = ops::to_device(value, objects.device());
    }
    return capture;
  }

  /// The rank's program of a step of one rank. The mode places the parameters.
  Program placed(const Program& one_rank) {
    graph::DataParallelOptions placing{.mode = *options.mode, .mesh = options.mesh};
    objects.distribute(graph::parameter_layouts(one_rank, placing));
    objects.prepare_state();
    placing.layouts = objects.layouts();  // an optimizer may choose those of its state
    Program program;
    as_rank(current_rank(), [&] { program = lower(graph::data_parallel(one_rank, placing)); });
    return program;
  }

  /// Captures such calls of a step that the factory makes on the meta device. What that uses is at
  /// the same places among what the factory has made.
  void capture_ahead(const Tensors& inputs, const StepNumbers& numbers) {
    const std::int64_t parts = options.mode ? options.mesh.size() : 1;
    Program program;
    std::vector<SpecHandle> layouts;
    std::vector<std::size_t> models;
    std::vector<std::size_t> updated;
    on_meta(current_rank(), [&] {
      const nn::ModuleWatch made;
      const optim::OptimizerWatch made_optimizers;
      State twin(CompileOptions{.changes = {}});
      twin.body = make(meta);
      program = twin.function.capture(
          [&] { layouts = layouts_of(twin.call(on_meta_device(inputs, parts), numbers)); });
      models = places_of(twin.objects.models(), made.made());
      updated = places_of(twin.objects.optimizers(), made_optimizers.made());
    });
    for (const std::size_t place : models) {
      objects.add(*modules.at(place));
    }
    for (const std::size_t place : updated) {
      objects.add(*optimizers.at(place));
    }
    reads = reads_values(program);
    if (reads.empty()) {
      function.add(
          options.mode ? placed(program) : std::move(program),
          [&](Program whole) {
            objects.prepare_state();
            return capture_of(std::move(whole), form_of(inputs, objects), std::move(layouts),
                              objects.state().before_updates());
          },
          "before the first step");
    }
  }

  void check_taken(const std::string& why) const {
    refuse_untransformed(options.execution, "call", why);
    if (options.mode) {
      fail({.thing = "compiled step with a mode",
            .wrong = fmt::format("this call has no program ({})", why),
            .advice = "make calls of one kind, or use a plan instead of a mode"});
    }
  }

  /// After an error.
  void abandon() noexcept {
    replayed_last = false;
    objects.drop_gradients();
  }

  /// Forgets programs of models and optimizers that are gone.
  void forget_lost() {
    if (objects.is_lost()) {
      const ReplayCounts counts = function.counts();
      function.clear();
      function.counts() = counts;
      objects = StepObjects();
      replayed_last = false;
    }
  }

  Tensors call(const Tensors& inputs, const StepNumbers& numbers) {
    const std::string form = form_of(inputs, objects);
    const StepState state = objects.state();
    const auto kind_in = [&](const StepState& at) {
      return form + text_of(numbers.guards) + at.text();
    };
    Tensors results;
    const CapturedFunction::Call call{
        .misfit =
            [&](const CapturedFunction::Entry& entry) {
              const auto& capture = static_cast<const Capture&>(entry);
              if (form != capture.form) {
                return fmt::format("the inputs have another form ({})", form);
              }
              std::string why = state.misfit(capture.state, capture.updated);
              return why.empty() ? capture.executor->refusal(numbers.guards) : why;
            },
        .kind = [&] { return kind_in(state); },
        .replay =
            [&](CapturedFunction::Entry& entry) {
              results = replay(static_cast<Capture&>(entry), inputs, numbers);
            },
        .before_taking =
            [&](const std::string& why) {
              check_taken(why);
              replayed_last = false;
            },
        .take =
            [&] {
              const std::size_t known = objects.count();
              results = take(inputs, plan_of(numbers));
              return objects.count() == known ? std::string() : kind_in(objects.state());
            },
        .record =
            [&] {
              std::optional<Recording> recording;
              results = record(inputs, numbers, recording);
              return recording;
            },
        .make =
            [&](Program program) {
              return capture_of(std::move(program), form, layouts_of(results), state);
            },
        .refused = objects.held_gradient()};
    function.call(call);
    return results;
  }
};

CompiledStep::CompiledStep(StepBody step, const CompileOptions& options)
    : state_(std::make_unique<State>(options)) {
  state_->body = std::move(step);
  if (options.mode) {
    fail_input({.thing = "compile",
                .wrong = "a mode places a step that is captured before its first call",
                .advice = "pass a function that makes the step on a device"});
  }
}

CompiledStep::CompiledStep(StepFactory make, const CompileOptions& options)
    : state_(std::make_unique<State>(options)) {
  const nn::ModuleWatch modules;
  const optim::OptimizerWatch optimizers;
  state_->make = std::move(make);
  state_->body = state_->make(options.device);
  state_->modules = modules.made();
  state_->optimizers = optimizers.made();
}

CompiledStep::~CompiledStep() = default;

Tensors CompiledStep::operator()(const Tensors& inputs, const StepNumbers& numbers) {
  State& s = *state_;
  s.forget_lost();
  const std::vector<std::uint64_t> versions = s.objects.versions();
  try {
    if (s.make) {
      s.capture_ahead(inputs, numbers);
      s.make = nullptr;
    }
    const SeparateInputs separate(inputs);
    Tensors results = s.call(separate.inputs(), numbers);
    const Program* const replayed = s.replayed_last ? program() : nullptr;
    separate.write_back(replayed == nullptr ? std::vector<std::string>() : replayed->written());
    return results;
  } catch (const Error& error) {
    s.abandon();
    s.objects.rethrow_with_changes(error, versions);
  } catch (...) {
    s.abandon();
    throw;
  }
}

graph::AddedState& CompiledStep::added() { return state_->added; }
const ReplayCounts& CompiledStep::counts() const { return state_->function.counts(); }
const std::string& CompiledStep::reads() const { return state_->reads; }

const Program* CompiledStep::program() const {
  const CapturedFunction::Entry* const last = state_->function.last();
  return last == nullptr ? nullptr : &last->program();
}

void CompiledStep::release_memory() noexcept {
  state_->function.release_memory();
  state_->replayed_last = false;
}

CompiledStep compile(StepBody step, const CompileOptions& options) {
  return CompiledStep(std::move(step), options);
}
CompiledStep compile(StepFactory make, const CompileOptions& options) {
  return CompiledStep(std::move(make), options);
}

}  // namespace tessera
