// Random steps: what is recorded, written as text, read back and executed in any way has the bits
// of the step itself.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.plugin;
import tessera.device;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.program;
import tessera.execute;
import tessera.passes;
import tessera.capture;
import tessera.graph;

#include "devices.hpp"
#include "other_memory.hpp"
#include "random_step.hpp"

using namespace tessera;
using testing::Bits;
using testing::RandomStep;

namespace {

/// The same values, after others in their memory.
Tensor after_others(const Tensor& x) {
  const NoGrad no_grad;
  const Tensor flat = ops::reshape(x, {x.numel()});
  const Tensor both = ops::cat(std::vector<Tensor>{flat, flat});
  return ops::view(ops::narrow(both, 0, x.numel(), x.numel()), x.shape());
}

/// Inputs of the steps of one run: "a" and "d" stay from step to step, as parameters do. Some begin
/// their memory, others do not.
class Inputs {
 public:
  explicit Inputs(const RandomStep& step, Device device = cpu) : step_(step), device_(device) {
    random_stream("noise");
    set_seed(1);
  }

  std::map<std::string, Tensor> of(int number) {
    auto inputs = step_.inputs(number);
    for (auto& [name, x] : inputs) {
      x = ops::to_device(x, device_);
      if ((name[0] + number) % 2 == 0) {
        x = after_others(x);
      }
    }
    for (const auto* const name : {"a", "d"}) {
      inputs[name] = kept_.try_emplace(name, inputs[name]).first->second;
    }
    return inputs;
  }

 private:
  const RandomStep& step_;
  Device device_;
  std::map<std::string, Tensor> kept_;
};

void add_state(Bits& bits, const std::map<std::string, Tensor>& inputs) {
  for (const auto& [name, x] : inputs) {
    testing::add_bits(bits, "input " + name, x);
  }
  bits["random numbers"] = {random_stream("noise").offset};
}

Bits eager(RandomStep& step, int number, Inputs& run) {
  const auto inputs = run.of(number);
  const auto outputs = step.take(inputs, RandomStep::variables(number),
                                 [](SectionKind, const auto& body) { body(); });
  Bits bits;
  for (const auto& [name, x] : outputs) {
    testing::add_bits(bits, name, x);
  }
  add_state(bits, inputs);
  return bits;
}

Recording recorded(RandomStep& step, int number, Inputs& run, Bits& bits) {
  Recorder recorder;
  const auto inputs = run.of(number);
  for (const auto& [name, x] : inputs) {
    recorder.input(name, x);
  }
  const StepVariables variables = RandomStep::variables(number);
  const auto outputs = step.take(
      inputs, variables,
      [&](SectionKind kind, const std::function<void()>& body) { recorder.section(kind, body); });
  for (const auto& [name, x] : outputs) {
    recorder.output(name, x);
    testing::add_bits(bits, name, x);
  }
  add_state(bits, inputs);
  return recorder.finish(variables);
}

Bits executed(Executor& executor, int number, Inputs& run) {
  const auto inputs = run.of(number);
  const StepVariables variables = RandomStep::variables(number);
  executor.begin(inputs);
  executor.run(SectionKind::gradients, variables);
  executor.run(SectionKind::update, variables);
  Bits bits;
  for (const auto& [name, output] : executor.program().outputs) {
    testing::add_bits(bits, name, executor.output(name));
  }
  executor.end();
  add_state(bits, inputs);
  return bits;
}

/// The names of what differs.
std::string difference(const Bits& a, const Bits& b) {
  std::string names;
  for (const auto& [name, bits] : a) {
    if (const auto other = b.find(name); other == b.end() || other->second != bits) {
      names += " " + name;
    }
  }
  return names;
}

/// The compiler takes a second for a program.
bool is_compiled(unsigned seed) { return seed % 100 == 0; }

/// The CPU, and for some seeds a device of the rank whose queues run late, in one order or another.
std::vector<Device> devices_of(unsigned seed) {
  std::vector<Device> devices = {cpu};
  if (seed % 4 == 0) {
    devices.push_back(testing::adversary(static_cast<int>(seed / 4 % 3) + current_rank()));
  }
  return devices;
}

/// "" or what differs from `expected`, by step.
std::string check_executors(const Program& program, unsigned seed, const RandomStep& step,
                            const std::vector<Bits>& expected) {
  for (const std::string& name : graph::executor_names()) {
    if (name == "compiled" && !is_compiled(seed)) {
      continue;
    }
    const auto executor = graph::make_executor(program, {.executor = name});
    for (const Device device : devices_of(seed)) {
      Inputs inputs(step, device);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const Bits bits = executed(*executor, static_cast<int>(i), inputs);
        if (bits != expected[i]) {
          return name + " on " + to_string(device) + " differs in step " + std::to_string(i) + ":" +
                 difference(expected[i], bits) + "\n" + program.to_text();
        }
      }
    }
  }
  return {};
}

/// Built-in ones, and those of the shipped plugins.
std::vector<std::string> all_passes() {
  std::vector<std::string> names = {"buckets", "join_lists", "split_lists"};
  for (const graph::Change& pass : graph::built_in_passes()) {
    names.push_back(pass.name);
  }
  return names;
}

/// One pass, and several in any order, of the same names on all ranks.
std::vector<std::vector<std::string>> passes_of(unsigned seed) {
  static const std::vector<std::string> names = all_passes();
  std::mt19937 random(seed);
  std::vector<std::vector<std::string>> all(2);
  const auto add = [&](std::vector<std::string>& passes) {
    const graph::Change pass = graph::find_change(names[random() % names.size()]);
    passes.insert(passes.end(), pass.facts.after.begin(), pass.facts.after.end());
    passes.push_back(pass.name);
  };
  add(all[0]);
  for (int i = 0; i < 6; ++i) {
    add(all[1]);
  }
  return all;
}

/// Random budgets of memory between the program's need and its least, with copies that cost little
/// or much: what fits has the bits of the step, and needs no more.
std::string check_budgets(const Program& program, unsigned seed, const RandomStep& step,
                          const std::vector<Bits>& expected) {
  Program prepared = program;
  graph::run_passes(prepared, std::vector<std::string>{"lifetimes"});
  const std::int64_t whole = graph::planned_bytes(prepared);
  const double rate = seed % 2 == 0 ? 1e12 : 1e8;
  for (const int percent : {95, 80, 60}) {
    Program fitted = prepared;
    try {
      const graph::MemoryFit fit = graph::fit_memory(
          fitted, whole * percent / 100, {.offloading = graph::OffloadRates{rate, rate}});
      if (fit.bytes > whole * percent / 100 || fit.bytes != graph::planned_bytes(fitted)) {
        return "the budget is not kept\n" + fitted.to_text();
      }
    } catch (const Error& error) {
      if (std::string_view(error.what()).find("at least") == std::string_view::npos) {
        return error.what() + ("\n" + prepared.to_text());
      }
      return {};
    }
    const auto memory = std::make_shared<testing::CountedMemory>();
    for (const char* name : {"interpreter", "planned"}) {
      const auto executor = graph::make_executor(fitted, {.executor = name, .elsewhere = memory});
      Inputs inputs(step);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const Bits bits = executed(*executor, static_cast<int>(i), inputs);
        if (bits != expected[i]) {
          return std::string(name) + " differs within a budget:" + difference(expected[i], bits) +
                 "\n" + fitted.to_text();
        }
      }
    }
  }
  return {};
}

/// "" or what differs.
std::string check_seed(unsigned seed, const std::optional<ops::GroupArgument>& group = {}) {
  RandomStep step(seed, group);
  constexpr int steps = 5;
  std::vector<Bits> expected;
  Inputs of_steps(step);
  for (int i = 0; i < steps; ++i) {
    expected.push_back(eager(step, i, of_steps));
  }
  Inputs of_recordings(step);
  Bits first;
  Bits second;
  const Recording one = recorded(step, 0, of_recordings, first);
  const Recording two = recorded(step, 1, of_recordings, second);
  if (first != expected[0] || second != expected[1]) {
    return "a recorded step differs:" + difference(first, expected[0]) +
           difference(second, expected[1]);
  }
  const Program program = program_of(one, two);
  const std::string text = program.to_text();
  const Program again = Program::parse(text);
  if (again.to_text() != text) {
    return "the text is not read back exactly\n" + text;
  }
  if (std::string problem = check_executors(again, seed, step, expected); !problem.empty()) {
    return problem;
  }
  if (const std::string problem = check_budgets(again, seed, step, expected); !problem.empty()) {
    return problem;
  }
  for (const std::vector<std::string>& passes : passes_of(seed)) {
    Program improved = again;
    const auto in_words = [&] {
      std::string names;
      for (const std::string& name : passes) {
        names += " " + name;
      }
      return "after the passes" + names + ": ";
    };
    try {
      graph::run_passes(improved, passes);
    } catch (const Error& error) {
      return in_words() + error.what() + "\n" + text;
    }
    if (const std::string problem = check_executors(improved, seed, step, expected);
        !problem.empty()) {
      return in_words() + problem + "before:\n" + text;
    }
  }
  return {};
}

void check_seeds(unsigned first, unsigned count) {
  for (unsigned seed = first; seed < first + count; ++seed) {
    INFO("seed " << seed);
    std::string problem;
    REQUIRE_NOTHROW(problem = check_seed(seed));
    REQUIRE(problem == "");
  }
}

void check_seeds_of_ranks(unsigned first, unsigned count, int ranks) {
  for (unsigned seed = first; seed < first + count; ++seed) {
    INFO("seed " << seed << ", " << ranks << " ranks");
    REQUIRE_NOTHROW(collective::run_threads(ranks, [&](collective::World& world) {
      const std::string problem = check_seed(seed, ops::GroupArgument::of(world.everyone()));
      testing::check(problem.empty(), problem);
    }));
  }
}

}  // namespace

// Most of the time goes into compiling their chains: a clean checkout has none of them.
TEST_CASE("random steps are executed with the bits of the step") { check_seeds(1, 100); }

TEST_CASE("random steps of several ranks are executed with the bits of the step") {
  check_seeds_of_ranks(1, 50, 2);
}

TEST_CASE("random steps are executed with the bits of the step: many", "[.long]") {
  check_seeds(101, 5899);
}

TEST_CASE("random steps of several ranks are executed with the bits of the step: many", "[.long]") {
  check_seeds_of_ranks(51, 2949, 2);
  check_seeds_of_ranks(1000, 1000, 3);
}
