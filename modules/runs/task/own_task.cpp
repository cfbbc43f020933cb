module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.train;

namespace tessera::runs {
namespace {

using RowsOf = std::function<Tensors(const BatchPart&)>;

class FunctionRank final : public RankTask {
 public:
  FunctionRank(const TaskFunctions& functions, const RunSpec& spec, nn::Module& model,
               const parallel::ParallelPlan& plan, Device device)
      : functions_(functions),
        model_(model),
        plan_(plan),
        device_(device),
        all_(spec.train.batch % plan.batch_parts() == 0 ? 0 : spec.train.batch) {}

  Tensors rows(const BatchPart& part) override { return read("rows", functions_.rows, part); }
  Tensors validation_rows(const BatchPart& part) override {
    return read("validation_rows", functions_.validation_rows, part);
  }
  StepSums sums(const Tensors& rows) override {
    return functions_.loss_sum(model_, distributed(rows));
  }
  Tensor states(const Tensors& rows) override {
    return functions_.states ? functions_.states(model_, distributed(rows))
                             : RankTask::states(rows);
  }
  StepGuards guards(std::int64_t step) const override {
    return functions_.guards ? functions_.guards(step) : StepGuards();
  }
  double weight(std::int64_t /*step*/, std::int64_t rows) const override {
    return static_cast<double>(rows * functions_.row_tokens);
  }
  double validation_weight(std::int64_t batches, std::int64_t rows) const override {
    return static_cast<double>(batches * rows * functions_.row_tokens);
  }

 private:
  Tensors read(const char* name, const RowsOf& function, const BatchPart& part) const {
    // The first rows have the shapes of all; nothing else of them is used on the meta device.
    const bool shapes = device_ == meta;
    Tensors rows = function(shapes ? BatchPart{.first = part.first, .rows = part.rows} : part);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Tensor& x = rows[i];
      if (!x || x.is_distributed() || x.shape().empty() || x.shape()[0] != part.rows) {
        fail({.thing = "train",
              .wrong = fmt::format("tensor {} of {}() does not have the rows that were asked for",
                                   i, name),
              .expected = fmt::format("a plain tensor whose dim 0 is {}", part.rows),
              .got = !x                   ? std::string("no tensor")
                     : x.is_distributed() ? to_string(*x.spec())
                                          : to_string(x.shape()),
              .advice = "return rows part.first to part.first + part.rows - 1"});
      }
      check_split(name, i, x);
      const Tensor own = splits(x) ? plan_.sequence_part(x) : x;
      rows[i] = shapes ? empty(own.shape(), own.dtype(), meta) : ops::to_device(own, device_);
    }
    return rows;
  }

  /// Parts of rows are told from whole ones by dim 1.
  void check_split(const char* name, std::size_t i, const Tensor& rows) const {
    if (is_part(rows)) {
      fail_input({.thing = "train",
                  .wrong = fmt::format("dim 1 of tensor {} of {}() has the size of a rank's part "
                                       "of a row, and is none",
                                       i, name),
                  .expected = fmt::format("{} (row_tokens) or another size", functions_.row_tokens),
                  .got = to_string(rows.shape())});
    }
  }

  /// Whether sequences are split over ranks, and dim 1 of [rows, tokens, ...] makes a row in so
  /// many parts.
  bool makes_row(const Tensor& rows, int parts) const {
    return plan_.sequence_parts() > 1 && rows.shape().size() > 1 &&
           rows.shape()[1] * parts == functions_.row_tokens;
  }
  bool splits(const Tensor& rows) const { return makes_row(rows, 1); }
  bool is_part(const Tensor& rows) const { return makes_row(rows, plan_.sequence_parts()); }

  /// The ranks' rows as one tensor each. Where the ranks do not divide the batch, these are all.
  Tensors distributed(const Tensors& rows) const {
    Tensors all;
    for (const Tensor& part : rows) {
      if (all_ == 0 && (plan_.sequence_parts() == 1 || is_part(part))) {
        all.push_back(plan_.batch_of(part));
        continue;
      }
      Dims shape = part.shape();
      shape[0] = all_ > 0 ? all_ : shape[0] * plan_.batch_parts();
      all.push_back(from_local(part, plan_.row_layout(), shape));
    }
    return all;
  }

  const TaskFunctions& functions_;
  nn::Module& model_;
  const parallel::ParallelPlan& plan_;
  Device device_;
  std::int64_t all_;  // rows of the batch, where ranks have different numbers; else 0
};

class FunctionTask final : public Task {
 public:
  explicit FunctionTask(TaskFunctions functions) : functions_(std::move(functions)) {}

  std::shared_ptr<nn::Module> model(const RunSpec& /*spec*/) const override {
    std::shared_ptr<nn::Module> model = functions_.model();
    if (model == nullptr) {
      fail_input({.thing = "train", .wrong = "model() returned nothing", .expected = "a module"});
    }
    model->set_names();
    return model;
  }
  std::unique_ptr<optim::Optimizer> optimizer(
      const std::vector<nn::ParameterPointer>& parameters) const override {
    return functions_.optimizer ? functions_.optimizer(parameters) : nullptr;
  }
  void initialize(const RunSpec& spec, nn::Module& model) const override {
    if (functions_.initialize) {
      functions_.initialize(model);
    } else {
      Task::initialize(spec, model);
    }
  }
  bool divides_unevenly() const override { return true; }
  std::unique_ptr<RankTask> on_rank(const RunSpec& spec, const DeviceMesh& /*mesh*/,
                                    nn::Module& model, const parallel::ParallelPlan& plan,
                                    Device device) const override {
    return std::make_unique<FunctionRank>(functions_, spec, model, plan, device);
  }
  std::int64_t validation_batches() const override { return functions_.validation_batches; }
  Fingerprint fingerprint(const RunSpec& spec) const override {
    return own_fingerprint(spec, functions_.optimizer != nullptr);
  }

 private:
  TaskFunctions functions_;
};

}  // namespace

std::shared_ptr<const Task> task_of(TaskFunctions functions) {
  if (!functions.model || !functions.rows || !functions.loss_sum) {
    fail_input({.thing = "train",
                .wrong = "the task is not complete",
                .expected = "the functions model, rows and loss_sum"});
  }
  if (functions.validation_batches > 0 && !functions.validation_rows) {
    fail_input({.thing = "train",
                .wrong = "the task has batches for a validation, and no rows for them",
                .advice = "give it the function validation_rows"});
  }
  for (const auto& [name, value, least] :
       {std::tuple{"row_tokens", functions.row_tokens, std::int64_t{1}},
        std::tuple{"validation_batches", functions.validation_batches, std::int64_t{0}}}) {
    if (value < least) {
      fail_input({.thing = "train",
                  .wrong = fmt::format("the task's {} is too small", name),
                  .expected = fmt::format("at least {}", least),
                  .got = fmt::format("{}", value)});
    }
  }
  return std::make_shared<const FunctionTask>(std::move(functions));
}

}  // namespace tessera::runs
