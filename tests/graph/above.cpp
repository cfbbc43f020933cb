// Programs that are recorded above distribution: the text, the bits of the eager step, and the
// program of a rank, which is the one that is recorded below distribution.
#include <cstdint>
#include <functional>
#include <map>
#include <string>
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

namespace {

using Named = std::map<std::string, Tensor>;
using Body = std::function<Named(const Named&)>;

struct Leaf {
  Dims shape;
  std::vector<Placement> placements;
};

/// The same numbers in every layout and on every number of ranks.
Named leaves_of(const std::map<std::string, Leaf>& leaves, const DeviceMesh& mesh, double first) {
  Named all;
  for (const auto& [name, leaf] : leaves) {
    const Tensor whole =
        ops::mul_scalar(ops::cast(dtensor_test::numbered(leaf.shape, first), DType::f32), 0.0625);
    Tensor x = distribute(whole, Layout::make(mesh, leaf.placements));
    all[name] = x.set_requires_grad();
  }
  return all;
}

struct Recorded {
  Program program;
  Named results;
};

Recorded recorded(ModeLevel level, const Named& leaves, const Body& body,
                  const StepVariables& variables = {}) {
  const auto part = [&](const Tensor& x) {
    return level == ModeLevel::above_distribution ? x : x.local();
  };
  Recorder recorder(level);
  for (const auto& [name, leaf] : leaves) {
    recorder.input(name, part(leaf));
  }
  Recorded all;
  recorder.section(SectionKind::step, [&] {
    all.results = body(leaves);
    for (const auto& [name, result] : all.results) {
      recorder.output(name, part(result));
    }
  });
  all.program = recorder.finish(variables).program;
  return all;
}

Named detached_of(const Named& leaves) {
  Named all;
  for (const auto& [name, x] : leaves) {
    all[name] = detached(x);
  }
  return all;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.spec() == b.spec() && dtensor_test::values(a) == dtensor_test::values(b);
}

/// The text of the program above distribution. Checks that it reads back, that replaying it gives
/// the bits of the eager step for other numbers, and that the program of the rank is as recorded.
std::string checked(const DeviceMesh& mesh, const std::map<std::string, Leaf>& leaves,
                    const Body& body) {
  const Program above =
      recorded(ModeLevel::above_distribution, leaves_of(leaves, mesh, 1), body).program;
  const std::string text = above.to_text();
  check(Program::parse(text).to_text() == text, "the text reads back:\n" + text);
  const Named other = leaves_of(leaves, mesh, -3);
  Replay replay(Program::parse(text));
  replay.begin(detached_of(other));
  StepVariables variables;
  for (const auto& [name, drawn] : replay.program().draws) {  // bodies that draw set this seed
    variables.streams[name] = {.seed = 7, .stream = random_stream(name).stream, .offset = 0};
  }
  replay.run(SectionKind::step, variables);
  for (const auto& [name, expected] : body(other)) {
    check(same_bits(replay.output(name), expected), name + " has the bits of the eager step");
  }
  replay.end();
  const std::string below =
      recorded(ModeLevel::below_distribution, leaves_of(leaves, mesh, 1), body).program.to_text();
  const std::string lowered = lower(Program::parse(text)).to_text();
  check(lowered == below, "lowered:\n" + lowered + "recorded:\n" + below);
  return text;
}

Named gradients_of(const Tensor& loss, const Named& leaves) {
  run_phase("backward", [&] { backward(loss); });
  Named results = {{"loss", loss}};
  for (const auto& [name, leaf] : leaves) {
    results["gradient." + name] = leaf.grad();
  }
  return results;
}

Named product_step(const Named& leaves) {
  Tensor loss;
  run_phase("forward", [&] {
    const Tensor w = redistribute_axis(leaves.at("w"), 0, Replicate());
    const Tensor y = ops::mm(leaves.at("x"), w);
    loss = ops::sum(ops::mul(y, y));
  });
  return gradients_of(loss, leaves);
}

const std::map<std::string, Leaf> product_leaves = {{"x", {{8, 4}, {Shard(0)}}},
                                                    {"w", {{4, 6}, {Shard(0)}}}};

/// Views, a write through a view, constants, random numbers, and other memory of a tensor.
Named mixed_step(const Named& leaves) {
  const NoGrad no_grad;
  const Tensor& x = leaves.at("x");
  const Tensor y = ops::view(ops::exp(x), {8, 6});
  ops::add_(ops::select(y, 1, 2), ops::select(y, 1, 3));
  const Tensor ones = ops::ones_like(y);
  const Tensor noise = ops::dropout(ops::add(y, ones), 0.5, random_stream("dropout"));
  const Tensor constant = distributed_full({8, 6}, 3, y.layout());
  return {{"y", ops::mul(noise, constant)}, {"sum", ops::sum(noise)}};
}

}  // namespace

TEST_CASE("a step above distribution has global shapes and layouts", "[above]") {
  for (const int ranks : {1, 2, 4}) {
    std::string text;
    on_ranks(ranks, [&](int) {
      const DeviceMesh mesh = DeviceMesh::make({"shard"}, {ranks});
      const std::string mine = checked(mesh, product_leaves, product_step);
      if (current_rank() == 0) {
        text = mine;
      }
    });
    const std::string mesh = "mesh(shard=" + std::to_string(ranks) + ")";
    CHECK(text.starts_with("tessera program 2\nrank 0\nlevel above distribution\n" + mesh + "\n"));
    CHECK(contains(text, "input %0: f32[4, 6] [Shard(0)] = w\n"));
    CHECK(
        contains(text, "%2: f32[4, 6] [Replicate] = redistribute(%0; to=f32[4, 6] [Replicate] on " +
                           mesh + ", gradient=f32[4, 6] [Shard(0)] on " + mesh + ") @ forward\n"));
    CHECK(contains(text, "%3: f32[8, 6] [Shard(0)] = mm(%1, %2) @ forward\n"));
    CHECK(contains(text, " [Partial(sum)] = sum("));
    CHECK_FALSE(contains(text, "memory.alias"));
    CHECK_FALSE(contains(text, "all_gather"));
  }
}

TEST_CASE("views, writes, constants and random numbers above distribution", "[above]") {
  for (const std::vector<Placement>& placements :
       {std::vector<Placement>{Shard(0)}, {Replicate()}}) {
    on_ranks(2, [&](int) {
      const DeviceMesh mesh = DeviceMesh::make({"data"}, {2});
      const std::map<std::string, Leaf> leaves = {{"x", {{8, 2, 3}, placements}}};
      const auto body = [](const Named& given) {
        set_seed(7);
        return mixed_step(given);
      };
      const std::string text = checked(mesh, leaves, body);
      check(contains(text, "dropout"), "dropout is one instruction");
      check(contains(text, "[8, 6]"), "shapes are global");
    });
  }
}

TEST_CASE("an operation that communicates is named in the program of a rank", "[above]") {
  on_ranks(2, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"shard"}, {2});
    const Body body = [](const Named& given) {
      const NoGrad no_grad;
      const Tensor whole = full_tensor(ops::exp(given.at("x")));
      return Named{{"y", from_local(whole, Layout::replicated(given.at("x").layout().mesh()))}};
    };
    const std::string text = checked(mesh, {{"x", {{4, 2}, {Shard(0)}}}}, body);
    check(contains(text, "redistribute(") && contains(text, ") @ - by full_tensor\n"), text);
    const std::string below = lower(Program::parse(text)).to_text();
    check(
        contains(below, "all_gather(%") && contains(below, "group=ranks 0 1) @ - by full_tensor\n"),
        below);
    // What the host reads is that of the operation too.
    const Program program =
        recorded(ModeLevel::below_distribution, leaves_of({{"x", {{4, 2}, {Shard(0)}}}}, mesh, 1),
                 [](const Named& given) {
                   const NoGrad no_grad;
                   const double sum = full_tensor(ops::sum(given.at("x"))).item();
                   return Named{{"y", ops::mul_scalar(given.at("x"), sum)}};
                 })
            .program;
    for (const Instruction& i : program.sections[0].instructions) {
      check(i.kind != Instruction::Kind::check ||
                read_in_words(program, i) == "a result of full_tensor",
            i.kind != Instruction::Kind::check ? "" : read_in_words(program, i));
    }
    check(contains(program.to_text(), "host.check("), program.to_text());
  });
}

namespace {

/// An update by a learning rate, of a gradient that every rank has a part of.
Program update_recorded(const DeviceMesh& mesh, ModeLevel level) {
  const auto record = [&](double lr) {
    Named leaves = leaves_of({{"w", {{4, 2}, {Shard(0)}}}, {"g", {{4, 2}, {Shard(0)}}}}, mesh, 1);
    const auto part = [&](const Tensor& x) {
      return level == ModeLevel::above_distribution ? x : x.local();
    };
    Recorder recorder(level);
    for (const auto& [name, leaf] : leaves) {
      recorder.input(name, part(leaf));
    }
    recorder.section(SectionKind::update, [&] {
      const NoGrad no_grad;
      ops::add_(leaves.at("w"), ops::mul_scalar(leaves.at("g"), Number::variable("lr", lr)));
    });
    return recorder.finish({.numbers = {{"lr", lr}}});
  };
  const Recording first = record(0.5);
  return program_of(first, record(0.25));
}

}  // namespace

TEST_CASE("what follows from a variable above distribution follows from it on each rank",
          "[above]") {
  on_ranks(2, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"shard"}, {2});
    const Program above = update_recorded(mesh, ModeLevel::above_distribution);
    const Program lowered = lower(above);
    check(contains(lowered.to_text(), "{value=$lr}"), "the variable is in the rank's program");
    check(lowered.to_text() == update_recorded(mesh, ModeLevel::below_distribution).to_text(),
          "as recorded below distribution");
  });
}

TEST_CASE("programs above distribution: what is refused, and what the error names", "[above]") {
  on_ranks(2, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"shard"}, {2});
    const Program above =
        recorded(ModeLevel::above_distribution, leaves_of(product_leaves, mesh, 1), product_step)
            .program;
    check(contains(error_of([&] { lower(lower(above)); }), "below distribution already"),
          "a rank's program is lowered");
    check(contains(error_of([&] { graph::statistics_of(above); }), "lower() it first"),
          "statistics of a program above distribution");
    check(contains(error_of([&] { graph::make_executor(above, {}); }), "lower() it first"),
          "it is executed without a dispatcher");
    Replay replay(above);
    const Named other =
        leaves_of({{"x", {{8, 4}, {Shard(0)}}}, {"w", {{4, 6}, {Shard(1)}}}}, mesh, 1);
    const std::string layout = error_of([&] { replay.begin(detached_of(other)); });
    check(contains(layout,
                   "input 'w' has another layout (expected f32[4, 6] [Shard(0)] on "
                   "mesh(shard=2), got f32[4, 6] [Shard(1)] on mesh(shard=2))"),
          layout);
    const auto direct = [&](const Named& leaves) {
      const Tensor local = leaves.at("x").local();
      communicator(mesh, 0).barrier();
      return Named{{"x", leaves.at("x")}};
    };
    const std::string called = error_of([&] {
      recorded(ModeLevel::above_distribution, leaves_of(product_leaves, mesh, 1), direct);
    });
    check(contains(called, "a communicator is called directly"), called);
    const auto reads = [&](const Named& leaves) {
      to_doubles(leaves.at("x").local());
      return Named{{"x", leaves.at("x")}};
    };
    const std::string read = error_of([&] {
      lower(recorded(ModeLevel::above_distribution, leaves_of(product_leaves, mesh, 1), reads)
                .program);
    });
    check(contains(read, "lower: section 'step', instruction 2 (host.check(") &&
              contains(read, "the host has read a value"),
          read);
  });
}

TEST_CASE("a guard is in the program of every rank", "[above]") {
  on_ranks(2, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"shard"}, {2});
    const auto guarded = [](const Named& leaves) {
      const Tensor sum = ops::sum(leaves.at("x"));
      const Tensor whole = redistribute(sum, Layout::replicated(sum.layout().mesh()));
      const bool large = guard("large", ops::gt(whole, 1e9)) > 0;
      return Named{{"y", large ? ops::neg(leaves.at("x")) : ops::exp(leaves.at("x"))}};
    };
    const Named leaves = leaves_of(product_leaves, mesh, 1);
    const Program lowered = lower(recorded(ModeLevel::above_distribution, leaves, guarded).program);
    const Program below = recorded(ModeLevel::below_distribution, leaves, guarded).program;
    check(lowered.to_text() == below.to_text(), lowered.to_text() + below.to_text());
    check(guards_of(lowered).size() == 1 && guards_of(lowered)[0].value == 0, "one guard");
  });
}

TEST_CASE("layouts that do not propagate are refused with instruction and module", "[above]") {
  on_ranks(2, [&](int) {
    const Program above = Program::parse(
        "tessera program 2\nrank " + std::to_string(current_rank()) +
        "\nlevel above distribution\nmesh(data=2)\n"
        "input %0: f32[4, 4] [Shard(0)] = x\ninput %1: f32[4, 4] [Shard(0)] = w\nsection step\n"
        "  %2: f32[4, 4] [Shard(0)] = mm(%0, %1) @ forward in blocks.0\noutput %2 = y\nend\n");
    const std::string error = error_of([&] { lower(above); });
    check(contains(error,
                   "lower: section 'step', instruction 1 (%2: f32[4, 4] [Shard(0)] = "
                   "mm(%0, %1) @ forward in blocks.0): ") &&
              contains(error, "redistribute"),
          error);
  });
}

TEST_CASE("a variable that no local call has is an error, not a constant", "[above]") {
  Instruction scaled{.op = &find_op("mul_scalar")};
  scaled.bindings.push_back({.field = 0, .value = Expression::parse("lr")});
  const Tensor x = dtensor_test::numbered({2});
  Recorder recorder;
  recorder.input("x", x);
  recorder.section(SectionKind::step, [&] {
    recorder.follow(&scaled);
    ops::exp(x);
    CHECK(contains(error_of([&] { recorder.follow(nullptr); }),
                   "mul_scalar is executed by calls of other operators"));
  });
}
