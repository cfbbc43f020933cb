module;
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
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
import tessera.parallel;
import :split_batch;

// A style against one rank: on each module of a small Llama that it can be applied to.
namespace tessera::plugin_suite {
namespace {

constexpr int ranks = 2;
constexpr int steps = 2;
constexpr double tolerance = 1e-9;
constexpr double rounding_tolerance = 0.1;  // of a style that rounds to 8 bits

std::shared_ptr<nn::DecoderLM> new_model() {
  return std::make_shared<nn::DecoderLM>(nn::DecoderShape{.vocab = 12,
                                                          .dim = 16,
                                                          .layers = 2,
                                                          .heads = 4,
                                                          .kv_heads = 2,
                                                          .ffn_dim = 32,
                                                          .standard_deviation = 0.3,
                                                          .dtype = DType::f64});
}

DeviceMesh mesh_of(int size = ranks) { return DeviceMesh::make({"ranks"}, {size}); }

parallel::StyleFacts facts_of(const std::string& style) {
  parallel::Options options;
  return plugin::host().find<parallel::ParallelStyle>(style)(options)->facts();
}

using Names = std::vector<std::string>;  // of modules; "" is the model

/// The style on modules; a style without an axis beside one that uses the mesh.
std::vector<parallel::StyleEntry> entries_of(const std::string& style, const Names& on) {
  Names where;
  for (const std::string& name : on) {
    where.push_back(name.empty() ? "." : name);
  }
  const parallel::StyleFacts facts = facts_of(style);
  if (facts.most_axes > 0) {
    return {{.style = style, .axis = "ranks", .on = where}};
  }
  parallel::StyleEntry other{.style = "FSDP", .axis = "ranks", .on = {"."}};
  if (!facts.extends_gathers) {
    other.style = "SplitBatch";
    other.make = [](parallel::Options&) { return std::make_unique<SplitBatch>(); };
  }
  return {{.style = style, .on = where}, std::move(other)};
}

Tensor tokens(int step) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < 4 * 6; ++i) {
    values.push_back((i * i + 5 * i + 7 * step) % 12);
  }
  return from_values(std::span<const std::int64_t>(values), {4, 6});
}

/// The losses and the parameters of some steps of gradient descent, whole.
std::vector<double> train(nn::DecoderLM& model, parallel::ParallelPlan* plan) {
  set_seed(3);
  nn::initialize(model);
  const auto parameters = nn::all_parameters(model);
  std::vector<double> seen;
  const auto look = [&](const Tensor& x) {
    const std::vector<double> values =
        to_doubles(x.is_distributed() ? full_tensor(detached(x)) : detached(x));
    seen.insert(seen.end(), values.begin(), values.end());
  };
  parallel::GradientFinisher finisher;
  for (int step = 0; step < steps; ++step) {
    const Tensor batch =
        plan == nullptr ? tokens(step) : distribute(tokens(step), plan->batch_layout());
    const Tensor loss = model.loss()({model(batch), batch})[0];
    backward(loss);
    look(loss);
    finisher.finish(parameters);
    if (plan != nullptr) {
      plan->before_optimizer();
    }
    const NoGrad no_grad;
    for (const nn::ParameterPointer& p : parameters) {
      if (p->value.grad()) {
        look(p->value.grad());
        ops::add_(p->value, p->value.grad(), -0.01);
        p->value.grad() = Tensor();
      }
      look(p->value);
    }
    if (plan != nullptr) {
      plan->after_optimizer();
    }
  }
  return seen;
}

/// The modules that the style accepts, by name, and why it refuses the first of the others.
struct AcceptedModules {
  Names names;
  std::string refusal;
};

AcceptedModules accepted(const std::string& style) {
  AcceptedModules found;
  const auto model = new_model();
  for (const nn::Module* module : nn::all_modules(*model)) {
    const auto fresh = new_model();
    try {
      const parallel::ParallelPlan plan(*fresh, mesh_of(), entries_of(style, {module->name()}),
                                        plugin::host());
      found.names.push_back(module->name());
    } catch (const Error& error) {
      found.refusal = found.refusal.empty() ? error.what() : found.refusal;
    }
  }
  return found;
}

Names some_accepted(const std::string& style) {
  AcceptedModules found = accepted(style);
  if (found.names.empty()) {
    throw SkippedCheck{"it accepts no module of a Llama: " + found.refusal};
  }
  return std::move(found.names);
}

std::string makes_the_same_facts(const std::string& style) {
  const parallel::StyleFacts a = facts_of(style);
  const parallel::StyleFacts b = facts_of(style);
  if (a.splits_batch != b.splits_batch || a.splits_sequence != b.splits_sequence ||
      a.places_parameters != b.places_parameters || a.converts_values != b.converts_values ||
      a.wraps_forward != b.wraps_forward || a.keeps_parameters != b.keeps_parameters ||
      a.needs_split != b.needs_split || a.replaces_modules != b.replaces_modules ||
      a.divides_model != b.divides_model || a.extends_gathers != b.extends_gathers ||
      a.most_axes != b.most_axes) {
    return "two objects with the same options declare different facts";
  }
  if (a.most_axes < 0) {
    return fmt::format("most_axes must be at least 0 (got {})", a.most_axes);
  }
  if (a.splits_batch && a.splits_sequence) {
    return "it splits the batch and sequences along one axis";
  }
  return a.most_axes == 0 && (a.splits_batch || a.splits_sequence)
             ? "it splits the batch or sequences, but along no axis"
             : "";
}

std::string declares_what_it_places(const std::string& style) {
  const bool declares = facts_of(style).places_parameters;
  for (const std::string& on : some_accepted(style)) {
    const auto model = new_model();
    const parallel::ParallelPlan plan(*model, mesh_of(), entries_of(style, {on}), plugin::host());
    for (const nn::ParameterPointer& p : nn::all_parameters(*model)) {
      if (!p->value.is_meta()) {
        return fmt::format("apply() gave parameter '{}' memory; do it in materialize()", p->name);
      }
      if (parallel::placing_style(*p, 0) == style && !declares) {
        return fmt::format("it places parameter '{}', but facts() does not say places_parameters",
                           p->name);
      }
      if (parallel::placing_style(*p, 0).empty() &&
          !p->value.layout().placement(0).is_replicate()) {
        return fmt::format("parameter '{}' is {} without StyleTarget::place", p->name,
                           to_string(p->value.layout()));
      }
    }
  }
  return "";
}

/// Losses that rank 0 of so many sees when the style is on these modules. Errors: its layouts do
/// not fit.
std::vector<double> train_on(int size, const std::string& style, const Names& on) {
  std::vector<double> seen;
  collective::run_threads(size, [&](collective::World& world) {
    const auto model = new_model();
    parallel::ParallelPlan plan(*model, mesh_of(size), entries_of(style, on), plugin::host());
    plan.materialize();
    if (plan.batch_axes().empty() && plan.sequence_axes().empty()) {
      // The modules around are whole: they take the module's value in whatever layout it comes.
      for (nn::Module* const module : nn::all_modules(*model)) {
        if (std::ranges::find(on, module->name()) != on.end()) {
          parallel::redistribute_output(*module, 0, 0, Replicate());
        }
      }
    }
    std::vector<double> mine = train(*model, &plan);
    if (world.rank() == 0) {
      seen = std::move(mine);
    }
  });
  return seen;
}

/// The modules that the style is tried on: one after the other, but all together where whatever
/// mixes tokens needs it.
std::vector<Names> tried_together(const std::string& style, const parallel::StyleFacts& facts) {
  Names names = some_accepted(style);
  if (facts.splits_sequence) {
    return {std::move(names)};
  }
  std::vector<Names> one_by_one;
  for (std::string& name : names) {
    one_by_one.push_back({std::move(name)});
  }
  return one_by_one;
}

std::string computes_what_one_rank_does(const std::string& style) {
  const parallel::StyleFacts facts = facts_of(style);
  if (facts.divides_model) {
    throw SkippedCheck{
        "only the steps of a Training compute a model in stages: compare the losses of a "
        "run with it and without it"};
  }
  const double allowed = facts.rounds_by_rank ? rounding_tolerance : tolerance;
  std::vector<double> expected;
  if (facts.most_axes > 0) {
    const auto plain = new_model();
    nn::materialize(*plain);
    expected = train(*plain, nullptr);
  }
  std::string misfit;
  int ran = 0;
  for (const Names& on : tried_together(style, facts)) {
    std::vector<double> got;
    try {
      if (facts.most_axes == 0) {  // it may change what is computed: one rank has it too
        expected = train_on(1, style, on);
      }
      got = train_on(ranks, style, on);
    } catch (const Error& error) {
      misfit = misfit.empty() ? error.what() : misfit;
      continue;  // alone, its layouts do not fit the modules around
    }
    ++ran;
    const double difference = largest_difference(got, expected);
    if (difference > allowed) {
      return fmt::format(
          "on {}, losses, gradients or parameters of {} steps differ from those of one rank (by "
          "{:.1e})",
          on[0].empty() ? "the whole model" : fmt::format("module '{}'", on[0]), steps, difference);
    }
  }
  if (ran == 0) {
    throw SkippedCheck{"alone, its layouts do not fit any module of a Llama: " + misfit};
  }
  return "";
}

}  // namespace

std::vector<SuiteCheck> style_suite(const std::string& name) {
  return {{"its facts depend on its options only", [=] { return makes_the_same_facts(name); }},
          {"apply() gives no memory, and facts() says what it places",
           [=] { return declares_what_it_places(name); }},
          {"two ranks compute what one does", [=] { return computes_what_one_rank_does(name); }}};
}

}  // namespace tessera::plugin_suite
