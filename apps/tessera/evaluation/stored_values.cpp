module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.app.evaluation;

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.nn;
import tessera.checkpoint;
import tessera.hub;
import tessera.app.model;
import tessera.app.generation;

namespace tessera::app {
namespace {

constexpr const char* tokens_name = "input_ids";
constexpr std::string_view gradient_ending = ".grad";

bool is_integer(DType dtype) { return dtype == DType::i64 || dtype == DType::i32; }

/// [rows, tokens]. Errors (input): there are none; a model of `vocab` tokens does not have one.
Tensor tokens_of(const TensorSource& stored, std::int64_t vocab) {
  const std::string expected = "integers of shape [rows, tokens]";
  if (!stored.contains(tokens_name)) {
    fail_input({.thing = stored.path(),
                .wrong = fmt::format("there is no tensor '{}'", tokens_name),
                .expected = expected,
                .advice = "store the tokens that the other program has computed with"});
  }
  const TensorInfo& info = stored.info(tokens_name);
  const int dims = info.shape.size();
  if (!is_integer(info.dtype) || dims < 1 || dims > 2 || info.shape.product() == 0) {
    fail_input({.thing = stored.path(),
                .wrong = fmt::format("'{}' is not the tokens of a model", tokens_name),
                .expected = expected,
                .got = fmt::format("{} {}", name_of(info.dtype), to_string(info.shape))});
  }
  const Tensor tokens = ops::cast(stored.read(tokens_name), DType::i64);
  const std::vector<double> values = to_doubles(tokens);
  const auto wrong = std::ranges::find_if(
      values, [&](double token) { return token < 0 || token >= static_cast<double>(vocab); });
  if (wrong != values.end()) {
    fail_input({.thing = stored.path(),
                .wrong = fmt::format("'{}' has a token that the model does not have", tokens_name),
                .expected = fmt::format("0 to {}", vocab - 1),
                .got = fmt::format("{}", *wrong)});
  }
  return dims == 2 ? tokens : ops::view(tokens, {1, tokens.numel()});
}

/// Notes the first output of each module that `stored` has, while it lives.
class OutputsOfModules {
 public:
  OutputsOfModules(nn::LanguageModel& model, const TensorSource& stored) {
    for (nn::Module* const module : nn::all_modules(model)) {
      if (stored.contains(module->name())) {
        hooks_.push_back(module->add_hook([this](nn::Module& of, const Tensors&, Tensors& outputs) {
          if (!outputs.empty() && outputs.front()) {
            note(of.name(), outputs.front());
          }
        }));
      }
    }
  }
  ~OutputsOfModules() {
    for (nn::HookHandle& hook : hooks_) {
      hook.remove();
    }
  }
  OutputsOfModules(const OutputsOfModules&) = delete;
  OutputsOfModules& operator=(const OutputsOfModules&) = delete;

  /// In the order of the last calls.
  const std::vector<std::pair<std::string, Tensor>>& outputs() const { return outputs_; }

 private:
  void note(const std::string& name, const Tensor& output) {
    const NoGrad no_grad;
    std::erase_if(outputs_, [&](const auto& noted) { return noted.first == name; });
    outputs_.emplace_back(name, ops::clone(detached(output)));  // others may write into it
  }

  std::vector<nn::HookHandle> hooks_;
  std::vector<std::pair<std::string, Tensor>> outputs_;
};

/// Shapes that differ in how rows are counted only.
bool fit(const Dims& x, const Dims& y) {
  if (x == y) {
    return true;
  }
  return x.product() == y.product() && !x.empty() && !y.empty() && x.back() == y.back();
}

StoredDifference difference(const std::string& name, const Tensor& own, const TensorSource& stored,
                            double tolerance) {
  StoredDifference result{.name = name, .shape = stored.info(name).shape};
  if (!fit(own.shape(), result.shape) || !is_floating(stored.info(name).dtype)) {
    result.problem = is_floating(stored.info(name).dtype)
                         ? fmt::format("the model's shape is {}", to_string(own.shape()))
                         : fmt::format("{} is stored", name_of(stored.info(name).dtype));
    result.agrees = false;
    return result;
  }
  const std::vector<double> x = to_doubles(own);
  const std::vector<double> y = to_doubles(stored.read(name));
  double squares = 0;
  double squares_of_stored = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool same = x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]));
    const double distance = same ? 0 : std::abs(x[i] - y[i]);
    const double finite =
        std::isfinite(distance) ? distance : std::numeric_limits<double>::infinity();
    result.largest = std::max(result.largest, finite);
    squares += finite * finite;
    squares_of_stored += std::isfinite(y[i]) ? y[i] * y[i] : 0;
  }
  result.relative = squares == 0 ? 0 : std::sqrt(squares / squares_of_stored);
  result.agrees = result.relative <= tolerance;
  return result;
}

/// The mean loss of each row's next tokens.
Tensor mean_loss(nn::LanguageModel& model, const Tensor& tokens) {
  const std::int64_t rows = tokens.size(0);
  const std::int64_t length = tokens.size(1);
  if (length < 2) {
    fail_input({.thing = tokens_name,
                .wrong = "one token in each row has no next one",
                .expected = "at least 2 tokens, as gradients are stored",
                .got = fmt::format("{}", length)});
  }
  const Tensor targets = full({rows, length}, model.loss().ignore_index(), DType::i64);
  const Tensor known = ops::slice(targets, 1, 0, length - 1);
  ops::copy_(known, ops::slice(tokens, 1, 1, length));
  return ops::mul_scalar(model.loss_sum(tokens, targets),
                         1.0 / static_cast<double>(rows * (length - 1)));
}

/// The gradients of all parameters, by the names in the model and those in a folder.
class Gradients {
 public:
  Gradients(nn::LanguageModel& model, const ModelShape& shape)
      : own_(take(model)), folder_(own_, "", family_of(shape), sizes_of(shape)) {}

  /// Null: there is no such parameter.
  const TensorSource* source_of(const std::string& parameter) const {
    if (own_.contains(parameter)) {
      return &own_;
    }
    return folder_.contains(parameter) ? &folder_ : nullptr;
  }

 private:
  static std::map<std::string, Tensor> take(nn::LanguageModel& model) {
    std::map<std::string, Tensor> gradients;
    for (const nn::ParameterPointer& parameter : nn::all_parameters(model)) {
      const Tensor& gradient = parameter->value.grad();
      gradients.emplace(parameter->name,
                        gradient ? gradient : ops::zeros_like(detached(parameter->value)));
      parameter->value.grad() = Tensor();
    }
    return gradients;
  }

  TensorsInMemory own_;
  HubExport folder_;
};

/// "NAME.weight" of "NAME.weight.grad"; "" of other names.
std::string parameter_of(const std::string& stored) {
  return stored.ends_with(gradient_ending)
             ? stored.substr(0, stored.size() - gradient_ending.size())
             : "";
}

/// Computes the model, with gradients where some are stored.
void compute(nn::LanguageModel& model, const TensorSource& stored, std::int64_t vocab) {
  const Tensor tokens = tokens_of(stored, vocab);
  if (std::ranges::any_of(stored.tensors(),
                          [](const auto& entry) { return !parameter_of(entry.first).empty(); })) {
    backward(mean_loss(model, tokens));
  } else {
    const NoGrad no_grad;
    model({tokens});
  }
}

}  // namespace

StoredComparison compare_stored(const TextModel& model, const TensorSource& stored,
                                double tolerance) {
  nn::LanguageModel& language = model.ranks().model();
  const OutputsOfModules modules(language, stored);
  compute(language, stored, model.shape().vocab);
  const Gradients gradients(language, model.shape());
  StoredComparison result;
  std::set<std::string> known{tokens_name};
  for (const auto& [name, output] : modules.outputs()) {
    result.compared.push_back(difference(name, output, stored, tolerance));
    known.insert(name);
  }
  for (const auto& [name, info] : stored.tensors()) {
    const std::string parameter = parameter_of(name);
    if (const TensorSource* const source =
            parameter.empty() ? nullptr : gradients.source_of(parameter)) {
      result.compared.push_back(difference(name, source->read(parameter), stored, tolerance));
    } else if (!known.contains(name)) {
      result.unknown.push_back(name);
    }
  }
  if (result.compared.empty()) {
    fail_input(
        {.thing = stored.path(),
         .wrong = "no tensor has the name of a module, or of a parameter with '.grad'",
         .expected = fmt::format("names such as '{}'", nn::all_modules(language).back()->name()),
         .got = result.unknown.empty() ? "nothing" : "'" + result.unknown.front() + "'"});
  }
  return result;
}

}  // namespace tessera::app
