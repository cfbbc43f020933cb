module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :anchor;

namespace tessera::graph {
namespace {

/// Kernel that makes an operator an anchor. Error: it is called where something is computed.
void compute_nothing(const Call& call, std::span<Tensor> /*out*/) {
  fail({.thing = std::string(call.op.name),
        .wrong = "it marks a place in captured steps and computes nothing",
        .advice = "take captured steps, with the change that replaces it"});
}

/// How many operands the call has that this is the gradient of: each result has at least one
/// gradient, and form_of is the call's operator.
void infer_gradient(const Call& call, ResultShapes& out) {
  const std::size_t count = call.op.form_of->operands.size();
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back({call.in[i].shape(), call.in[i].dtype()});
  }
}

void call_gradient(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  std::vector<Tensor> operands(context.in.begin(), context.in.end());
  operands.insert(operands.end(), grads.begin(), grads.end());
  const Tensors made = call(find_op(context.op.name + "_backward"), operands);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (context.needs(i)) {
      out[i] = made[i];
    }
  }
}

/// "name(a, b" of "name(a, b)".
std::string opened(const std::string& schema) {
  const std::size_t end = schema.find(')');
  if (end == std::string::npos || schema.find('(') + 1 >= end) {
    fail({.thing = "register_anchor",
          .wrong = "the schema has no operands",
          .expected = "the form \"name(a, b)\"",
          .got = fmt::format("'{}'", schema)});
  }
  return schema.substr(0, end);
}

}  // namespace

const Op& register_anchor(const Anchor& anchor) {
  const std::string forward = opened(anchor.schema);
  const std::size_t name = forward.find('(');
  // `planned`: what it communicates is not known yet, so nothing that communicates may pass it.
  const Op& op = register_op({.schema = anchor.schema,
                              .infer = anchor.infer,
                              .cpu = compute_nothing,
                              .any_device = compute_nothing,
                              .backward = call_gradient,
                              .saves_inputs = saves_all,
                              .communicates = Communicates::planned,
                              .about = anchor.about});
  register_op({.schema = fmt::format("{}_backward{}, gradients...?)", forward.substr(0, name),
                                     forward.substr(name)),
               .infer = infer_gradient,
               .cpu = compute_nothing,
               .any_device = compute_nothing,
               .communicates = Communicates::planned,
               .form_of = &op,
               .about = "The gradient of an anchor: " + anchor.about});
  return op;
}

bool is_anchor(const Op& op) { return op.cpu == compute_nothing; }

void check_no_anchors(const Program& program) {
  PlaceIndex place(0);
  for (const Instruction* i : places_of(program)) {
    if (i->kind == Instruction::Kind::call && is_anchor(*i->op)) {
      fail_input({.thing = fmt::format("anchor '{}'", i->op->name),
                  .wrong = "nothing was put in its place in " + place_in_words(program, place),
                  .advice = "replace it by Editor::replace in a change of this run"});
    }
    ++place;
  }
}

}  // namespace tessera::graph
