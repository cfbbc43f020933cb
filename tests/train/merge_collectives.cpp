// Collectives of the same values are made once: programs of each kind on 2 and 4 ranks, their bits,
// and where a merge would be wrong.
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.execute;
import tessera.passes;
import tessera.capture;
import tessera.graph;
import tessera.train;

#include "../dtensor/ranks.hpp"

using namespace tessera;
using dtensor_test::check;
using dtensor_test::on_ranks;

namespace {

using Named = std::map<std::string, Tensor>;
using Body = std::function<Named(const Tensor& x, const ops::GroupArgument& group)>;
using Collective = std::function<Tensor(const Tensor& x, const ops::GroupArgument& group)>;

const std::vector<std::string> merge = {"merge_collectives"};

/// Other numbers on each rank.
Tensor rows(double first) {
  const Tensor x = empty({4, 8}, DType::f32);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<float>()[i] = static_cast<float>(first + 0.25 * i + 3 * current_rank());
  }
  return x;
}

ops::GroupArgument everyone(int ranks) {
  std::vector<int> all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(rank);
  }
  return ops::GroupArgument::of(all);
}

/// This rank's program.
Program recorded(int ranks, const Body& body) {
  const NoGrad no_grad;
  const Tensor x = rows(-1);
  Recorder recorder;
  recorder.input("x", x);
  recorder.section(SectionKind::step, [&] {
    for (const auto& [name, result] : body(x, everyone(ranks))) {
      recorder.output(name, result);
    }
  });
  return program_of(recorder.finish({}));
}

/// As the ranks of this world merge it.
Program merged(Program program) {
  graph::run_passes(program, merge, {}, agreement_of(collective::World::current()));
  return program;
}

std::map<std::string, std::vector<double>> results_of(Executor& executor, const Tensor& x) {
  executor.begin({{"x", x}});
  executor.run(SectionKind::step, {});
  std::map<std::string, std::vector<double>> all;
  for (const auto& [name, unused] : executor.program().outputs) {
    all[name] = to_doubles(executor.output(name));
  }
  executor.end();
  return all;
}

void same_bits(const Program& before, const Program& after) {
  Replay replay(before);
  graph::PlannedExecutor planned(after);
  for (const double first : {0.5, -7.0}) {
    const Tensor x = rows(first);
    check(results_of(replay, deep_copy(x)) == results_of(planned, deep_copy(x)), "the same bits");
  }
}

int calls_in(const Program& program) {
  int calls = 0;
  for (const Instruction* const i : graph::places_of(program)) {
    calls += graph::is_collective(*i) ? 1 : 0;
  }
  return calls;
}

/// How many collectives are left on each of two ranks, where the bits stay the same.
std::vector<int> left(const Body& body) {
  std::vector<int> calls(2);
  on_ranks(2, [&](int) {
    const Program before = recorded(2, body);
    const Program after = merged(before);
    same_bits(before, after);
    calls[static_cast<std::size_t>(current_rank())] = calls_in(after);
  });
  return calls;
}

Tensor all_reduced(const Tensor& x, const ops::GroupArgument& group) {
  return ops::all_reduce(x, ReduceOp::sum, group);
}

}  // namespace

TEST_CASE("two collectives of one value are one, whatever their kind") {
  struct Kind {
    std::string call;  // with R for the ranks and N for the extent
    std::string shape;
    Collective make;
  };
  const std::vector<Kind> kinds = {
      {"all_gather(%0; dim=0, extent=N, group=ranks R)", "[N, 8]",
       [](const Tensor& x, const ops::GroupArgument& group) {
         return ops::all_gather(x, 0, 4 * group.size(), group);
       }},
      {"all_reduce(%0; op=sum, group=ranks R)", "[4, 8]", all_reduced},
      {"reduce_scatter(%0; dim=0, op=sum, group=ranks R)", "[P, 8]",
       [](const Tensor& x, const ops::GroupArgument& group) {
         return ops::reduce_scatter(x, 0, ReduceOp::sum, group);
       }},
      {"broadcast(%0; root=1, group=ranks R)", "[4, 8]",
       [](const Tensor& x, const ops::GroupArgument& group) {
         return ops::broadcast(x, 1, group);
       }},
      {"all_to_all(%0; from_dim=0, from_extent=N, to_dim=1, group=ranks R)", "[N, Q]",
       [](const Tensor& x, const ops::GroupArgument& group) {
         return ops::all_to_all(x, 0, 4 * group.size(), 1, group);
       }},
      {"all_gather(%0; dim=0, extent=N, group=ranks R) @ - by full_tensor", "[N, 8]",
       [](const Tensor& x, const ops::GroupArgument& group) {
         const Layout rows_of_all = Layout::replicated(DeviceMesh::make({"data"}, {group.size()}))
                                        .with_placement(0, Shard(0));
         return full_tensor(from_local(x, rows_of_all));
       }}};
  for (const int ranks : {2, 4}) {
    for (const Kind& kind : kinds) {
      std::string text;
      on_ranks(ranks, [&](int) {
        const Program before =
            recorded(ranks, [&](const Tensor& x, const ops::GroupArgument& group) {
              const Tensor first = ops::neg(kind.make(x, group));
              return Named{{"y", first}, {"z", ops::sin(kind.make(x, group))}};
            });
        check(calls_in(before) == 2, "two are written");
        const Program after = merged(before);
        same_bits(before, after);
        if (current_rank() == 0) {
          text = after.to_text();
        }
      });
      const auto filled = [&](std::string_view pattern) {
        const std::map<char, std::string> by = {{'R', ranks == 2 ? "0 1" : "0 1 2 3"},
                                                {'N', std::to_string(4 * ranks)},
                                                {'P', std::to_string(4 / ranks)},
                                                {'Q', std::to_string(8 / ranks)}};
        std::string made;
        for (const char c : pattern) {
          const auto found = by.find(c);
          made += found == by.end() ? std::string(1, c) : found->second;
        }
        return made;
      };
      const std::string shape = "f32" + filled(kind.shape);
      CHECK(text ==
            "tessera program 2\nrank 0\ninput %0: f32[4, 8] = x\nsection step\n  %1: " + shape +
                " = " + filled(kind.call) + "\n  %2: " + shape + " = neg(%1)\n  %4: " + shape +
                " = sin(%1)\noutput %2 = y\noutput %4 = z\nend\n");
    }
  }
}

TEST_CASE("collectives that are issued and waited for are merged with their waits") {
  CHECK(left([](const Tensor& x, const ops::GroupArgument& group) {
          Tensor first = ops::all_gather_async(x, 0, 8, group).wait();
          Tensor again = ops::all_gather_async(x, 0, 8, group).wait();
          return Named{{"y", ops::neg(first)}, {"z", ops::sin(again)}};
        }) == std::vector<int>{1, 1});
}

TEST_CASE("what was written in between is communicated again") {
  CHECK(left([](const Tensor& x, const ops::GroupArgument& group) {
          const Tensor first = all_reduced(x, group);
          ops::add_(x, full({4, 8}, 0.5));
          return Named{{"y", ops::neg(first)}, {"z", ops::sin(all_reduced(x, group))}};
        }) == std::vector<int>{2, 2});
  CHECK(left([](const Tensor& x, const ops::GroupArgument& group) {
          const Tensor first = all_reduced(x, group);
          ops::add_(first, full({4, 8}, 0.5));
          return Named{{"y", ops::neg(first)}, {"z", ops::sin(all_reduced(x, group))}};
        }) == std::vector<int>{2, 2});
  CHECK(left([](const Tensor& x, const ops::GroupArgument& group) {
          const Tensor first = all_reduced(x, group);
          const Tensor again = all_reduced(x, group);
          ops::add_(ops::narrow(again, 0, 1, 2), full({2, 8}, 0.5));
          return Named{{"y", ops::neg(first)}, {"z", ops::sin(again)}};
        }) == std::vector<int>{2, 2});
}

TEST_CASE("what one rank alone finds equal is communicated again") {
  // The host decides by the number of the rank.
  const Body by_rank = [](const Tensor& x, const ops::GroupArgument& group) {
    const Tensor own = ops::exp(x);
    const Tensor other = current_rank() == 0 ? own : ops::neg(x);
    const Tensor first = ops::neg(all_reduced(own, group));
    return Named{{"y", first}, {"z", ops::sin(all_reduced(other, group))}};
  };
  CHECK(left(by_rank) == std::vector<int>{2, 2});
  // Ranks cut other rows.
  CHECK(left([](const Tensor& x, const ops::GroupArgument& group) {
          const Tensor first = all_reduced(ops::contiguous(ops::narrow(x, 0, 0, 2)), group);
          const Tensor again =
              all_reduced(ops::contiguous(ops::narrow(x, 0, 2 * current_rank(), 2)), group);
          return Named{{"y", ops::neg(first)}, {"z", ops::sin(again)}};
        }) == std::vector<int>{2, 2});
  // Only the agreement keeps rank 0 from it.
  on_ranks(2, [&](int) {
    Program alone = recorded(2, by_rank);
    graph::run_passes(alone, merge, {}, graph::suppose_agreement);
    check(calls_in(alone) == (current_rank() == 0 ? 1 : 2), "rank 0 would merge");
    Program nobody = recorded(2, by_rank);
    graph::run_passes(nobody, merge);
    check(calls_in(nobody) == 2, "nothing is merged where ranks cannot agree");
  });
}

TEST_CASE("a result is not kept where the peak of memory would rise") {
  const auto left_of = [](const std::string& between) {
    Program program = Program::parse(
        "tessera program 2\nrank 0\ninput %0: f32[64] = x\nsection step\n"
        "  %1: f32[64] = all_reduce(%0; op=sum, group=ranks 0 1)\n"
        "  %2: f32[] = sum(%1; dims=[0], keepdim=false)\n" +
        between +
        "  %6: f32[64] = all_reduce(%0; op=sum, group=ranks 0 1)\n"
        "  %7: f32[64] = mul(%6, %2)\n"
        "output %7 = y\noutput %2 = z\nend\n");
    graph::run_passes(program, merge, {}, graph::suppose_agreement);
    return calls_in(program);
  };
  CHECK(left_of("") == 1);
  CHECK(
      left_of("  %3: f32[32] = memory.full(2)\n  %4: f32[] = sum(%3; dims=[0], keepdim=false)\n") ==
      1);
  CHECK(left_of("  %3: f32[128] = memory.full(2)\n"
                "  %4: f32[] = sum(%3; dims=[0], keepdim=false)\n") == 2);
}
