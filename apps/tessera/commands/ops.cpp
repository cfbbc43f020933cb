module;
#include <fmt/format.h>

#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.app.base;

// `tessera ops`: what every operator says of itself.
namespace tessera::app {
namespace {

std::string effects_text(const Op& op) {
  std::string text;
  const auto add = [&text](const std::string& effect) {
    text += (text.empty() ? "" : "; ") + effect;
  };
  const Effects effects = effects_of(op);
  for (const std::size_t operand : effects.writes) {
    add("writes " + op.operands[operand].name);
  }
  if (effects.aliasing == Aliasing::always) {
    add("views " + op.operands[0].name);
  } else if (effects.aliasing == Aliasing::sometimes) {
    add("views " + op.operands[0].name + " where it can");
  }
  if (effects.communicates != Communicates::none) {
    add(fmt::format("communicates ({})", name_of(effects.communicates)));
  }
  if (effects.draws) {
    add("draws random numbers");
  }
  if (effects.workspace) {
    add("takes a workspace");
  }
  return text;
}

/// Operands of this shape on the meta device; one tensor for a list.
std::vector<Tensor> operands_of(const Op& op, const Dims& shape, DType dtype) {
  std::vector<Tensor> in;
  for (const Op::Parameter& operand : op.operands) {
    const bool optional = operand.type.find('?') != std::string::npos;
    in.push_back(optional ? Tensor() : empty(shape, dtype, meta));
  }
  return in;
}

std::string placement_text(std::span<const Placement> placements) {
  std::string text;
  for (const Placement& p : placements) {
    text += (text.empty() ? "" : ", ") + to_string(p);
  }
  return text;
}

/// The first operands that the operator accepts, and what its rule says of them.
std::string propagation_of(const Op& op, const Attributes& arguments) {
  if (op.rule == nullptr) {
    return op.distributed != nullptr ? "  any layout; the operator is a conversion of layouts\n"
                                     : "  only Replicate\n";
  }
  for (const Dims& shape : {Dims{4, 6}, Dims{6, 6}, Dims{2, 4, 6}, Dims{2, 4, 6, 8}, Dims{6}}) {
    for (const DType dtype : {DType::f32, DType::i64, DType::boolean}) {
      const std::vector<Tensor> in = operands_of(op, shape, dtype);
      const Call call{op, in, arguments};
      ResultShapes out;
      Strategies strategies;
      try {
        if (op.infer != nullptr) {
          op.infer(call, out);
        }
        op.rule({call, out, 0, 2, [](std::size_t, int) { return std::int64_t{2}; }}, strategies);
      } catch (const Error&) {
        continue;  // these operands do not suit the operator
      }
      std::string text = fmt::format("  for operands of {} {}, on one mesh axis:\n", name_of(dtype),
                                     to_string(shape));
      for (const Strategy& s : strategies) {
        text += fmt::format("    {} -> {}\n", placement_text(s.in), placement_text(s.out));
      }
      return text + "    Replicate for all operands and results\n";
    }
  }
  return "  operands of unlike shapes or types: see docs/operators.md\n";
}

/// A registered operator, or one that a plugin provides. Errors (input): neither; the nearest name
/// is offered.
const Op& named(const std::string& name) {
  std::vector<std::string> names;
  for (const Op* op : all_ops()) {
    if (op->name == name) {
      return *op;
    }
    names.push_back(op->name);
  }
  const std::string meant = did_you_mean(name, names);
  if (!meant.empty()) {
    fail_input({.thing = "ops", .wrong = fmt::format("no operator is called '{}'{}", name, meant)});
  }
  return load_operator(name);
}

int print_all() {
  TableRows rows{{"operator", "effects", "what it computes"}};
  for (const Op* op : all_ops()) {
    if (op->form_of == nullptr) {
      rows.push_back({op->schema, effects_text(*op), op->about});
    }
  }
  const std::string text = format_table(rows, "");
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace

int run_ops(const OpsArguments& arguments) {
  if (arguments.name.empty()) {
    if (!arguments.values.empty()) {
      fail_input({.thing = "ops",
                  .wrong = "--arguments needs the name of an operator",
                  .advice = "name one"});
    }
    return print_all();
  }
  const Op& op = named(arguments.name);
  const Attributes values = arguments.values.empty() && op.arguments != nullptr
                                ? op.arguments->blank()
                                : parse_arguments(op, arguments.values);
  fmt::print("{}\n  {}\n", op.schema, op.about);
  const std::string effects = effects_text(op);
  fmt::print("effects\n  {}\n", effects.empty() ? "none but its results" : effects);
  fmt::print("gradient\n  {}\n", op.backward != nullptr ? "yes" : "no");
  if (!op.parameters.empty()) {
    fmt::print("arguments\n");
    for (const Op::Parameter& p : op.parameters) {
      fmt::print("  {}: {}{}\n", p.name, p.type,
                 p.dynamic ? ", may change from call to call" : ", decides shapes or layouts");
    }
  }
  fmt::print("propagates{}\n{}",
             op.arguments == nullptr ? "" : " with " + print_arguments(op, values),
             propagation_of(op, values));
  return 0;
}

}  // namespace tessera::app
