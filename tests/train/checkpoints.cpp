// When a run saves: in the background or not, and what happens to a save while one is running.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.checkpoint;
import tessera.collective;
import tessera.parallel;

#include "../support/errors.hpp"
#include "layouts.hpp"
#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using parallel_test::check;
using parallel_test::on_ranks;
using parallel_test::Planned;
using train_test::Folder;

namespace {

/// A layer beside a saved buffer, so that a save takes longer than a step.
class Heavy final : public nn::Module {
 public:
  explicit Heavy(std::int64_t elements) {
    linear_ = add_child<nn::Linear>("linear", 3, 5, false, 0.5, DType::f64);
    add_buffer("ballast", std::make_shared<nn::Buffer>(full({elements}, 0, DType::f64)));
    set_names("net");
  }
  std::string_view kind() const override { return "Heavy"; }
  Tensors forward(const Tensors& inputs) override { return {(*linear_)(inputs[0])}; }

 private:
  nn::Child linear_;
};

/// A training of it on two ranks.
struct HeavyTraining {
  explicit HeavyTraining(std::int64_t elements)
      : net(std::make_shared<Heavy>(elements), DeviceMesh::make({"tensor"}, {2}),
            {{"NoParallel", "tensor", {"net"}}}),
        training(initialized(net), net.plan, optim::sgd(nn::all_parameters(*net.model), {}),
                 {.lr = 0.01}) {}
  static nn::Module& initialized(Planned& net) {
    nn::initialize(*net.model);
    return *net.model;
  }
  /// With inputs that all are `value`.
  void step(double value = 1) {
    training.step({.rows = 2}, [&](const BatchPart&) {
      return ops::sum((*net.model)(
          from_local(full({2, 3}, value, DType::f64), net.plan.batch_layout(), Dims{2, 3})));
    });
  }

  Planned net;
  Training training;
};

struct Lines {
  std::vector<std::string> lines;
  std::int64_t count(std::string_view part) const {
    return std::ranges::count_if(
        lines, [&](const std::string& line) { return line.find(part) != std::string::npos; });
  }
};

/// Rank 0's lines of a run of some steps with a save after each; `change` is called before each
/// step.
Lines run(SaveSchedule schedule, std::int64_t steps, std::int64_t elements,
          const std::function<void(Training&)>& change = {}) {
  Lines told;
  schedule.every = 1;
  on_ranks(2, [&](int rank) {
    HeavyTraining heavy(elements);
    Training& training = heavy.training;
    RunCheckpoints checkpoints(training, schedule, {}, [&](const std::string& line) {
      if (rank == 0) {
        told.lines.push_back(line);
      }
    });
    for (std::int64_t step = 1; step <= steps; ++step) {
      if (change) {
        change(training);
      }
      heavy.step();
      checkpoints.after_step(step == steps);
    }
    check(training.checkpoints().last() ==
              "the last good checkpoint is " + checkpoint_folder(schedule.folder, steps),
          training.checkpoints().last());
  });
  return told;
}

}  // namespace

TEST_CASE("a save that is due while one is running waits for it, or is left out") {
  constexpr std::int64_t steps = 8;
  const Folder wait;
  const Lines waited = run({.folder = wait / "run", .keep = 0}, steps, 10);
  CHECK(waited.count("checkpoint saved: ") == steps);
  CHECK(checkpoints_in(wait / "run").size() == steps);

  const Folder skip;
  const Lines skipped =
      run({.folder = skip / "run", .keep = 0, .skip_when_busy = true}, steps, 8 << 20);
  const std::int64_t saved = skipped.count("checkpoint saved: ");
  CHECK(saved >= 2);  // the first and the last
  CHECK(skipped.count(": the save before it is still running") == steps - saved);
  CHECK(saved < steps);
  const std::vector<std::string> found = checkpoints_in(skip / "run");
  CHECK(static_cast<std::int64_t>(found.size()) == saved);
  CHECK(found.front() == checkpoint_folder(skip / "run", steps));
  for (const std::string& folder : found) {
    CHECK(CheckpointReader(folder).verify().empty());
  }
}

TEST_CASE("only the newest are kept, whichever way they are saved") {
  for (const bool background : {false, true}) {
    const Folder folder;
    run({.folder = folder / "run", .keep = 2, .background = background}, 5, 10);
    CHECK(checkpoints_in(folder / "run") ==
          std::vector<std::string>{checkpoint_folder(folder / "run", 5),
                                   checkpoint_folder(folder / "run", 4)});
  }
}

TEST_CASE("a save in the background that fails stops the run, and names the last good one") {
  const Folder folder;
  const auto spoil = [](Training& training) {
    if (training.done() == 2) {
      ops::fill_(training.model().buffer("ballast")->value,
                 std::numeric_limits<double>::infinity());
    }
  };
  const std::string error =
      tessera::testing::error_of([&] { run({.folder = folder / "run", .keep = 0}, 6, 10, spoil); });
  INFO(error);
  CHECK(error.find("tensor 'model.net.ballast' holds values that are NaN or infinite") !=
        std::string::npos);
  CHECK(error.find("the last good checkpoint is " + checkpoint_folder(folder / "run", 2)) !=
        std::string::npos);
  CHECK(latest_checkpoint(folder / "run") == checkpoint_folder(folder / "run", 2));
}

TEST_CASE("ranks that start again from a state in memory save what was due and is missing") {
  const auto saved = [](std::int64_t every, bool last, std::int64_t before) {
    const Folder folder;
    MemoryStateStore kept(2);
    on_ranks(2, [&](int /*rank*/) {
      HeavyTraining heavy(10);
      Training& training = heavy.training;
      RunCheckpoints died(training, {.kept = &kept});
      for (std::int64_t step = 1; step <= 5; ++step) {
        heavy.step();
        died.after_step(false);
        if (step == before) {
          training.checkpoints().save(checkpoint_folder(folder / "run", step));
        }
      }
      collective::World::current().everyone().barrier();  // both have kept their parts
      RunCheckpoints again(
          training, {.folder = folder / "run", .every = every, .background = false, .kept = &kept});
      again.before_steps(last);
    });
    std::vector<std::string> names;
    for (const std::string& path : checkpoints_in(folder / "run")) {
      names.push_back(path.substr(path.size() - 1));
    }
    return names;
  };
  using Names = std::vector<std::string>;
  CHECK(saved(2, false, 2) == Names{"5", "2"});  // that of step 4
  CHECK(saved(2, false, 4) == Names{"4"});
  CHECK(saved(5, false, 0) == Names{"5"});
  CHECK(saved(6, false, 0).empty());
  CHECK(saved(6, true, 0) == Names{"5"});  // the end's
  CHECK(saved(0, true, 0) == Names{"5"});
  CHECK(saved(0, false, 0).empty());
}

TEST_CASE("an error names the checkpoint whose save it has interrupted") {
  for (const bool spoilt : {false, true}) {
    const Folder parent;
    const std::string folder = checkpoint_folder(parent / "run", 1);
    on_ranks(2, [&](int /*rank*/) {
      // Some 64 MB: the save is running when the next step fails.
      HeavyTraining heavy(8 << 20);
      Training& training = heavy.training;
      heavy.step();
      if (spoilt) {
        ops::fill_(training.model().buffer("ballast")->value, std::nan(""));
      }
      training.checkpoints().start(folder);
      const std::string error = tessera::testing::error_of([&] { heavy.step(std::nan("")); });
      check(error.find("the loss is nan") != std::string::npos, error);
      const std::string words =
          spoilt ? "no checkpoint was saved before; the save after it failed: rank "
                 : "the last good checkpoint is " + folder;
      check(error.find(words) != std::string::npos, error);
      // It can still be taken, once.
      check(training.checkpoints().finished() == (spoilt ? std::nullopt : std::optional(folder)),
            "taken");
      check(!training.checkpoints().finished(), "taken again");
    });
    CHECK(latest_checkpoint(parent / "run").has_value() == !spoilt);
    CHECK((spoilt || CheckpointReader(folder).verify().empty()));
  }
}
