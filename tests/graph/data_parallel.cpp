// The step of one rank as a data parallel step, in each mode: golden programs of a rank, counted
// collectives, and the numbers of one rank.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.execute;
import tessera.capture;
import tessera.graph;

#include "../dtensor/ranks.hpp"

using namespace tessera;
using dtensor_test::check;
using dtensor_test::contains;
using dtensor_test::error_of;
using dtensor_test::on_ranks;
using graph::DataParallelMode;

namespace {

using Named = std::map<std::string, Tensor>;
using Counts = std::map<std::string, std::int64_t>;

/// A step of one rank: plain tensors by the names of inputs, and what it computes of them.
struct OneRankStep {
  std::map<std::string, Dims> inputs;
  std::function<Tensor(const Named&)> loss;
  /// Parameters are updated by AdamW, with the states "optimizer.m.NAME" and "optimizer.v.NAME".
  bool updates = false;
  /// A second model's loss, after the update of the first one; its parameters are those whose names
  /// begin with "parameter.second". Null: there is none.
  std::function<Tensor(const Named&)> second = nullptr;
};

Tensor filled_with(const Dims& shape, double first, double scale) {
  const Tensor x = empty(shape, DType::f32);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<float>()[i] = static_cast<float>(std::sin(first + 0.7 * static_cast<double>(i)) * scale);
  }
  return x;
}

Named inputs_of(const OneRankStep& step, double first) {
  Named all;
  for (const auto& [name, shape] : step.inputs) {
    all[name] = name.starts_with("optimizer.") ? zeros(shape) : filled_with(shape, first++, 0.5);
  }
  return all;
}

bool is_parameter(const std::string& name) { return name.starts_with("parameter."); }

Role role_of(const std::string& name) {
  return is_parameter(name)               ? Role::parameter
         : name.starts_with("rows.")      ? Role::rows
         : name.starts_with("optimizer.") ? Role::optimizer_state
                                          : Role::other;
}

bool is_second(const std::string& name) { return name.starts_with("parameter.second"); }

/// Updates the parameters of one of the two models.
void update(const Named& leaves, bool second, double lr, std::int64_t step) {
  std::vector<Tensor> operands;
  const auto add = [&](const std::string& prefix) {
    for (const auto& [name, leaf] : leaves) {
      if (is_parameter(name) && is_second(name) == second) {
        operands.push_back(prefix.empty()       ? detached(leaf)
                           : prefix == "grad"   ? leaf.grad()
                           : prefix == "absent" ? Tensor()
                                                : leaves.at(prefix + name.substr(10)));
      }
    }
  };
  add("");
  add("grad");
  add("optimizer.m.");
  add("optimizer.v.");
  add("absent");
  const Op& op = find_op("adamw_");
  call(op, operands,
       ops::AdamStep{.lr = Number::variable("lr", lr),
                     .beta1 = 0.9,
                     .beta2 = 0.95,
                     .eps = 1e-08,
                     .weight_decay = 0.1,
                     .grad_scale = 1,
                     .step = Count::variable("step", step)});
}

Recording recorded_once(const OneRankStep& step, double lr, std::int64_t count) {
  Named leaves = inputs_of(step, 1);
  random_stream("dropout");
  const StepVariables variables{
      .numbers = {{"lr", lr}}, .counts = {{"step", count}}, .streams = random_state()};
  Recorder recorder;
  for (auto& [name, leaf] : leaves) {
    if (!name.starts_with("optimizer.")) {
      leaf.set_requires_grad();
    }
    recorder.input(name, leaf, role_of(name));
  }
  recorder.section(SectionKind::step, [&] {
    Tensor loss;
    run_phase("forward", [&] { loss = step.loss(leaves); });
    backward(loss);
    recorder.output("loss", loss);
    const auto give_gradients = [&](bool second) {
      for (const auto& [name, leaf] : leaves) {
        if (leaf.requires_grad() && is_second(name) == second) {
          recorder.gradient("gradient." + (is_parameter(name) ? name.substr(10) : name),
                            leaf.grad(), name);
        }
      }
    };
    give_gradients(false);
    const auto updates = [&](bool second) {
      const NoGrad no_grad;
      run_phase("optimizer", [&] { update(leaves, second, lr, count); });
    };
    if (step.updates) {
      updates(false);
    }
    if (step.second) {
      Tensor second;
      run_phase("forward", [&] { second = step.second(leaves); });
      backward(second);
      recorder.output("second", second);
      give_gradients(true);
      updates(true);
    }
  });
  return recorder.finish(variables);
}

/// The program of one rank.
Program recorded(const OneRankStep& step) {
  set_seed(3);
  const Recording first = recorded_once(step, 0.5, 1);
  return program_of(first, recorded_once(step, 0.25, 2));
}

Program placed(const Program& program, DataParallelMode mode, int ranks, bool golden = false) {
  return graph::data_parallel(program, {.mode = mode,
                                        .mesh = DeviceMesh::make({"data"}, {ranks}),
                                        .gathers_again = !golden,
                                        .reduces_outputs = !golden});
}

Counts collectives_of(const Program& program) {
  Counts calls;
  for (const graph::CollectiveCount& count : graph::statistics_of(program).collectives) {
    calls[count.op + " in " + std::string(name_of(count.phase))] += count.calls;
  }
  return calls;
}

std::string in_words(const Counts& counts) {
  std::string text;
  for (const auto& [name, count] : counts) {
    text += name + ": " + std::to_string(count) + "; ";
  }
  return text;
}

void is_golden(const std::string& name, const std::string& now) {
  INFO(name << ": write it with TESSERA_WRITE_GOLDEN_GRAPHS=1 build/release/bin/test_graph "
               "'[golden]'");
  const std::string path = std::string(TESSERA_GOLDEN_GRAPHS) + "/" + name + ".txt";
  if (std::getenv("TESSERA_WRITE_GOLDEN_GRAPHS") != nullptr) {
    std::ofstream(path) << now;
  }
  std::ifstream file(path);
  std::ostringstream stored;
  stored << file.rdbuf();
  CHECK(stored.str() == now);
}

/// Inputs and outputs of a program after it was executed once.
Named executed(const Program& program, Named inputs, const StepVariables& variables) {
  Replay replay(program);
  replay.begin(inputs);
  replay.run(SectionKind::step, variables);
  for (const auto& [name, number] : program.outputs) {
    inputs[name] = deep_copy(replay.output(name));
  }
  replay.end();
  return inputs;
}

/// This rank's parts of inputs, as the placed program has them.
Named parts_of(const Program& above, const Named& whole) {
  Named parts;
  for (const auto& [name, input] : above.inputs) {
    const Spec& spec = *above.tensors[input.tensor].spec;
    parts[name] = deep_copy(distribute(whole.at(name), spec.layout).local());
  }
  return parts;
}

void close(const std::vector<double>& got, const std::vector<double>& expected,
           const std::string& name) {
  check(got.size() == expected.size(), name + " has another size");
  for (std::size_t i = 0; i < got.size(); ++i) {
    check(std::fabs(got[i] - expected[i]) <= 2e-5 * (1 + std::fabs(expected[i])),
          name + ": " + std::to_string(got[i]) + " instead of " + std::to_string(expected[i]));
  }
}

/// Some steps on this rank, and on one rank: the same values of all inputs and outputs.
void same_steps(const OneRankStep& step, const Program& program, const Program& above, int steps) {
  const Program mine = lower(above);
  check(Program::parse(above.to_text()).to_text() == above.to_text(), "the text reads back");
  graph::verify(mine);
  Named whole = inputs_of(step, 1);
  Named parts = parts_of(above, whole);
  Program one = program;
  one.rank = current_rank();
  for (int n = 1; n <= steps; ++n) {
    StepVariables variables{.numbers = {{"lr", 0.02 / n}}, .counts = {{"step", n}}};
    for (const auto& [name, drawn] : program.draws) {
      variables.streams[name] = {.seed = 3, .stream = random_stream(name).stream, .offset = 8U * n};
    }
    const Named expected = executed(one, whole, variables);
    const Named got = executed(mine, parts, variables);
    for (const auto& [name, x] : got) {
      const auto input = above.inputs.find(name);
      const TensorIndex tensor =
          input == above.inputs.end() ? above.outputs.at(name) : input->second.tensor;
      const Spec& spec = *above.tensors[tensor].spec;
      close(to_doubles(x), dtensor_test::part_of(expected.at(name), spec.layout), name);
    }
  }
}

const OneRankStep product = {
    .inputs = {{"rows.x", {8, 4}}, {"parameter.w", {4, 6}}}, .loss = [](const Named& leaves) {
      const Tensor y = ops::mm(leaves.at("rows.x"), leaves.at("parameter.w"));
      return ops::sum(ops::mul(y, y));
    }};

Tensor two_layers(const Named& leaves, bool drops) {
  const Tensor up =
      ops::add(ops::mm(leaves.at("rows.x"), ops::transpose(leaves.at("parameter.up"), 0, 1)),
               leaves.at("parameter.bias"));
  const Tensor inner = ops::silu(up);
  const Tensor y = ops::mm(drops ? ops::dropout(inner, 0.25, random_stream("dropout")) : inner,
                           leaves.at("parameter.down"));
  return ops::sum(ops::mul(y, y));
}

OneRankStep two_layers_step(bool drops, std::int64_t rows = 8) {
  OneRankStep step{.inputs = {{"rows.x", {rows, 4}}},
                   .loss = [drops](const Named& leaves) { return two_layers(leaves, drops); },
                   .updates = true};
  const std::map<std::string, Dims> shapes = {{"up", {12, 4}}, {"bias", {12}}, {"down", {12, 4}}};
  for (const auto& [name, shape] : shapes) {
    step.inputs["parameter." + name] = shape;
    step.inputs["optimizer.m." + name] = shape;
    step.inputs["optimizer.v." + name] = shape;
  }
  return step;
}

}  // namespace

TEST_CASE("the product of a batch with a parameter, in each mode", "[golden][data_parallel]") {
  const std::vector<std::pair<std::string, Counts>> modes = {
      {"expand", {}},
      {"replicate", {{"all_reduce_coalesced_ in backward", 1}}},
      {"fully_shard", {{"all_gather_into in forward", 1}, {"reduce_scatter_into in backward", 1}}}};
  const Program program = recorded(product);
  for (const auto& [name, collectives] : modes) {
    for (const int ranks : {2, 4}) {
      std::string text;
      on_ranks(ranks, [&](int) {
        const DataParallelMode mode = graph::data_parallel_mode(name);
        same_steps(product, program, placed(program, mode, ranks), 1);
        const Program above = placed(program, mode, ranks, true);
        const Program mine = lower(above);
        const Counts counts = collectives_of(mine);
        check(counts == collectives,
              "expected " + in_words(collectives) + "got " + in_words(counts) + mine.to_text());
        for (const char* needless : {"split", "cat", "detach"}) {
          check(!graph::statistics_of(mine).calls.contains(needless), std::string(needless));
        }
        const Counts with_loss = collectives_of(lower(placed(program, mode, ranks)));
        check(with_loss.contains("all_reduce in ") && with_loss.at("all_reduce in ") >= 1,
              "the loss is reduced: " + in_words(with_loss));
        check(with_loss.contains("all_gather_into in backward") == (name == "fully_shard"),
              "a sharded parameter is gathered again: " + in_words(with_loss));
        if (current_rank() == 0) {
          text = mine.to_text();
        }
      });
      is_golden("data-parallel-" + name + "-" + std::to_string(ranks), text);
    }
  }
}

TEST_CASE("steps of two layers with AdamW and dropout have the numbers of one rank in each mode",
          "[data_parallel]") {
  for (const bool drops : {false, true}) {
    const OneRankStep step = two_layers_step(drops);
    const Program program = recorded(step);
    for (const char* mode : {"expand", "replicate", "fully_shard", "default"}) {
      for (const int ranks : {1, 2, 4}) {
        INFO(mode << " on " << ranks);
        on_ranks(ranks, [&](int) {
          const Program above = placed(program, graph::data_parallel_mode(mode), ranks);
          same_steps(step, program, above, 20);
        });
      }
    }
  }
}

TEST_CASE("the default mode replicates what is small beside the activations", "[data_parallel]") {
  // Forward keeps y, the sum before silu and silu's result for backward: 4 + 12 + 12 numbers a row,
  // 28,672 bytes in all. 1/16 of a rank's half are 896 bytes. The bias with its gradient and two
  // states has 192 bytes, each matrix 768.
  const auto layouts = [](std::int64_t rows) {
    const Program above = graph::data_parallel(
        recorded(two_layers_step(false, rows)),
        {.mode = graph::data_parallel_mode("default"), .mesh = DeviceMesh::make({"data"}, {2})});
    std::string text;
    for (const auto& [name, input] : above.inputs) {
      text += name + to_string(above.tensors[input.tensor].spec->layout) + " ";
    }
    return text;
  };
  CHECK(layouts(256) ==
        "optimizer.m.bias[Replicate] optimizer.m.down[Shard(0)] optimizer.m.up[Shard(0)] "
        "optimizer.v.bias[Replicate] optimizer.v.down[Shard(0)] optimizer.v.up[Shard(0)] "
        "parameter.bias[Replicate] parameter.down[Shard(0)] parameter.up[Shard(0)] "
        "rows.x[Shard(0)] ");
  CHECK_FALSE(contains(layouts(512), "parameter.up[Shard(0)]"));
  CHECK(contains(layouts(8), "parameter.bias[Shard(0)]"));
}

TEST_CASE("what no mode can place is refused", "[data_parallel]") {
  const auto refused = [](const Program& program, int ranks) {
    return error_of([&] { placed(program, DataParallelMode::fully_shard, ranks); });
  };
  CHECK(refused(recorded(product), 3) ==
        "data_parallel: input 'rows.x' cannot be split into 3 equal parts (expected a multiple of "
        "3 rows, got [8, 4])");
  const auto program_of_text = [](const std::string& body) {
    return Program::parse(
        "tessera program 2\nrank 0\ninput rows 0 %0: f32[4, 4] = rows.x\nsection step\n" + body +
        "end\n");
  };
  const std::string aliased =
      refused(program_of_text(
                  "  %1: f32[2, 4] = memory.alias(%0; strides=[4, 1], offset=4) @ forward in a\n"),
              2);
  CHECK(contains(aliased,
                 "data_parallel: section 'step', instruction 1 (%1: f32[2, 4] = "
                 "memory.alias(%0; strides=[4, 1], offset=4) @ forward in a): "));
  CHECK(contains(aliased, "its memory is addressed without an operator"));
  CHECK(contains(refused(program_of_text("  host.check(%0; 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, "
                                         "1, 1, 1)\n"),
                         2),
                 "the host has read a value"));
  CHECK(contains(refused(program_of_text("  all_reduce_(%0; op=sum, group=ranks 0)\n"), 2),
                 "it communicates"));
  CHECK(contains(refused(program_of_text("  %1: f32[4, 4] = dropout(%0; p=0.5, numbers=seed=1 "
                                         "stream=2 offset=0 run=4 stride=16, whole=none)\n"),
                         2),
                 "rows of one of several micro-batches"));
  Program gradient = program_of_text("output %0 = gradient.y\n");
  gradient.gradients["gradient.y"] = "y";
  CHECK(
      contains(refused(gradient, 2), "'gradient.y' is the gradient of 'y' (expected an output of"));
  const Program above = placed(recorded(product), DataParallelMode::expand, 2);
  CHECK(contains(refused(above, 2), "the program has distributed tensors"));
  CHECK(contains(error_of([&] { graph::data_parallel(recorded(product), {}); }),
                 "there is no mesh (expected one along whose axes the batch is split)"));
  CHECK(contains(error_of([] { graph::data_parallel_mode("shard"); }),
                 "there is no mode 'shard' (expected expand, replicate, fully_shard or default)"));
}

TEST_CASE("steps of two micro-batches reduce each gradient once", "[data_parallel]") {
  OneRankStep step = two_layers_step(false);
  step.inputs["rows.y"] = {4, 4};
  step.loss = [](const Named& leaves) {
    Named second = leaves;
    second["rows.x"] = leaves.at("rows.y");
    const Tensor first = two_layers(leaves, false);
    backward(first);
    return two_layers(second, false);
  };
  const Program program = recorded(step);
  on_ranks(2, [&](int) {
    for (const char* name : {"replicate", "fully_shard"}) {
      for (const bool alone : {false, true}) {
        const Program above =
            graph::data_parallel(program, {.mode = graph::data_parallel_mode(name),
                                           .mesh = DeviceMesh::make({"data"}, {2}),
                                           .group_bytes = alone ? 1 : 0});
        same_steps(step, program, above, 3);
        Counts counts = collectives_of(lower(above));
        std::int64_t sums = 0;
        for (const char* phase : {" in backward", " in forward"}) {
          for (const char* op :
               {"all_reduce", "all_reduce_coalesced_", "reduce_scatter", "reduce_scatter_into"}) {
            sums += counts[op + std::string(phase)];
          }
        }
        check(sums == (alone ? 3 : 1), "sums of each parameter or of all: " + in_words(counts));
      }
    }
  });
}

TEST_CASE("on a mesh of several axes, the last one shards and all of them split the batch",
          "[data_parallel]") {
  const OneRankStep step = two_layers_step(true);
  const Program program = recorded(step);
  for (const char* mode : {"expand", "replicate", "fully_shard", "default"}) {
    for (const std::int64_t group_bytes : {0, 1}) {
      INFO(mode << " " << group_bytes);
      on_ranks(4, [&](int) {
        const Program above =
            graph::data_parallel(program, {.mode = graph::data_parallel_mode(mode),
                                           .mesh = DeviceMesh::make({"copy", "shard"}, {2, 2}),
                                           .group_bytes = group_bytes});
        same_steps(step, program, above, 8);
        Counts counts = collectives_of(lower(above));
        const std::int64_t sums = group_bytes == 0 ? 1 : 3;
        if (mode == std::string("fully_shard")) {
          check(counts["reduce_scatter_into in backward"] == sums &&
                    counts["all_gather_into in forward"] == sums,
                "gathered and reduced along the last axis: " + in_words(counts));
        }
      });
    }
  }
}

TEST_CASE("the gather of a group is issued before the group ahead of it is used",
          "[data_parallel]") {
  const Program program = recorded(two_layers_step(false));
  on_ranks(2, [&](int) {
    const Program mine =
        lower(graph::data_parallel(program, {.mode = DataParallelMode::fully_shard,
                                             .mesh = DeviceMesh::make({"data"}, {2}),
                                             .group_bytes = 1}));
    // Per pass over the model: issue 1, issue 2, wait 1, work, issue 3, wait 2, work, wait 3. A sum
    // is waited for only when the next one is issued.
    std::set<TensorIndex> gathers;  // in progress, by the tensors that are waited for
    std::set<TensorIndex> sums;
    std::size_t most = 0;
    int during_gathers = 0;
    int during_sums = 0;
    bool readers_are_done = false;
    for (const Instruction& i : mine.sections[0].instructions) {
      if (i.op == nullptr) {
        continue;
      }
      if (i.op->issues) {
        (i.op->communicates == collective::CallKind::all_gather ? gathers : sums).insert(i.in[0]);
      } else if (i.op->completes) {
        gathers.erase(i.in[0]);
        sums.erase(i.in[0]);
      }
      most = std::max(most, gathers.size());
      during_gathers += !gathers.empty() && i.op->name == "mm" ? 1 : 0;
      during_sums += !sums.empty() && i.op->name == "mm" ? 1 : 0;
      readers_are_done = readers_are_done || i.op->name == "wait_readers";
      check(i.op->name != "adamw_" || readers_are_done, "peers may read what is written");
    }
    check(gathers.empty() && sums.empty(), "all is waited for");
    check(most == 2, "two gathers are in progress at once");
    check(during_gathers >= 2, "products are computed while parameters are gathered");
    check(during_sums >= 1, "products are computed while gradients are summed");
  });
}

TEST_CASE("a model that is trained after another one's update is gathered and summed as that one",
          "[data_parallel]") {
  OneRankStep step = two_layers_step(false);
  for (const char* name : {"up", "down"}) {
    for (const char* prefix : {"parameter.second.", "optimizer.m.second.", "optimizer.v.second."}) {
      step.inputs[prefix + std::string(name)] = {12, 4};
    }
  }
  // The second model learns from the first one's updated weights.
  step.second = [](const Named& leaves) {
    const Tensor learnt = [&] {
      const NoGrad no_grad;
      return ops::mm(leaves.at("rows.x"), ops::transpose(leaves.at("parameter.up"), 0, 1));
    }();
    const Tensor inner = ops::silu(
        ops::mm(leaves.at("rows.x"), ops::transpose(leaves.at("parameter.second.up"), 0, 1)));
    const Tensor y = ops::sub(inner, learnt);
    return ops::sum(ops::mul(ops::mm(y, leaves.at("parameter.second.down")), leaves.at("rows.x")));
  };
  const Program program = recorded(step);
  for (const char* mode : {"expand", "replicate", "fully_shard", "default"}) {
    for (const std::int64_t group_bytes : {0, 1}) {
      INFO(mode << " " << group_bytes);
      on_ranks(2, [&](int) {
        const Program above =
            graph::data_parallel(program, {.mode = graph::data_parallel_mode(mode),
                                           .mesh = DeviceMesh::make({"data"}, {2}),
                                           .group_bytes = group_bytes});
        same_steps(step, program, above, 3);
        Counts counts = collectives_of(lower(above));
        if (mode == std::string("fully_shard")) {
          check(counts["all_gather in forward"] + counts["all_gather in backward"] == 0 &&
                    counts["all_reduce in forward"] + counts["all_reduce in backward"] +
                            counts["reduce_scatter in backward"] ==
                        0,
                "nothing is moved where an operator needs it: " + in_words(counts));
          // "up" is used in the second forward again, after it was written.
          check(counts["all_gather_into in forward"] == (group_bytes == 0 ? 2 : 6) &&
                    counts["reduce_scatter_into in backward"] == (group_bytes == 0 ? 2 : 5),
                "each pass gathers, each backward reduces: " + in_words(counts));
        }
      });
    }
  }
}

TEST_CASE("layouts that are given decide, and constants keep their values", "[data_parallel]") {
  OneRankStep step = two_layers_step(false);
  const auto two_layers_loss = step.loss;
  step.loss = [two_layers_loss](const Named& leaves) {
    const Tensor factors = from_values({0.5, 2.0}, {2});
    return ops::mul(two_layers_loss(leaves), ops::sum(ops::cast(factors, DType::f32)));
  };
  const Program program = recorded(step);
  on_ranks(2, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"data"}, {2});
    const Layout whole = Layout::replicated(mesh);
    const Layout rows = whole.with_placement(0, Shard(0));
    std::map<std::string, Layout> layouts;
    for (const char* prefix : {"parameter.", "optimizer.m.", "optimizer.v."}) {
      layouts.emplace(std::string(prefix) + "up", rows);
      layouts.emplace(std::string(prefix) + "down", whole);
      layouts.emplace(std::string(prefix) + "bias", whole);
    }
    const graph::DataParallelOptions options{
        .mode = DataParallelMode::fully_shard, .mesh = mesh, .layouts = layouts};
    const Program above = graph::data_parallel(program, options);
    for (const auto& [name, layout] : layouts) {
      check(above.tensors[above.inputs.at(name).tensor].spec->layout == layout, name);
    }
    same_steps(step, program, above, 3);
    check(!(graph::parameter_layouts(program, {.mode = DataParallelMode::fully_shard, .mesh = mesh})
                .at("parameter.down") == whole),
          "without them, the mode decides");
  });
}
