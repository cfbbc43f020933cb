module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>
module tessera.plugin_suite;

import tessera.base;
import tessera.tensor;
import tessera.collective;
import tessera.program;
import tessera.execute;
import tessera.passes;

// A change of captured steps: its facts are those of its functions. Of one that keeps bits: what it
// changes is right, computes the same, and is decided alike on all ranks.
namespace tessera::plugin_suite {
namespace {

constexpr int ranks = 2;

/// Views of views, views that nothing uses, writes through views, equal calls, dead ones, memory
/// that is released and restored, lists.
constexpr std::string_view one_rank = R"(input %0: f32[2, 4] = x
input %1: f32[4] = w
input %2: f32[4] = m
section gradients
  %3: f32[4, 2] = transpose(%0; dim0=0, dim1=1)
  %4: f32[4] = memory.alias(%0; strides=[1], offset=4)
  %5: f32[2] = memory.alias(%4; strides=[1], offset=2)
  %6: f32[2] = memory.alias(%0; strides=[1], offset=6)
  %7: f32[4] = exp(%4)
  %8: f32[4] = exp(%4)
  %9: f32[4] = neg(%7)
  %10: f32[2] = mul(%5, %6)
  %11: f32[4] = memory.empty()
  copy_(%11, %8)
  mul_scalar_(%11; value=0.5)
  %12: f32[4] = add(%7, %11; alpha=1) {alpha=$scale}
  memory.release(%11)
  memory.restore(%11)
  copy_(%11, %12)
  %13: f32[2] = memory.alias(%11; strides=[1], offset=1)
  mul_scalar_(%13; value=3)
section update
  foreach_mul_(%1; value=0.5)
  foreach_mul_(%2; value=0.5)
  foreach_add_(%1, %2, %12, %11; alpha=0.25)
  %14: f32[4] = neg(%11)
  %15: f32[2] = memory.alias(%0; strides=[1], offset=1)
output %10 = y
output %12 = z
)";

/// Parameters that are gathered, released and gathered again, gradients that are reduced in several
/// calls, an optimizer over lists.
constexpr std::string_view two_ranks = R"(input %0: f32[4] parameter = w
input %1: f32[4] = m
input %2: f32[4] = v
input %3: f32[8] = x
section gradients
  %4: f32[8] = memory.empty()
  all_gather_into(%4, %0; group=ranks 0 1, identity=1)
  wait(%4)
  %5: f32[8] = mul(%3, %4)
  memory.release(%4)
  %6: f32[8] = exp(%5)
  %7: f32[8] = exp(%5)
  memory.restore(%4)
  all_gather_into(%4, %0; group=ranks 0 1, identity=1)
  wait(%4)
  %8: f32[8] = mul(%6, %4)
  %9: f32[8] = add(%8, %7; alpha=1)
  %10: f32[4] = memory.empty()
  reduce_scatter_into(%10, %9; op=sum, group=ranks 0 1, identity=2)
  %11: f32[4] = neg(%0)
  %12: f32[4] = exp(%0)
  wait(%10)
  wait_readers(%9; group=ranks 0 1)
  all_reduce_coalesced_(%11; op=sum, group=ranks 0 1, identity=3, step=0)
  %13: f32[4] = exp(%1)
  all_reduce_coalesced_(%12; op=sum, group=ranks 0 1, identity=4, step=0)
  wait(%11)
  wait(%12)
  wait_readers(%0; group=ranks 0 1)
section update
  foreach_add_(%1, %2, %11, %13; alpha=0.25)
  foreach_add_(%0, %12, %10, %11; alpha=0.5)
output %12 = y
)";

struct Sample {
  std::string name;
  std::string_view body;
  int ranks = 1;

  Program program(int rank) const {
    return Program::parse(
        fmt::format("tessera program 2\nrank {}\nnumber scale\n{}end\n", rank, body), name);
  }
};

std::vector<Sample> samples() {
  return {{"a program of one rank", one_rank, 1}, {"a program of two ranks", two_ranks, ranks}};
}

/// A change after those that must have run before it.
void add_with_prerequisites(const std::string& name, std::vector<std::string>& into) {
  for (const std::string& before : graph::find_change(name).facts.after) {
    add_with_prerequisites(before, into);
  }
  if (std::ranges::find(into, name) == into.end()) {
    into.push_back(name);
  }
}

/// The program after the change, which is verified and compared there.
Program changed(const std::string& name, const Sample& sample, int rank) {
  trying(sample.name);
  std::vector<std::string> passes;
  add_with_prerequisites(name, passes);
  Program program = sample.program(rank);
  graph::run_passes(program, passes);
  return program;
}

using Bits = std::map<std::string, std::vector<double>>;

template <class Executes>
Bits bits_of(const Program& program) {
  Executes executor(program);
  std::map<std::string, Tensor> inputs;
  for (const auto& [name, input] : program.inputs) {
    const int number = input.tensor.number;
    const Dims& shape = program.tensors[input.tensor].shape;
    std::vector<float> values;
    for (std::int64_t i = 0; i < shape.product(); ++i) {
      values.push_back(0.125F * static_cast<float>((i * 7 + number * 3 + program.rank * 5) % 13) -
                       0.75F);
    }
    inputs[name] = from_values(std::span<const float>(values), shape);
  }
  executor.begin(inputs);
  for (const Section& section : program.sections) {
    executor.run(section.kind, {.numbers = {{"scale", 0.375}}});
  }
  Bits bits;
  for (const auto& [name, number] : program.outputs) {
    bits[name] = to_doubles(executor.output(name));
  }
  executor.end();
  for (const auto& [name, x] : inputs) {
    bits["input " + name] = to_doubles(x);
  }
  return bits;
}

std::string is_described(const std::string& name) {
  std::vector<std::string> order;
  add_with_prerequisites(name, order);  // all are found, and their facts fit
  return graph::find_change(name).about.empty()
             ? "it has no description (Change::about), which documentation and reports show"
             : "";
}

std::string keeps_values(const std::string& name) {
  for (const Sample& sample : samples()) {
    changed(name, sample, 0);
  }
  return "";
}

std::string changes_something(const std::string& name) {
  for (const Sample& sample : samples()) {
    if (changed(name, sample, 0).to_text() != sample.program(0).to_text()) {
      return "";
    }
  }
  throw SkippedCheck{"it changes none of the suite's programs"};
}

/// The text without the line of the rank.
std::string text_of_all_ranks(const Program& program) {
  Program same = program;
  same.rank = 0;
  return same.to_text();
}

std::string decides_alike(const std::string& name) {
  for (const Sample& sample : samples()) {
    const std::string first = text_of_all_ranks(changed(name, sample, 0));
    for (int rank = 0; rank < sample.ranks; ++rank) {
      if (text_of_all_ranks(changed(name, sample, rank)) != first) {
        return fmt::format("{}: equal programs are changed in different ways (rank {})",
                           sample.name, rank);
      }
    }
  }
  return "";
}

std::string executes_the_same(const std::string& name) {
  std::string problem;
  std::mutex mutex;
  for (const Sample& sample : samples()) {
    const auto compare = [&](int rank) {
      const Bits expected = bits_of<Replay>(sample.program(rank));
      const Program program = changed(name, sample, rank);
      const bool same = bits_of<Replay>(program) == expected &&
                        bits_of<graph::PlannedExecutor>(program) == expected;
      const std::lock_guard lock(mutex);
      if (!same) {
        problem = fmt::format("{}: outputs or inputs have other bits than without the change",
                              sample.name);
      }
    };
    collective::run_threads(sample.ranks, [&](collective::World& world) { compare(world.rank()); });
  }
  return problem;
}

}  // namespace

std::vector<SuiteCheck> change_suite(const std::string& name) {
  std::vector<SuiteCheck> checks = {
      {"it is described, and its facts fit its functions", [=] { return is_described(name); }}};
  bool is_pass = true;
  try {
    is_pass = graph::is_pass(graph::find_change(name));
  } catch (const Error&) {
    is_pass = true;  // what cannot be found fails each check
  }
  if (is_pass) {
    checks.insert(
        checks.end(),
        {{"programs after it are right and have the same values",
          [=] { return keeps_values(name); }},
         {"it changes a program", [=] { return changes_something(name); }},
         {"it decides alike each time and on all ranks", [=] { return decides_alike(name); }},
         {"executed programs leave the same bits", [=] { return executes_the_same(name); }}});
  }
  return checks;
}

}  // namespace tessera::plugin_suite
