// run_training: resumed runs end with the bytes of runs that were not interrupted; what it refuses.
// Each run is in a process of its own, as a program's main would call it.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.base;
import tessera.program;
import tessera.train;

#include "layouts.hpp"

using namespace tessera;
using train_test::Folder;

namespace {

constexpr std::int64_t batch = 12;

/// Numbers [rows, 3] -> [rows, 2], with dropout.
class Own final : public nn::Module {
 public:
  Own() {
    first_ = add_child<nn::Linear>("first", 3, 8, true, 0.5);
    drop_ = add_child<nn::Dropout>("drop", 0.2);
    second_ = add_child<nn::Linear>("second", 8, 2, true, 0.5);
  }
  std::string_view kind() const override { return "Own"; }
  Tensors forward(const Tensors& inputs) override {
    return {(*second_)((*drop_)(ops::gelu((*first_)(inputs[0]))))};
  }

 private:
  nn::Child first_, drop_, second_;
};

Tensor numbers(const BatchPart& part, std::uint64_t stream, std::int64_t width) {
  RandomStream from{.seed = 1,
                    .stream = stream,
                    .offset = static_cast<std::uint64_t>((part.step * batch + part.first) * width)};
  return ops::uniform_(empty({part.rows, width}), -1, 1, from);
}

TrainingRun run_in(const Folder& folder) {
  return {
      .ranks = 2,
      .steps = 9,
      .rows = batch,
      .schedule = {.kind = optim::ScheduleKind::linear, .lr = 0.02, .warmup = 2, .end = 12},
      .folder = folder / "run/checkpoints",
      .report_every = 0,
      .model = [] { return std::make_shared<Own>(); },
      .data =
          [](const BatchPart& part) { return Tensors{numbers(part, 1, 3), numbers(part, 2, 2)}; },
      .loss_sum =
          [](nn::Module& model, const Tensors& rows) {
            return ops::sum(ops::square(ops::sub(model(rows[0]), rows[1])));
          }};
}

struct Ended {
  int code = -1;
  std::string errors;
};

Ended ended(const Folder& folder, const TrainingRun& run) {
  std::filesystem::create_directories(folder / "run");
  const std::string errors = folder / "run/errors";
  const ChildResult child =
      run_in_child("test", std::chrono::seconds(60), [&](const SendReport& send) {
        if (std::freopen(errors.c_str(), "w", stderr) != nullptr) {
          const int code = run_training(run);
          std::fflush(stderr);
          send(std::to_string(code));
        }
      });
  INFO(child.problem);
  REQUIRE(child.problem.empty());
  std::ifstream file(errors);
  return {.code = std::stoi(child.report),
          .errors = std::string(std::istreambuf_iterator<char>(file), {})};
}

std::string bytes_of(const Folder& folder, std::int64_t step, int rank) {
  std::ifstream file(checkpoint_folder(folder / "run/checkpoints", step) + "/rank-" +
                         std::to_string(rank) + ".safetensors",
                     std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("guards select the programs of a run, with the bytes of one that replays nothing") {
  const Folder eager;
  const Folder replayed;
  for (const bool replay : {false, true}) {
    const Folder& folder = replay ? replayed : eager;
    TrainingRun run = run_in(folder);
    const auto stage = std::make_shared<double>(0);
    run.replay = replay;
    run.steps = 14;
    run.guards = [stage](std::int64_t step) {
      *stage = step < 7 ? 0 : 1;
      return StepGuards{{"stage", *stage}};
    };
    run.loss_sum = [stage](nn::Module& model, const Tensors& rows) {
      const Tensor error = ops::sub(model(rows[0]), rows[1]);
      const Tensor loss = ops::sum(*stage > 0 ? ops::abs(error) : ops::square(error));
      const Tensor whole = redistribute(detached(loss), Layout::replicated(loss.layout().mesh()));
      return guard("large", ops::gt(whole, 1e9)) > 0 ? ops::mul_scalar(loss, 0.5) : loss;
    };
    REQUIRE(ended(folder, run).code == 0);
  }
  for (const int rank : {0, 1}) {
    CHECK(!bytes_of(eager, 14, rank).empty());
    CHECK(bytes_of(eager, 14, rank) == bytes_of(replayed, 14, rank));
  }
}

TEST_CASE("a resumed run ends with the bytes of one that was not, replayed or in micro-batches") {
  for (const bool replay : {false, true}) {
    for (const std::int64_t micro_rows : {0, 3}) {
      INFO("replay " << replay << ", micro-batches of " << micro_rows);
      const Folder whole;
      const Folder parts;
      TrainingRun run = run_in(whole);
      run.replay = replay;
      run.micro_rows = micro_rows;
      run.save_every = 2;
      REQUIRE(ended(whole, run).code == 0);
      CHECK(checkpoints_in(run.folder).size() == 3);  // 6, 8 and 9
      run.folder = parts / "run/checkpoints";
      run.steps = 5;
      REQUIRE(ended(parts, run).code == 0);
      run.steps = 9;
      REQUIRE(ended(parts, run).code == 0);
      REQUIRE(ended(parts, run).code == 0);  // nothing is left to do
      for (const int rank : {0, 1}) {
        CHECK(bytes_of(whole, 9, rank).size() > 100);
        CHECK(bytes_of(whole, 9, rank) == bytes_of(parts, 9, rank));
      }
    }
  }
}

TEST_CASE("another number of ranks continues a run, and an optimizer of the program trains") {
  const Folder folder;
  TrainingRun run = run_in(folder);
  run.steps = 4;
  run.schedule.unit = optim::ScheduleUnit::tokens;
  run.schedule.warmup = 24;
  run.schedule.end = 400;
  run.row_tokens = 2;
  run.optimizer = [](std::vector<nn::ParameterPointer> parameters) {
    return optim::sgd(std::move(parameters), {.momentum = 0.5});
  };
  REQUIRE(ended(folder, run).code == 0);
  run.ranks = 3;
  run.steps = 6;
  REQUIRE(ended(folder, run).code == 0);
  const CheckpointReader reader(checkpoint_folder(run.folder, 6));
  const TrainingProgress progress = read_training_progress(reader);
  CHECK(progress.step == 6);
  CHECK(progress.tokens == 6 * batch * 2);
  run.optimizer = nullptr;  // AdamW's state is not there
  run.steps = 7;
  CHECK(ended(folder, run).code == 2);
}

TEST_CASE("what a run refuses is one error, and an exit code") {
  const Folder folder;
  const TrainingRun good = run_in(folder);
  const auto refused = [&](const std::function<void(TrainingRun&)>& change, int code,
                           const std::string& text) {
    TrainingRun run = good;
    change(run);
    const Ended end = ended(folder, run);
    INFO(end.errors);
    CHECK(end.code == code);
    CHECK(end.errors.find(text) != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(run.folder));
  };
  refused([](TrainingRun& run) { run.ranks = 0; }, 2,
          "run_training: ranks is too small (expected at least 1, got 0)");
  refused([](TrainingRun& run) { run.steps = 0; }, 2, "steps is too small");
  refused([](TrainingRun& run) { run.loss_sum = nullptr; }, 2, "a model, data and loss_sum");
  refused([](TrainingRun& run) { run.micro_rows = 5; }, 1, "micro-batches of 5");
  refused(
      [](TrainingRun& run) {
        run.schedule.cooldown = -1;
        run.schedule.warmup = -1;
      },
      2, "schedule: warmup is negative");
  refused([](TrainingRun& run) { run.sharding.groups = {"third"}; }, 2, "third");
  refused(
      [](TrainingRun& run) {
        run.data = [](const BatchPart& part) { return Tensors{empty({part.rows + 1, 3})}; };
      },
      1,
      "tensor 0 of data() does not have the rows that were asked for (expected a plain tensor "
      "whose dim 0 is 6, got [7, 3])");
  refused(
      [](TrainingRun& run) {
        run.loss_sum = [](nn::Module& model, const Tensors& rows) {
          return ops::mul_scalar(ops::sum(model(rows[0])), 1e300 * 1e300);
        };
      },
      1, "step 1: the loss is ");
}
