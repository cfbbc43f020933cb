// A program's own task: its bits after interruptions, in layouts, by stages, with deaths of ranks;
// what it refuses. Each run is in a process of its own, as a program's main would call it.
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.base;
import tessera.program;
import tessera.runs;
import tessera.train;

#include "folder.hpp"

using namespace tessera;
using tessera::testing::Folder;
using tessera::testing::read_if_there;

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

struct OwnRun {
  runs::RunSpec spec = {};
  runs::TaskFunctions task = {};
};

void set_mesh(OwnRun& run, std::vector<std::string> axes, std::vector<std::int64_t> shape) {
  run.spec.mesh.axes = std::move(axes);
  run.spec.mesh.shape = std::move(shape);
}

OwnRun run_in(const Folder& folder) {
  OwnRun run;
  run.spec.train.steps = 9;
  run.spec.train.batch = batch;
  run.spec.optimizer.lr = 0.02;
  run.spec.optimizer.schedule = optim::ScheduleKind::linear;
  run.spec.optimizer.warmup = 2;
  run.spec.optimizer.schedule_end = 12;
  run.spec.checkpoint.folder = folder / "run/checkpoints";
  run.spec.log.metrics = folder / "run/metrics.jsonl";
  run.spec.parallel = {{.style = "FSDP", .axis = {{"shard"}}, .on = {"*", "."}}};
  set_mesh(run, {"shard"}, {2});
  run.task.model = [] { return std::make_shared<Own>(); };
  run.task.rows = [](const BatchPart& part) {
    return Tensors{numbers(part, 1, 3), numbers(part, 2, 2)};
  };
  run.task.loss_sum = [](nn::Module& model, const Tensors& rows) {
    return ops::sum(ops::square(ops::sub(model(rows[0]), rows[1])));
  };
  return run;
}

struct Ended {
  int code = -1;
  std::string errors;
};

Ended ended(const Folder& folder, const OwnRun& run) {
  std::filesystem::create_directories(folder / "run");
  const std::string errors = folder / "run/errors";
  const ChildResult child =
      run_in_child("test", std::chrono::seconds(120), [&](const SendReport& send) {
        if (std::freopen(errors.c_str(), "w", stderr) != nullptr &&
            std::freopen("/dev/null", "w", stdout) != nullptr) {
          const int code = runs::train(run.spec, run.task);
          std::fflush(stderr);
          send(std::to_string(code));
        }
      });
  INFO(child.problem);
  REQUIRE(child.problem.empty());
  return {.code = std::stoi(child.report), .errors = read_if_there(errors)};
}

void trained(const Folder& folder, const OwnRun& run) {
  const Ended end = ended(folder, run);
  INFO(end.errors);
  REQUIRE(end.code == 0);
}

std::string bytes_of(const Folder& folder, std::int64_t step, int rank) {
  return read_if_there(checkpoint_folder(folder / "run/checkpoints", step) + "/rank-" +
                       std::to_string(rank) + ".safetensors");
}

/// Of each step its loss, and the last one's validation.
std::vector<double> losses_of(const Folder& folder) {
  std::ifstream file(folder / "run/metrics.jsonl");
  std::vector<double> losses;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    losses.push_back(json.at("loss"));
    if (json.contains("validation_loss")) {
      losses.push_back(json.at("validation_loss"));
    }
  }
  return losses;
}

void same_losses(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO("number " << i);
    CHECK(std::abs(a[i] - b[i]) <= 1e-5 * std::abs(a[i]));
  }
}

}  // namespace

TEST_CASE("guards select the programs of a run, with the bytes of one that replays nothing") {
  const Folder eager;
  const Folder replayed;
  for (const bool replay : {false, true}) {
    const Folder& folder = replay ? replayed : eager;
    OwnRun run = run_in(folder);
    const auto stage = std::make_shared<double>(0);
    run.spec.graph.capture = replay;
    run.spec.train.steps = 14;
    run.spec.optimizer.schedule_end = 20;
    run.task.guards = [stage](std::int64_t step) {
      *stage = step < 7 ? 0 : 1;
      return StepGuards{{"stage", *stage}};
    };
    run.task.loss_sum = [stage](nn::Module& model, const Tensors& rows) {
      const Tensor error = ops::sub(model(rows[0]), rows[1]);
      const Tensor loss = ops::sum(*stage > 0 ? ops::abs(error) : ops::square(error));
      const Tensor whole = redistribute(detached(loss), Layout::replicated(loss.layout().mesh()));
      return guard("large", ops::gt(whole, 1e9)) > 0 ? ops::mul_scalar(loss, 0.5) : loss;
    };
    trained(folder, run);
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
      OwnRun run = run_in(whole);
      run.spec.graph.capture = replay;
      run.spec.train.micro_batch = micro_rows;
      run.spec.checkpoint.every = 2;
      trained(whole, run);
      CHECK(checkpoints_in(run.spec.checkpoint.folder).size() == 3);  // 6, 8 and 9
      OwnRun other = run;
      other.spec.checkpoint.folder = parts / "run/checkpoints";
      other.spec.log.metrics = parts / "run/metrics.jsonl";
      other.spec.train.steps = 5;
      trained(parts, other);
      other.spec.train.steps = 9;
      trained(parts, other);
      trained(parts, other);  // nothing is left to do
      for (const int rank : {0, 1}) {
        CHECK(bytes_of(whole, 9, rank).size() > 100);
        CHECK(bytes_of(whole, 9, rank) == bytes_of(parts, 9, rank));
      }
    }
  }
}

TEST_CASE("another number of ranks continues a run, and an optimizer of the program trains") {
  const Folder folder;
  OwnRun run = run_in(folder);
  run.spec.train.steps = 4;
  run.spec.optimizer.schedule_unit = optim::ScheduleUnit::tokens;
  run.spec.optimizer.warmup = 24;
  run.spec.optimizer.schedule_end = 400;
  run.task.row_tokens = 2;
  run.task.optimizer = [](std::vector<nn::ParameterPointer> parameters) {
    return optim::sgd(std::move(parameters), {.momentum = 0.5});
  };
  trained(folder, run);
  run.spec.mesh.shape = {3};
  run.spec.train.steps = 6;
  trained(folder, run);
  const CheckpointReader reader(checkpoint_folder(run.spec.checkpoint.folder, 6));
  const TrainingProgress progress = read_training_progress(reader);
  CHECK(progress.step == 6);
  CHECK(progress.tokens == 6 * batch * 2);
  run.task.optimizer = nullptr;  // AdamW's state is not there
  run.spec.train.steps = 7;
  CHECK(ended(folder, run).code == 2);
}

TEST_CASE("a program's task has the losses of one rank on any mesh, and is validated") {
  const auto losses_on = [](const std::function<void(OwnRun&)>& change) {
    const Folder folder;
    OwnRun run = run_in(folder);
    run.spec.data.validate_every = 4;
    run.task.validation_batches = 2;
    run.task.validation_rows = [](const BatchPart& part) {
      return Tensors{numbers(part, 5, 3), numbers(part, 6, 2)};
    };
    change(run);
    trained(folder, run);
    return losses_of(folder);
  };
  const std::vector<double> one = losses_on([](OwnRun& run) {
    set_mesh(run, {}, {});
    run.spec.parallel.clear();
  });
  REQUIRE(one.size() == 9 + 3);  // validated after 4, 8 and 9
  CHECK(one[0] != one[1]);
  const auto split = [](OwnRun& run) {
    set_mesh(run, {"shard", "tensor"}, {2, 2});
    run.spec.parallel.insert(
        run.spec.parallel.begin(),
        {{.style = "ColwiseParallel", .axis = {{"tensor"}}, .on = {"first"}},
         {.style = "RowwiseParallel", .axis = {{"tensor"}}, .on = {"second"}}});
  };
  same_losses(one, losses_on([](OwnRun&) {}));
  same_losses(one, losses_on(split));
  same_losses(one, losses_on([](OwnRun& run) {  // by the structure of the style's options
                run.spec.parallel.clear();
                set_mesh(run, {"replicate", "shard"}, {2, 2});
                runs::fully_shard(run.spec, {.groups = {"first", "."}, .prefetch = 0});
              }));
  same_losses(one, losses_on([&](OwnRun& run) {
                split(run);
                run.spec.graph.capture = true;
                run.spec.train.micro_batch = 2;
              }));
  same_losses(one, losses_on([](OwnRun& run) {
                set_mesh(run, {"data"}, {3});
                run.spec.parallel.clear();
                run.spec.graph.mode = "replicate";
                run.spec.graph.capture = true;
              }));
}

TEST_CASE("ranks have different numbers of rows of a program's batch that they do not divide") {
  const auto losses_on = [](std::int64_t ranks, bool replay) {
    const Folder folder;
    OwnRun run = run_in(folder);
    run.spec.train.batch = 11;
    run.spec.graph.capture = replay;
    run.spec.mesh.shape = {ranks};
    trained(folder, run);
    return losses_of(folder);
  };
  const std::vector<double> one = losses_on(1, false);
  same_losses(one, losses_on(3, false));
  same_losses(one, losses_on(3, true));
}

TEST_CASE("a program's own language model is divided into stages") {
  constexpr std::int64_t length = 6;
  const auto losses_on = [](int ranks) {
    const Folder folder;
    OwnRun run = run_in(folder);
    run.spec.parallel.clear();
    set_mesh(run, {}, {});
    if (ranks > 1) {
      set_mesh(run, {"pipe"}, {ranks});
      run.spec.parallel = {{.style = "Pipeline", .axis = {{"pipe"}}, .on = {"."}}};
    }
    run.spec.train.micro_batch = 3;
    run.task.row_tokens = length;
    run.task.model = [] {
      return hub::make_model(
          hub::parse_hub_config(R"({"model_type": "llama", "vocab_size": 11, "hidden_size": 8,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "intermediate_size": 16, "max_position_embeddings": 16})",
                                "config"),
          0);
    };
    run.task.rows = [](const BatchPart& part) {
      const Tensor ids = ops::cast(
          ops::mul_scalar(ops::add_scalar(numbers(part, 1, length + 1), 1.0), 5.4), DType::i64);
      return Tensors{ops::contiguous(ops::narrow(ids, 1, 0, length)),
                     ops::contiguous(ops::narrow(ids, 1, 1, length))};
    };
    run.task.loss_sum = [](nn::Module& model, const Tensors& rows) {
      return runs::language_model(model).loss_sum(rows[0], rows[1]);
    };
    run.task.states = [](nn::Module& model, const Tensors& rows) {
      return runs::language_model(model).states(rows[0]);
    };
    trained(folder, run);
    return losses_of(folder);
  };
  same_losses(losses_on(1), losses_on(2));
}

TEST_CASE("a rank of a program's task that is killed is started again, with the same bytes") {
  const Folder calm;
  const Folder harmed;
  trained(calm, run_in(calm));
  OwnRun run = run_in(harmed);
  run.spec.train.heal = true;
  run.task.rows = [&](const BatchPart& part) {
    const std::string mark = harmed / "killed";
    if (part.step == 4 && part.first == 6 && !std::filesystem::exists(mark)) {
      std::ofstream{mark};
      std::raise(SIGKILL);
    }
    return Tensors{numbers(part, 1, 3), numbers(part, 2, 2)};
  };
  trained(harmed, run);
  REQUIRE(std::filesystem::exists(harmed / "killed"));
  for (const int rank : {0, 1}) {
    CHECK(!bytes_of(calm, 9, rank).empty());
    CHECK(bytes_of(calm, 9, rank) == bytes_of(harmed, 9, rank));
  }
}

TEST_CASE("what a program's task refuses is one error, and an exit code") {
  const Folder folder;
  const OwnRun good = run_in(folder);
  const auto refused = [&](const std::function<void(OwnRun&)>& change, int code,
                           const std::string& text) {
    OwnRun run = good;
    change(run);
    const Ended end = ended(folder, run);
    INFO(end.errors);
    CHECK(end.code == code);
    CHECK(end.errors.find(text) != std::string::npos);
    CHECK(end.errors.find("error:") == end.errors.rfind("error:"));
    CHECK_FALSE(std::filesystem::exists(run.spec.checkpoint.folder));
  };
  refused([](OwnRun& run) { run.spec.train.steps = 0; }, 2, "train.steps: expected an integer");
  refused([](OwnRun& run) { run.task.loss_sum = nullptr; }, 2,
          "the task is not complete (expected the functions model, rows and loss_sum)");
  refused([](OwnRun& run) { run.task.model = [] { return nullptr; }; }, 2,
          "model() returned nothing");
  refused([](OwnRun& run) { run.task.row_tokens = 0; }, 2, "row_tokens");
  refused([](OwnRun& run) { run.task.validation_batches = 1; }, 2, "validation_rows");
  refused([](OwnRun& run) { run.spec.model.sizes = {{"dim", std::int64_t{8}}}; }, 2,
          "only a language model on texts has it");
  refused([](OwnRun& run) { run.spec.data.text = {"text.txt"}; }, 2, "data.text: only a language");
  refused([](OwnRun& run) { run.spec.data.seq_len = 8; }, 2, "row_tokens");
  refused([](OwnRun& run) { run.spec.train.objective = runs::ObjectiveKind::dpo; }, 2,
          "train.objective: only a language model");
  refused([](OwnRun& run) { run.spec.train.head_rows = 4; }, 2,
          "train.head_rows: the model is not an nn::LanguageModel");
  refused([](OwnRun& run) { run.spec.experts.bias_rate = 0.1; }, 2, "no mixture of experts");
  refused(
      [](OwnRun& run) {
        run.spec.optimizer.weight_decay = 0;
        run.task.optimizer = [](std::vector<nn::ParameterPointer> parameters) {
          return optim::sgd(std::move(parameters), {});
        };
      },
      2, "optimizer.weight_decay: the program's own optimizer determines this");
  refused([](OwnRun& run) { run.spec.train.micro_batch = 5; }, 2,
          "5 does not divide a rank's 6 sequences");
  refused([](OwnRun& run) { run.spec.parallel[0].on = {"third"}; }, 2, "third");
  refused(
      [](OwnRun& run) {
        run.spec.parallel = {{.style = "Pipeline", .axis = {{"shard"}}, .on = {"."}}};
      },
      2, "nn::LanguageModel::pieces");
  refused(
      [](OwnRun& run) {
        run.task.rows = [](const BatchPart& part) { return Tensors{empty({part.rows + 1, 3})}; };
      },
      2,
      "tensor 0 of rows() does not have the rows that were asked for (expected a plain tensor "
      "whose dim 0 is 6, got [7, 3])");
  refused(
      [](OwnRun& run) {
        run.task.loss_sum = [](nn::Module& model, const Tensors& rows) {
          return ops::mul_scalar(ops::sum(model(rows[0])), 1e300 * 1e300);
        };
      },
      1, "step 1: the loss is ");
}
