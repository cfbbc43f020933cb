// What small distributed steps are captured as: whole programs, which are stored in golden/, and
// the communication that each layout needs, counted by hand. After a change that they should
// follow: TESSERA_WRITE_GOLDEN_GRAPHS=1 build/release/bin/test_graph '[golden]'
#include <algorithm>
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
import tessera.passes;
import tessera.capture;

#include "../dtensor/ranks.hpp"

using namespace tessera;
using dtensor_test::check;
using dtensor_test::on_ranks;

namespace {

using Named = std::map<std::string, Tensor>;
using Counts = std::map<std::string, std::int64_t>;
using Placements = std::vector<Placement>;

struct Leaf {
  Dims shape;
  Placements placements;
};

/// A step on a mesh: leaves, the loss of them, and the gradients of all of them.
struct Step {
  std::string name;
  std::vector<std::string> axes;
  Dims shape;
  std::map<std::string, Leaf> leaves;
  std::function<Tensor(const Named&)> loss;
  Counts collectives;
};

Named leaves_of(const Step& step, const DeviceMesh& mesh) {
  Named leaves;
  for (const auto& [name, leaf] : step.leaves) {
    Tensor x = distributed_ones(leaf.shape, Layout::make(mesh, leaf.placements));
    x.set_requires_grad();
    leaves[name] = x;
  }
  return leaves;
}

/// Loss and gradients; these in the layouts of the leaves.
Named results_of(const Step& step, const Named& leaves) {
  Tensor loss;
  run_phase("forward", [&] { loss = step.loss(leaves); });
  backward(loss);
  Named results = {{"loss", loss}};
  run_phase("gradient reduction", [&] {
    for (const auto& [name, leaf] : leaves) {
      results["gradient." + name] = redistribute(leaf.grad(), leaf.layout());
    }
  });
  return results;
}

Recording recorded(const Step& step, const DeviceMesh& mesh,
                   ModeLevel level = ModeLevel::below_distribution) {
  const Named leaves = leaves_of(step, mesh);
  const auto part = [&](const Tensor& x) {
    return level == ModeLevel::above_distribution ? x : x.local();
  };
  Recorder recorder(level);
  for (const auto& [name, leaf] : leaves) {
    recorder.input(name, part(leaf));
  }
  recorder.section(SectionKind::step, [&] {
    for (const auto& [name, result] : results_of(step, leaves)) {
      recorder.output(name, part(result));
    }
  });
  return recorder.finish({});
}

/// Instructions whose results nothing uses.
std::string unused_in(const Program& program) {
  std::set<TensorIndex> used;
  for (const auto& [name, number] : program.outputs) {
    used.insert(number);
  }
  for (const Section& section : program.sections) {
    for (const Instruction& i : section.instructions) {
      used.insert(i.in.begin(), i.in.end());
    }
  }
  std::string text;
  for (const Section& section : program.sections) {
    for (const Instruction& i : section.instructions) {
      const bool makes = !i.out.empty();
      if (makes &&
          std::ranges::none_of(i.out, [&](TensorIndex number) { return used.contains(number); })) {
        text += to_text(program, i) + "\n";
      }
    }
  }
  return text;
}

/// What the eager step executes.
Account account_of(const Step& step, const DeviceMesh& mesh) {
  const Named leaves = leaves_of(step, mesh);
  Account account;
  {
    const AccountScope scope(account);
    results_of(step, leaves);
  }
  return account;
}

Counts calls_of(const Account& account) {
  Counts calls;
  for (const auto& [name, work] : account.operators) {
    calls[name] = work.calls;
  }
  return calls;
}

Counts collectives_of(const graph::ProgramStatistics& statistics) {
  Counts calls;
  for (const graph::CollectiveCount& count : statistics.collectives) {
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

void same(const Counts& got, const Counts& expected) {
  check(got == expected, "expected " + in_words(expected) + "got " + in_words(got));
}

struct Captured {
  std::string above;     // as it was written, above distribution
  std::string text;      // of rank 0
  std::string improved;  // by the default passes
};

/// Every rank's program calls what its eager step calls.
Captured captured(const Step& step) {
  const DeviceMesh mesh = DeviceMesh::make(step.axes, step.shape);
  Captured text;
  on_ranks(mesh.size(), [&](int) {
    const Recording first = recorded(step, mesh);
    const Program program = program_of(first, recorded(step, mesh));
    const graph::ProgramStatistics statistics = graph::statistics_of(program);
    same(Counts(statistics.calls.begin(), statistics.calls.end()),
         calls_of(account_of(step, mesh)));
    for (const char* needless : {"split", "cat", "detach"}) {
      check(!statistics.calls.contains(needless), std::string("no ") + needless);
    }
    same(collectives_of(statistics), step.collectives);
    Program improved = program;
    graph::run_passes(improved, graph::default_passes(), {}, graph::suppose_agreement);
    const graph::ProgramStatistics left = graph::statistics_of(improved);
    // A part of a part is a view of the first copy, which stays.
    const bool cut_twice = step.name.starts_with("hybrid");
    check(left.calls.contains("contiguous") == cut_twice, "copies after the passes");
    check(!left.calls.contains("clone"), "no clone after the passes");
    same(collectives_of(left), step.collectives);
    const Recording written = recorded(step, mesh, ModeLevel::above_distribution);
    const Program above = program_of(written, recorded(step, mesh, ModeLevel::above_distribution));
    for (const Program* const one : {&above, &program, &std::as_const(improved)}) {
      check(unused_in(*one).empty(), "nothing uses\n" + unused_in(*one));
    }
    if (current_rank() == 0) {
      text = {above.to_text(), program.to_text(), improved.to_text()};
    }
  });
  return text;
}

void is_stored(const std::string& name, const std::string& now) {
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

void is_golden(const Step& step) {
  const Captured now = captured(step);
  is_stored(step.name + "-above", now.above);
  is_stored(step.name, now.text);
  is_stored(step.name + "-improved", now.improved);
}

Tensor sum_of_squares(const Tensor& y) { return ops::sum(ops::mul(y, y)); }

Tensor gathered(const Tensor& w, int axis) { return redistribute_axis(w, axis, Replicate()); }

}  // namespace

TEST_CASE("a weight that is sharded for memory: one gather, and one scatter of its gradient",
          "[golden]") {
  for (const int ranks : {2, 4}) {
    is_golden({.name = "sharded-weight-" + std::to_string(ranks),
               .axes = {"shard"},
               .shape = {ranks},
               .leaves = {{"x", {{8, 4}, {Shard(0)}}}, {"w", {{4, 6}, {Shard(0)}}}},
               .loss =
                   [](const Named& leaves) {
                     return sum_of_squares(ops::mm(leaves.at("x"), gathered(leaves.at("w"), 0)));
                   },
               .collectives = {{"all_gather in forward", 1}, {"reduce_scatter in backward", 1}}});
  }
}

TEST_CASE("a weight that every rank has: its gradient is reduced once", "[golden]") {
  for (const int ranks : {2, 4}) {
    is_golden({.name = "replicated-weight-" + std::to_string(ranks),
               .axes = {"replicate"},
               .shape = {ranks},
               .leaves = {{"x", {{8, 4}, {Shard(0)}}}, {"w", {{4, 6}, {Replicate()}}}},
               .loss =
                   [](const Named& leaves) {
                     return sum_of_squares(ops::mm(leaves.at("x"), leaves.at("w")));
                   },
               .collectives = {{"all_reduce in gradient reduction", 1}}});
  }
}

TEST_CASE("columns, then rows: one reduction of the result, and one of the gradient", "[golden]") {
  for (const int ranks : {2, 4}) {
    is_golden(
        {.name = "columns-and-rows-" + std::to_string(ranks),
         .axes = {"tensor"},
         .shape = {ranks},
         .leaves = {{"x", {{2, 4}, {Replicate()}}},
                    {"up", {{4, 8}, {Shard(1)}}},
                    {"down", {{8, 4}, {Shard(0)}}}},
         .loss =
             [](const Named& leaves) {
               const Tensor inner = ops::silu(ops::mm(leaves.at("x"), leaves.at("up")));
               const Tensor y = ops::mm(inner, leaves.at("down"));
               return sum_of_squares(redistribute_axis(y, 0, Replicate()));
             },
         .collectives = {{"all_reduce in forward", 1}, {"all_reduce in gradient reduction", 1}}});
  }
}

TEST_CASE("shards within replicas: one gather among shards, and one reduction among all ranks",
          "[golden]") {
  is_golden(
      {.name = "hybrid-2x2",
       .axes = {"replicate", "shard"},
       .shape = {2, 2},
       .leaves = {{"x", {{8, 4}, {Shard(0), Shard(0)}}}, {"w", {{4, 6}, {Replicate(), Shard(0)}}}},
       .loss =
           [](const Named& leaves) {
             return sum_of_squares(ops::mm(leaves.at("x"), gathered(leaves.at("w"), 1)));
           },
       .collectives = {{"all_gather in forward", 1}, {"all_reduce in backward", 1}}});
}

TEST_CASE("shards for memory of columns and rows: each axis has its own collectives", "[golden]") {
  is_golden({.name = "sharded-columns-and-rows-2x2",
             .axes = {"shard", "tensor"},
             .shape = {2, 2},
             .leaves = {{"x", {{8, 4}, {Shard(0), Replicate()}}},
                        {"up", {{4, 8}, {Shard(0), Shard(1)}}},
                        {"down", {{8, 4}, {Shard(1), Shard(0)}}}},
             .loss =
                 [](const Named& leaves) {
                   const Tensor inner =
                       ops::silu(ops::mm(leaves.at("x"), gathered(leaves.at("up"), 0)));
                   const Tensor y = ops::mm(inner, gathered(leaves.at("down"), 0));
                   return sum_of_squares(redistribute_axis(y, 1, Replicate()));
                 },
             .collectives = {{"all_gather in forward", 2},
                             {"all_reduce in forward", 1},
                             {"reduce_scatter in backward", 2},
                             {"all_reduce in gradient reduction", 1}}});
}
