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
module tessera.text;

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.nn;
import tessera.checkpoint;
import tessera.hub;

namespace tessera::text {
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
        hooks_.push_back(
            module->add_hook([this](nn::Module& of, const Tensors& inputs, Tensors& outputs) {
              if (outputs.empty() || !outputs.front()) {
                return;
              }
              // PyTorch's models add positions elsewhere: what is added is stored.
              const bool adds = dynamic_cast<const nn::PositionEmbedding*>(&of) != nullptr;
              note(of.name(), outputs.front(), adds ? inputs.front() : Tensor());
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
  /// `without`: what the module has added something to; undefined: nothing.
  void note(const std::string& name, const Tensor& output, const Tensor& without) {
    const NoGrad no_grad;
    std::erase_if(outputs_, [&](const auto& noted) { return noted.first == name; });
    const Tensor own = detached(output);
    outputs_.emplace_back(name, without ? ops::sub(own, detached(without))
                                        : ops::clone(own));  // others may write into it
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

/// The shape of one row that stands for all rows: of positions, which have no text.
Dims for_one_row(const Dims& shape) {
  Dims one = shape;
  if (!one.empty()) {
    one[0] = 1;
  }
  return one;
}

/// A module's output in each form that it may be stored in: transformers has heads before tokens
/// where a norm follows on the transposition, and the factor of embeddings within the embedding.
std::vector<Tensor> forms_of(const Tensor& own, const Dims& stored, double factor) {
  std::vector<Tensor> forms;
  const Dims& shape = own.shape();
  if (!(stored == shape) && stored == for_one_row(shape)) {
    forms.push_back(own);
  }
  if (fit(shape, stored)) {
    forms.push_back(own);
  }
  if (shape.size() == 4 && stored == Dims{shape[0], shape[2], shape[1], shape[3]}) {
    forms.push_back(ops::contiguous(ops::transpose(own, 1, 2)));
  }
  if (factor != 1 && fit(shape, stored)) {
    forms.push_back(ops::mul_scalar(own, factor));
  }
  return forms;
}

struct Distance {
  double largest = 0;
  double relative = 0;
};

Distance distance(const std::vector<double>& x, const std::vector<double>& y) {
  Distance result;
  double squares = 0;
  double squares_of_stored = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool same = x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]));
    const double off = same ? 0 : std::abs(x[i] - y[i]);
    const double finite = std::isfinite(off) ? off : std::numeric_limits<double>::infinity();
    result.largest = std::max(result.largest, finite);
    squares += finite * finite;
    squares_of_stored += std::isfinite(y[i]) ? y[i] * y[i] : 0;
  }
  result.relative = squares == 0 ? 0 : std::sqrt(squares / squares_of_stored);
  return result;
}

/// Of the form that is nearest. `factor`: by which the model multiplies the output afterwards.
StoredDifference difference(const std::string& name, const Tensor& own, const TensorSource& stored,
                            double tolerance, double factor = 1) {
  StoredDifference result{.name = name, .shape = stored.info(name).shape};
  const std::vector<Tensor> forms = forms_of(own, result.shape, factor);
  if (forms.empty() || !is_floating(stored.info(name).dtype)) {
    result.problem = is_floating(stored.info(name).dtype)
                         ? fmt::format("the model's shape is {}", to_string(own.shape()))
                         : fmt::format("{} is stored", name_of(stored.info(name).dtype));
    result.agrees = false;
    return result;
  }
  std::vector<double> values = to_doubles(stored.read(name));
  const auto whole = static_cast<std::size_t>(own.numel());
  values.reserve(whole);
  for (std::size_t i = 0; values.size() < whole; ++i) {
    values.push_back(values[i]);
  }
  Distance nearest;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    const Distance one = distance(to_doubles(forms[i]), values);
    nearest = i == 0 || one.relative < nearest.relative ? one : nearest;
  }
  result.largest = nearest.largest;
  result.relative = nearest.relative;
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
  Gradients(nn::LanguageModel& model, const hub::ModelShape& shape)
      : own_(take(model)), folder_(own_, "", hub::family_of(shape), hub::sizes_of(shape)) {}

  /// That of the folder's form, unless only the model's own one has the stored shape. Null: there
  /// is no such parameter.
  const TensorSource* source_of(const std::string& parameter, const Dims& stored) const {
    const bool own = own_.contains(parameter);
    if (folder_.contains(parameter) &&
        (folder_.info(parameter).shape == stored || !own || own_.info(parameter).shape != stored)) {
      return &folder_;
    }
    return own ? &own_ : nullptr;
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
  hub::HubExport folder_;
};

/// "NAME.weight" of "NAME.weight.grad"; "" of other names.
std::string parameter_of(const std::string& stored) {
  return stored.ends_with(gradient_ending)
             ? stored.substr(0, stored.size() - gradient_ending.size())
             : "";
}

/// By which a decoder multiplies the output of its embedding.
std::map<std::string, double> factors_of(nn::LanguageModel& model) {
  std::map<std::string, double> factors;
  const auto* const decoder = dynamic_cast<const nn::DecoderLM*>(&model);
  for (nn::Module* const module : nn::all_modules(model)) {
    if (decoder != nullptr && decoder->shape().scale_embeddings &&
        dynamic_cast<nn::Embedding*>(module) != nullptr) {
      factors.emplace(module->name(), std::sqrt(static_cast<double>(decoder->shape().dim)));
    }
  }
  return factors;
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
  const std::map<std::string, double> factors = factors_of(language);
  for (const auto& [name, output] : modules.outputs()) {
    const auto factor = factors.find(name);
    result.compared.push_back(
        difference(name, output, stored, tolerance, factor == factors.end() ? 1 : factor->second));
    known.insert(name);
  }
  for (const auto& [name, info] : stored.tensors()) {
    const std::string parameter = parameter_of(name);
    if (const TensorSource* const source =
            parameter.empty() ? nullptr : gradients.source_of(parameter, info.shape)) {
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

}  // namespace tessera::text
