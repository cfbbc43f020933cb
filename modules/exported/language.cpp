// Programs of the next token: their inputs and outputs, and the model.
module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.exported;

import tessera.base;
import tessera.autograd;
import tessera.checkpoint;
import tessera.dtensor;
import tessera.nn;
import tessera.ops;
import tessera.placement;
import tessera.tensor;
import :graph;
import :language;
import :program;

namespace tessera::exported {
namespace {

constexpr std::string_view loss_name = "loss";  // of the child that LanguageModel adds

const GraphValue& value_of(const ExportedGraph& graph, int value) {
  return graph.values[static_cast<std::size_t>(value)];
}

/// Whether the first dims are equal.
bool same_dims(const GraphValue& a, const GraphValue& b, std::size_t dims) {
  for (std::size_t d = 0; d < dims; ++d) {
    if (a.shape[d] != b.shape[d] || a.symbols[d] != b.symbols[d]) {
      return false;
    }
  }
  return true;
}

/// Finds the places, and notes what does not fit.
class TextProgramReader {
 public:
  explicit TextProgramReader(const ExportedGraph& graph) : graph_(graph) {}

  TokenProgram next_token() {
    read_inputs(true);
    if (problems_.empty()) {
      read_outputs(3);
    }
    refuse_problems("a model of the next token", "logits [batch, length, vocabulary]");
    return found_;
  }

  ClassProgram classes() {
    read_inputs(false);
    if (problems_.empty()) {
      read_outputs(2);
    }
    refuse_problems("a model that tells classes of texts",
                    "logits [batch, classes] of at least 2 classes");
    return {.tokens = found_.tokens,
            .mask = found_.mask,
            .logits = found_.logits,
            .classes = found_.vocab,
            .rows = found_.rows,
            .length = found_.length};
  }

 private:
  void refuse_problems(const char* what, const char* logits) const {
    if (!problems_.empty()) {
      fail_input(
          {.thing = graph_.path,
           .wrong = fmt::format("the program is not {}: {}", what, fmt::join(problems_, "; ")),
           .expected = fmt::format("tokens [batch, length] as 'input_ids', and {}", logits),
           .advice = "export one that is (docs/exported-programs.md), or train it in a "
                     "program of your own"});
    }
  }

  void read_inputs(bool takes_targets) {
    std::vector<const GraphValue*> inputs;
    for (const GraphInput& input : graph_.inputs) {
      if (input.role == InputRole::user) {
        inputs.push_back(&value_of(graph_, input.value));
      }
    }
    found_.tokens = -1;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::string& name = inputs[i]->name;
      int* const place = name == "input_ids" || inputs.size() == 1 ? &found_.tokens
                         : name == "attention_mask"                ? &found_.mask
                         : name == "targets" && takes_targets      ? &found_.targets
                                                                   : nullptr;
      if (place == nullptr) {
        problems_.push_back(fmt::format("it has an input '{}'", shown(name, 80)));
      } else {
        *place = static_cast<int>(i);
      }
    }
    if (found_.tokens < 0) {
      problems_.emplace_back("it has no input 'input_ids'");
      return;
    }
    tokens_ = inputs[static_cast<std::size_t>(found_.tokens)];
    for (const GraphValue* const input : inputs) {
      const bool integers = input->dtype == DType::i64;
      if (input->shape.size() != 2 || !same_dims(*input, *tokens_, 2) ||
          !(integers ||
            (found_.mask >= 0 && input == inputs[static_cast<std::size_t>(found_.mask)]))) {
        problems_.push_back(
            fmt::format("its input '{}' is {}", shown(input->name, 80), type_text(graph_, *input)));
        return;
      }
    }
    const auto range = [this](std::size_t dim) {
      const std::int64_t extent = tokens_->shape[dim];
      return extent >= 0 ? DimRange{extent, extent} : range_of(graph_, tokens_->symbols[dim]);
    };
    found_.rows = range(0);
    found_.length = range(1);
  }

  /// Logits of so many dims: of each token, or of each row.
  void read_outputs(std::size_t dims) {
    found_.logits = -1;
    std::vector<std::string> others;
    for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
      const GraphValue& output = value_of(graph_, graph_.outputs[i]);
      const bool logits = is_floating(output.dtype) && output.shape.size() == dims &&
                          same_dims(output, *tokens_, dims - 1) && output.shape[dims - 1] > 1;
      others.push_back(type_text(graph_, output));
      if (logits && found_.logits >= 0) {
        problems_.push_back(
            fmt::format("it has several outputs that may be logits ({})", fmt::join(others, ", ")));
        return;
      }
      if (logits) {
        found_.logits = static_cast<int>(i);
        found_.vocab = output.shape[dims - 1];
      } else if (found_.targets >= 0 && is_floating(output.dtype) && output.shape.empty()) {
        found_.loss = static_cast<int>(i);
      }
    }
    if (found_.logits < 0) {
      problems_.push_back(
          fmt::format("it has no logits among its outputs ({})", fmt::join(others, ", ")));
    }
    if (found_.targets >= 0 && found_.loss < 0) {
      problems_.emplace_back("it has an input 'targets' and no output of one number, its loss");
    }
  }

  const ExportedGraph& graph_;
  TokenProgram found_;
  const GraphValue* tokens_ = nullptr;
  std::vector<std::string> problems_;
};

}  // namespace

TokenProgram token_program(const ExportedGraph& graph) {
  return TextProgramReader(graph).next_token();
}

ClassProgram class_program(const ExportedGraph& graph) {
  return TextProgramReader(graph).classes();
}

ExportedLanguageModel::ExportedLanguageModel(ExportedGraph graph, const TensorSource& file)
    : LanguageModel(0), places_(token_program(graph)) {
  for (const ExportedModule& module : graph.modules) {
    if (module.name == loss_name) {
      fail_input({.thing = graph.path,
                  .wrong = "a module of the program is named 'loss', which is the name of the "
                           "loss of next tokens here",
                  .advice = "give it another name, and export the program again"});
    }
  }
  program_ = std::make_unique<Program>(std::move(graph));
  program_->build(*this, file);
  complete();
  program_->divide(*this);
}

ExportedLanguageModel::~ExportedLanguageModel() = default;

std::string_view ExportedLanguageModel::kind() const { return "ExportedLanguageModel"; }

std::vector<std::string> ExportedLanguageModel::input_names() const {
  return {"input_ids", "targets"};
}

Tensors ExportedLanguageModel::run(const Tensor& tokens, const Tensor& targets) {
  const PlainIsReplicate constants;
  const AllowRedistribution redistribution;
  Tensors inputs;
  for (const GraphInput& input : program_->graph().inputs) {
    if (input.role != InputRole::user) {
      continue;
    }
    const auto place = static_cast<int>(inputs.size());
    if (place == places_.mask) {
      const DType dtype = value_of(program_->graph(), input.value).dtype;
      inputs.push_back(full(tokens.shape(), 1, dtype, tokens.device()));
    } else {
      inputs.push_back(place == places_.targets && targets ? targets : tokens);
    }
  }
  return program_->run(inputs, is_training());
}

Tensors ExportedLanguageModel::forward(const Tensors& inputs) {
  const Tensor& tokens = input(inputs, 0);
  const std::int64_t rows = tokens.size(0);
  constexpr std::int64_t most_rows = 64;
  const bool fill = !is_training() && !tokens.is_distributed() && rows > 0 &&
                    rows < places_.rows.low && places_.rows.low <= most_rows;
  if (!fill) {
    return {run(tokens, {})[static_cast<std::size_t>(places_.logits)]};
  }
  // PyTorch exports no batch of one row beside larger ones; the rows of a batch are independent.
  Tensors copies;
  for (std::int64_t have = 0; have < places_.rows.low; have += rows) {
    copies.push_back(tokens);
  }
  const Tensor logits = run(ops::cat(copies, 0), {})[static_cast<std::size_t>(places_.logits)];
  return {ops::narrow(logits, 0, 0, rows)};
}

Tensor ExportedLanguageModel::loss_sum(const Tensor& tokens, const Tensor& targets,
                                       const nn::RowDocuments& documents) {
  if (places_.loss < 0) {
    return LanguageModel::loss_sum(tokens, targets, documents);
  }
  if (documents.first) {
    fail_input({.thing = program_->graph().path, .wrong = "the program takes no documents"});
  }
  return call({tokens, targets}, [this](const Tensors& in) {
    const Tensor mean = run(in[0], in[1])[static_cast<std::size_t>(places_.loss)];
    const AllowRedistribution redistribution;
    Tensor trained;
    {
      const NoGrad constant;
      const auto ignored = static_cast<double>(loss().ignore_index());
      trained = ops::sum(ops::cast(ops::ne(in[1], ignored), mean.dtype()));
      if (mean.is_distributed() && trained.is_distributed()) {
        trained = redistribute(trained, Layout::replicated(mean.layout().mesh()));
      }
    }
    return Tensors{ops::mul(mean, trained)};
  })[0];
}

void ExportedLanguageModel::set_cache(nn::KeyValueCache* cache) {
  if (cache != nullptr) {
    fail_input({.thing = program_->graph().path,
                .wrong = "a program of torch.export has no cache of keys and values"});
  }
}

void ExportedLanguageModel::set_activation_checkpointing(bool enabled) {
  program_->set_recompute(enabled);
  note_change();
}

}  // namespace tessera::exported
