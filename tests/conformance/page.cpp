// docs/operators.md, from the registry.
#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.conformance;

#include "conformance.hpp"

namespace tessera::testing {
namespace {

constexpr const char* introduction = R"(# Operators

All registered operators. A test generates this page from the registry; after a change of operators, regenerate it with

<!-- not run: it writes this page -->
```sh
TESSERA_WRITE_OPERATORS_PAGE=1 build/release/bin/test_conformance '[page]'
```

*Propagates* lists what the placement rule accepts on one mesh axis, for the operands of an example: a placement for each
operand, an arrow, and a placement for each result. S0 is Shard(0), R Replicate, P Partial(sum), P' Partial(sum) or
Partial(avg), P* Partial of any reduction, N2 Partial(norm(2)). All-reduces in brackets are a part of the operator: they
reduce one number per row or result. R for all operands and results is always accepted and is not listed. On several axes,
each axis follows a line of its own; so does each tensor of a `foreach` list. A Replicate operand can also be used as S or
P without communication.

Any other placement is an error that names the operand and the `redistribute` call that fixes it. Within an
`AllowRedistribution` scope, the operands are redistributed to the cheapest line, or to R. It takes one all-gather of the
tensor to change a shard to R, and one all-reduce to change a Partial to R.

*Gradient*: whether the operator has a gradient. An operator whose name ends in `_` writes its first operand. Elementwise
operators have variants that are not listed separately; the last column names them: `_` writes the first operand (`add_`),
`_out` writes a tensor that comes before the operands. A variant accepts the lines that keep the layout of the written
tensor.

Functions that are not listed call several operators: `group_norm`, `batch_norm`, `conv1d`, `chunk`, `movedim`, `repeat`,
`take_along_dim` and others in [modules/ops](../modules/ops). `nonzero` and `masked_select` take plain tensors only, because
the shapes of their results depend on the data. The results of the operator `unique` have as many elements as x; the
function cuts off the padding.
)";

std::string in_short(Placement p) {
  if (p.is_norm()) {
    constexpr std::size_t around = std::string_view("Partial(norm(").size();
    const std::string text = to_string(p);
    return "N" + text.substr(around, text.size() - around - 2);
  }
  if (p.is_shard()) {
    return "S" + std::to_string(p.dim());
  }
  return p.is_replicate() ? "R" : "P" + std::to_string(static_cast<int>(p.reduce_op()));
}

std::string line_of(const Strategy& s, const CallSample& sample) {
  std::string line;
  for (std::size_t i = 0; i < s.in.size(); ++i) {
    line += sample.inputs[i] ? in_short(s.in[i]) + " " : "";
  }
  line += "→";
  for (const Placement p : s.out) {
    line += " " + in_short(p);
  }
  std::string reductions;
  for (const InnerReduction& reduction : s.reductions) {
    reductions +=
        (reductions.empty() ? " (all-reduce " : ", ") + std::string(name_of(reduction.op));
  }
  return line + reductions + (reductions.empty() ? "" : ")");
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at)) {
    text.replace(at, what.size(), by);
    at += by.size();
  }
  return text;
}

/// One line instead of those that differ in the kind of reduction only.
void join_reductions(std::vector<std::string>& lines) {
  const std::string sum = "P" + std::to_string(static_cast<int>(ReduceOp::sum));
  std::vector<std::string> joined;
  const auto has = [&](const std::string& line) {
    return std::find(lines.begin(), lines.end(), line) != lines.end();
  };
  const auto with = [&](const std::string& line, ReduceOp op) {
    return replaced(line, sum, "P" + std::to_string(static_cast<int>(op)));
  };
  for (const std::string& line : lines) {
    if (line.find(sum) == std::string::npos) {
      continue;
    }
    std::size_t others = 0;
    for (int op = 0; op < reduce_op_count; ++op) {
      others += has(with(line, static_cast<ReduceOp>(op))) ? 1U : 0U;
    }
    const bool any = others == static_cast<std::size_t>(reduce_op_count);
    const bool average = has(with(line, ReduceOp::avg));
    joined.push_back(replaced(line, sum, any ? "P*" : average ? "P'" : "P"));
  }
  // What is left of other reductions belongs to a joined line, or stands alone.
  std::vector<std::string> result;
  for (const std::string& line : lines) {
    if (line.find('P') == std::string::npos) {
      result.push_back(line);
    }
  }
  result.insert(result.end(), joined.begin(), joined.end());
  for (const std::string& line : lines) {
    for (const ReduceOp op : {ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
      const std::string kind = "P" + std::to_string(static_cast<int>(op));
      if (line.find(kind) != std::string::npos && !has(replaced(line, kind, sum))) {
        result.push_back(replaced(line, kind, to_string(Partial(op))));
      }
    }
  }
  lines = result;
}

/// The sample with operands that all lie in one way on two ranks, as far as they can.
CallSample laid_out(const CallSample& sample, Placement placement) {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  CallSample laid = sample;
  for (Tensor& x : laid.inputs) {
    if (!x) {
      continue;
    }
    const Placement p = placement.is_shard() && x.dims() == 0 ? Replicate() : placement;
    const SpecHandle spec = Spec::make(Layout::make(mesh, {p}), x.shape(), x.dtype());
    x = make_distributed(empty(local_shape(*spec), x.dtype(), meta), spec);
  }
  return laid;
}

std::vector<std::string> lines_of(const CallSample& sample) {
  Strategies strategies = strategies_of(sample);
  // A list's tensors stay as they lie: its rule looks at them.
  const auto& operands = sample.op->operands;
  if (!operands.empty() && operands[0].type.find("...") != std::string::npos) {
    for (const Placement placement : {Shard(0), Partial(), Partial(ReduceOp::avg)}) {
      const Strategies more = strategies_of(laid_out(sample, placement));
      strategies.insert(strategies.end(), more.begin(), more.end());
    }
  }
  std::vector<std::string> lines;
  for (const Strategy& s : strategies) {
    const std::string line = line_of(s, sample);
    const bool only_whole = line.find_first_of("SPN") == std::string::npos;
    if (!only_whole && std::find(lines.begin(), lines.end(), line) == lines.end()) {
      lines.push_back(line);
    }
  }
  join_reductions(lines);
  return lines;
}

std::string propagation(const Op& op,
                        const std::map<std::string, std::vector<CallSample>>& samples) {
  if (const auto reason = not_covered().find(op.name); reason != not_covered().end()) {
    return reason->second.substr(0, reason->second.find(':'));
  }
  const CallSample* example = nullptr;
  std::vector<std::string> best;
  for (const CallSample& sample : samples.at(op.name)) {
    std::vector<std::string> lines = lines_of(sample);
    if (example == nullptr || lines.size() > best.size()) {
      example = &sample;
      best = std::move(lines);
    }
  }
  std::string text;
  for (const std::string& line : best) {
    text += (text.empty() ? "" : "; ") + line;
  }
  std::string shapes;
  for (const Tensor& x : example->inputs) {
    shapes += x ? (shapes.empty() ? "" : ", ") + to_string(x.shape()) : "";
  }
  return best.empty() ? "R only" : "for " + shapes + ": " + text;
}

bool is_gradient(const Op& op) {
  return op.name.ends_with("_backward") || op.name.find("_grad_") != std::string::npos;
}

/// "`_` `_out`"
std::string forms_of(const Op& op) {
  std::string forms;
  for (const Op* form : all_ops()) {
    if (form->form_of == &op) {
      forms += (forms.empty() ? "`" : " `") + form->name.substr(op.name.size()) + "`";
    }
  }
  return forms;
}

}  // namespace

std::string operators_page(const std::map<std::string, std::vector<CallSample>>& samples) {
  std::string page = introduction;
  for (const bool gradients : {false, true}) {
    page += gradients ? "\n## Called by gradients\n\n" : "\n## Operators\n\n";
    page +=
        "| operator | result | propagates | gradient | variants |\n"
        "| --- | --- | --- | --- | --- |\n";
    for (const Op* op : all_ops()) {
      if (op->name.starts_with("wrong_") || is_gradient(*op) != gradients ||
          op->form_of != nullptr) {
        continue;
      }
      page += "| `" + op->schema + "` | " + op->about + " | " + propagation(*op, samples) + " | " +
              (op->backward != nullptr ? "yes" : "no") + " | " + forms_of(*op) + " |\n";
    }
  }
  return page;
}

}  // namespace tessera::testing
