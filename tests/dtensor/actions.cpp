// Factories, reads, memory and the communicators' calls are actions that modes see and may replace.
#include <cstdint>
#include <functional>
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

#include "ranks.hpp"

using namespace tessera;
using dtensor_test::check;
using dtensor_test::contains;
using dtensor_test::error_of;
using dtensor_test::on_ranks;

namespace {

using Names = std::vector<std::string>;

/// Writes operators and actions down, and does with actions what a function says.
class Recorder final : public Mode {
 public:
  using Function = std::function<void(Action&, NextAction&)>;
  explicit Recorder(Function f = [](Action& action, NextAction& next) { next(action); })
      : f_(std::move(f)) {}
  Tensors call(const Call& call, NextCall& next) override {
    seen.push_back(call.op.name);
    return next(call);
  }
  void perform(Action& action, NextAction& next) override {
    seen.push_back(std::string(name_of(action.kind)) + " " + std::string(action.name) +
                   (action.bytes > 0 ? " of " + std::to_string(action.bytes) : ""));
    f_(action, next);
  }
  Names seen;

 private:
  Function f_;
};

std::string joined(const Names& names) {
  std::string text;
  for (const std::string& name : names) {
    text += name + "; ";
  }
  return text;
}

constexpr ModeLevel above = ModeLevel::above_distribution;
constexpr ModeLevel below = ModeLevel::below_distribution;

}  // namespace

TEST_CASE("factories and reads are actions, at both levels") {
  for (const ModeLevel level : {above, below}) {
    Recorder recorder;
    {
      const ModeScope scope(level, recorder);
      const Tensor x = zeros({2});
      empty({2});
      full({1}, 3).item();
      to_doubles(from_values<double>({1, 2}, {2}));
      ops::exp(x);
    }
    zeros({3});
    CHECK(recorder.seen == Names{"create zeros", "create empty", "create full", "read to_doubles",
                                 "create from_values", "read to_doubles", "exp"});
  }
}

TEST_CASE("a mode makes a tensor in place of a factory, and is held to its shape and type") {
  Tensor made = full({2}, 5);
  Recorder own([&](Action& action, NextAction&) { action.out = Tensors{made}; });
  const ModeScope scope(above, own);
  CHECK(zeros({2}).same_as(made));
  CHECK(
      error_of([] { zeros({3}); }) ==
      "zeros: the tensor that a mode makes is wrong (expected f32[3], got f32[2]); return what the "
      "factory would return");
  made = Tensor();
  CHECK(contains(error_of([] { zeros({3}); }), "got none"));
}

TEST_CASE("a mode replaces what the host reads") {
  Recorder other([](Action& action, NextAction& next) {
    next(action);
    for (double& value : action.values) {
      value *= 2;
    }
  });
  const Tensor x = full({1}, 4);
  const ModeScope scope(above, other);
  CHECK(x.item() == 8);
}

TEST_CASE("memory that is released and restored is seen, and a mode may keep it") {
  const Tensor x = full({8}, 1);
  Recorder recorder;
  {
    const ModeScope scope(below, recorder);
    x.storage().release_memory();
    CHECK_FALSE(x.storage().has_memory());
    x.storage().restore_memory();
    CHECK(x.storage().has_memory());
  }
  CHECK(recorder.seen == Names{"release storage of 32", "restore storage of 32"});
  Storage* seen = nullptr;
  Recorder keeping([&](Action& action, NextAction&) { seen = action.storage; });
  const ModeScope scope(below, keeping);
  x.storage().release_memory();
  CHECK(x.storage().has_memory());
  CHECK(seen == &x.storage());
}

TEST_CASE("calls of communicators and waits are actions; within an operator they are its own") {
  on_ranks(2, [](int) {
    collective::Communicator& group = collective::World::current().everyone();
    float mine = 1;
    float sum = 0;
    const Tensor x = full({4}, 2);
    Recorder recorder;
    Recorder program;
    {
      const ModeScope scope(below, recorder);
      const ModeScope above_scope(above, program);
      group.all_reduce(&mine, &sum, 1, DType::f32);
      collective::Work work = group.all_reduce_async(&mine, &sum, 1, DType::f32);
      work.wait();
      ops::all_reduce(x, ReduceOp::sum, group);
    }
    group.barrier();
    const Names expected{"collective all_reduce of 4", "wait all_reduce of 4",
                         "collective all_reduce of 4", "wait all_reduce of 4", "all_reduce"};
    check(recorder.seen == expected, joined(recorder.seen));
    check(program.seen == Names{"all_reduce"}, joined(program.seen));
    check(sum == 2, "the calls have their results");
  });
}

TEST_CASE("a mode that issues nothing keeps a rank to itself") {
  on_ranks(2, [](int) {
    collective::Communicator& group = collective::World::current().everyone();
    float mine = 1;
    float sum = 7;
    if (collective::World::current().rank() == 0) {
      Recorder silent([](Action&, NextAction&) {});
      const ModeScope scope(below, silent);
      group.all_reduce(&mine, &sum, 1, DType::f32);  // rank 1 does not take part
    }
    check(sum == 7, "nothing is communicated");
    group.barrier();
  });
}
