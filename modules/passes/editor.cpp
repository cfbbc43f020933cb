module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;
import :editor;

namespace tessera::graph {
namespace {

/// A tensor as operators see it before there are values.
Tensor described(const ProgramTensor& tensor) { return empty(tensor.shape, tensor.dtype, meta); }

bool same_form(const ProgramTensor& a, const Tensor& b) {
  return a.shape == b.shape() && a.dtype == b.dtype();
}

std::string form_of(const Dims& shape, DType dtype) {
  return fmt::format("{}{}", name_of(dtype), to_string(shape));
}

}  // namespace

std::vector<bool> suppose_agreement(std::span<const Proposal> proposals) {
  return std::vector<bool>(proposals.size(), true);
}

Editor::Editor(Program& program, AddedState& state) : Editor(program, state, EditorOptions()) {}

Editor::Editor(Program& program, AddedState& state, EditorOptions given)
    : program_(program), state_(state), given_(std::move(given)) {}

Editor::~Editor() = default;

const Analysis& Editor::known() {
  if (given_.known == nullptr) {
    made_ = std::make_unique<Analysis>(program_);
    given_.known = made_.get();
  }
  return *given_.known;
}

TensorIndex Editor::loss() const {
  if (!given_.needs_loss) {
    fail({.thing = "Editor::loss",
          .wrong = "the facts of this change do not say that it needs the loss",
          .advice = "set ChangeFacts::needs_loss"});
  }
  return program_.outputs.at(loss_output);  // its host has looked
}

TensorIndex Editor::state(const std::string& name, const Tensor& initial) {
  const std::string input = "transform." + name;
  if (program_.inputs.contains(input)) {
    fail(
        {.thing = input, .wrong = "the step has this state already", .advice = "use another name"});
  }
  if (initial.device() != cpu || !initial.is_contiguous()) {
    fail({.thing = input, .wrong = "state must be contiguous and on the CPU"});
  }
  const auto [found, is_new] = state_.try_emplace(input, initial);
  if (!is_new &&
      (!(found->second.shape() == initial.shape()) || found->second.dtype() != initial.dtype())) {
    fail({.thing = input,
          .wrong = "another step of this run, or its checkpoint, has this state in another form",
          .expected = form_of(found->second.shape(), found->second.dtype()),
          .got = form_of(initial.shape(), initial.dtype())});
  }
  const TensorIndex tensor =
      program_.tensors.add({{initial.shape(), initial.dtype()}, {}, MemoryCategory::optimizer});
  program_.inputs[input] = {.tensor = tensor, .role = Role::transform_state};
  return tensor;
}

void Editor::move_to(std::size_t section, std::size_t at) {
  if (section >= program_.sections.size() || at > program_.sections[section].instructions.size()) {
    fail({.thing = "Editor::move_to",
          .wrong = fmt::format("there is no instruction {} in section {}", at, section)});
  }
  section_ = section;
  at_ = at;
}

std::vector<TensorIndex> Editor::call(std::string_view op, const std::vector<TensorIndex>& in,
                                      std::string_view arguments) {
  Instruction made{.op = &find_op(op), .in = in};
  made.attributes = parse_arguments(*made.op, arguments);
  std::vector<Tensor> operands;
  for (const TensorIndex number : in) {
    if (number.exists() && !program_.tensors.contains(number)) {
      fail({.thing = std::string(op), .wrong = "there is no " + to_text(number)});
    }
    operands.push_back(number.exists() ? described(program_.tensors[number]) : Tensor());
  }
  check_call(*made.op, operands, made.attributes);
  if (made.op->view != nullptr) {
    fail({.thing = std::string(op),
          .wrong = "it makes a view, which programs have as memory.alias",
          .advice = "use `reshape`, or an operator that computes a new tensor"});
  }
  if (!made.op->in_place) {
    const Call call{*made.op, operands, made.attributes};
    ResultShapes shapes;
    made.op->infer(call, shapes);
    for (const ResultShape& shape : shapes) {
      made.out.push_back(program_.tensors.add({shape, {}, MemoryCategory::activation}));
    }
  }
  std::vector<Instruction>& instructions = program_.sections.at(section_).instructions;
  if (!instructions.empty()) {
    made.scope = instructions[std::min(at_, instructions.size() - 1)].scope;
  }
  const std::vector<TensorIndex> results = made.out;
  instructions.insert(std::next(instructions.begin(), static_cast<std::ptrdiff_t>(at_)),
                      std::move(made));
  ++at_;
  return results;
}

TensorIndex Editor::value(std::string_view op, const std::vector<TensorIndex>& in,
                          std::string_view arguments) {
  const std::vector<TensorIndex> results = call(op, in, arguments);
  if (results.size() != 1) {
    fail({.thing = std::string(op),
          .wrong = "it does not have one result",
          .got = fmt::format("{}", results.size()),
          .advice = "use Editor::call"});
  }
  return results.front();
}

void Editor::remove_input(const std::string& name) {
  const auto found = program_.inputs.find(name);
  if (found == program_.inputs.end()) {
    fail({.thing = "Editor::remove_input",
          .wrong = fmt::format("the step has no input '{}'", name)});
  }
  const auto used = [&](const std::vector<TensorIndex>& tensors) {
    return std::ranges::find(tensors, found->second.tensor) != tensors.end();
  };
  PlaceIndex place(0);
  for (const Instruction* i : places_of(program_)) {
    if (used(i->in)) {
      fail({.thing = "Editor::remove_input",
            .wrong = fmt::format("'{}' is used in {}", name, place_in_words(program_, place)),
            .advice = "remove what uses it first"});
    }
    ++place;
  }
  for (const auto& [output, number] : program_.outputs) {
    if (number == found->second.tensor) {
      fail({.thing = "Editor::remove_input",
            .wrong = fmt::format("'{}' is the output '{}'", name, output)});
    }
  }
  std::erase_if(program_.updates, [&](const ProgramUpdate& one) { return one.input == name; });
  program_.inputs.erase(found);
}

std::optional<ProgramPlace> Editor::find(std::string_view op) const {
  for (std::size_t section = 0; section < program_.sections.size(); ++section) {
    const std::vector<Instruction>& all = program_.sections[section].instructions;
    const auto found = std::ranges::find_if(all, [&](const Instruction& i) {
      return i.kind == Instruction::Kind::call && i.op->name == op;
    });
    if (found != all.end()) {
      return ProgramPlace{section, static_cast<std::size_t>(found - all.begin())};
    }
  }
  return std::nullopt;
}

void Editor::use_instead(TensorIndex before, TensorIndex after, std::string_view op) {
  bool used = false;
  const auto rename = [&](TensorIndex& number) {
    used = used || number == before;
    number = number == before && after.exists() ? after : number;
  };
  for (Section& section : program_.sections) {
    for (Instruction& i : section.instructions) {
      std::ranges::for_each(i.in, rename);
    }
  }
  for (auto& [name, number] : program_.outputs) {
    rename(number);
  }
  if (used && !after.exists()) {
    fail({.thing = std::string(op),
          .wrong =
              fmt::format("nothing was made for its result {}, which is used", to_text(before))});
  }
}

void Editor::replace(
    ProgramPlace place,
    const std::function<std::vector<TensorIndex>(const std::vector<TensorIndex>& in)>& make) {
  move_to(place.section, place.at);
  std::vector<Instruction>& instructions = program_.sections[section_].instructions;
  if (place.at == instructions.size() || instructions[place.at].out.empty() ||
      instructions[place.at].kind != Instruction::Kind::call) {
    fail({.thing = "Editor::replace",
          .wrong = fmt::format("instruction {} of section {} is no call that makes results",
                               place.at, place.section)});
  }
  const Instruction before = instructions[place.at];
  const std::vector<TensorIndex> made =
      make(before.in);  // in the scope of the call, which is still there
  const auto old = std::ranges::find_if(
      instructions, [&](const Instruction& i) { return i.op == before.op && i.out == before.out; });
  if (old != instructions.end()) {
    at_ -= static_cast<std::size_t>(old - instructions.begin()) < at_ ? 1 : 0;
    instructions.erase(old);
  }
  if (made.size() != before.out.size()) {
    fail({.thing = std::string(before.op->name),
          .wrong = "what takes its place has another number of results",
          .expected = fmt::format("{}", before.out.size()),
          .got = fmt::format("{}", made.size())});
  }
  for (std::size_t k = 0; k < made.size(); ++k) {
    if (!before.out[k].exists()) {
      continue;
    }
    const ProgramTensor& expected = program_.tensors[before.out[k]];
    const bool is_missing = made[k].exists() && !program_.tensors.contains(made[k]);
    if (is_missing ||
        (made[k].exists() && !same_form(program_.tensors[made[k]], described(expected)))) {
      fail({.thing = std::string(before.op->name),
            .wrong = fmt::format("what takes the place of result {} does not fit", k),
            .expected = form_of(expected.shape, expected.dtype),
            .got = is_missing ? to_text(made[k]) + ", which does not exist"
                              : form_of(program_.tensors[made[k]].shape,
                                        program_.tensors[made[k]].dtype)});
    }
    use_instead(before.out[k], made[k], before.op->name);
  }
}

}  // namespace tessera::graph
