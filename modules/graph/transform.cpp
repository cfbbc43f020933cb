module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.plugin;
import tessera.device;
import tessera.tensor;
import tessera.record;
import :checks;
import :shadow;
import :transform;
import :verify;

namespace tessera::graph {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<Transform>();

/// What operators see of a tensor before there are values.
Tensor described(const ProgramTensor& tensor) { return empty(tensor.shape, tensor.dtype, meta); }

bool same_form(const ProgramTensor& a, const Tensor& b) {
  return a.shape == b.shape() && a.dtype == b.dtype();
}

std::string form_of(const Dims& shape, DType dtype) {
  return fmt::format("{}{}", name_of(dtype), to_string(shape));
}

}  // namespace

Editor::Editor(Program& program, AddedState& state) : program_(program), state_(state) {}

int Editor::state(const std::string& name, const Tensor& initial) {
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
  program_.tensors.push_back({{initial.shape(), initial.dtype()}, {}, MemoryCategory::optimizer});
  return program_.inputs[input] = static_cast<int>(program_.tensors.size()) - 1;
}

void Editor::move_to(std::size_t section, std::size_t at) {
  if (section >= program_.sections.size() || at > program_.sections[section].instructions.size()) {
    fail({.thing = "Editor::move_to",
          .wrong = fmt::format("there is no instruction {} in section {}", at, section)});
  }
  section_ = section;
  at_ = at;
}

std::vector<int> Editor::call(std::string_view op, const std::vector<int>& in,
                              std::string_view arguments) {
  Instruction made{.op = &find_op(op), .in = in};
  made.attributes = parse_arguments(*made.op, arguments);
  std::vector<Tensor> operands;
  for (const int number : in) {
    if (number >= static_cast<int>(program_.tensors.size())) {
      fail({.thing = std::string(op), .wrong = fmt::format("there is no %{}", number)});
    }
    operands.push_back(number < 0 ? Tensor() : described(program_.tensors[index(number)]));
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
      program_.tensors.push_back({shape, {}, MemoryCategory::activation});
      made.out.push_back(static_cast<int>(program_.tensors.size()) - 1);
    }
  }
  std::vector<Instruction>& instructions = program_.sections.at(section_).instructions;
  if (!instructions.empty()) {
    made.scope = instructions[std::min(at_, instructions.size() - 1)].scope;
  }
  const std::vector<int> results = made.out;
  instructions.insert(std::next(instructions.begin(), static_cast<std::ptrdiff_t>(at_)),
                      std::move(made));
  ++at_;
  return results;
}

int Editor::value(std::string_view op, const std::vector<int>& in, std::string_view arguments) {
  const std::vector<int> results = call(op, in, arguments);
  if (results.size() != 1) {
    fail({.thing = std::string(op),
          .wrong = "it does not have one result",
          .got = fmt::format("{}", results.size()),
          .advice = "use Editor::call"});
  }
  return results.front();
}

std::vector<std::string> transform_names() {
  return plugin::host().names(Transform::plugin_kind.name);
}

void check_transforms(std::span<const std::string> names) {
  if (names.empty()) {
    return;  // a program without plugins has no host
  }
  const std::vector<std::string> known = transform_names();
  for (const std::string& name : names) {
    if (std::ranges::find(known, name) == known.end()) {
      fail_input({.thing = "transforms",
                  .wrong = fmt::format("there is no transformation '{}'", name),
                  .expected = known.empty() ? "" : fmt::format("one of {}", join_words(known)),
                  .advice = "'tessera plugin list' shows the plugins"});
    }
  }
}

Transform find_transform(const std::string& name) {
  check_transforms({&name, 1});
  Transform transform = plugin::host().find<Transform>(name)();
  if (transform.name != name || !transform.run) {
    fail({.thing = fmt::format("transformation '{}'", name),
          .wrong = transform.run ? "its plugin returned one of another name"
                                 : "its plugin returned one without a function",
          .expected = fmt::format("'{}'", name),
          .got = fmt::format("'{}'", transform.name)});
  }
  return transform;
}

void run_transform(const Transform& transform, Program& program, AddedState& state) {
  const Program before = program;
  try {
    Editor editor(program, state);
    transform.run(editor);
    verify(program);
    for (const auto& [name, number] : before.outputs) {
      if (!program.outputs.contains(name)) {
        fail({.thing = "program", .wrong = fmt::format("it has no output '{}' any more", name)});
      }
    }
    for (const auto& [name, number] : program.inputs) {
      const ProgramTensor& input = program.tensors[index(number)];
      const auto own = state.find(name);
      const auto given = before.inputs.find(name);
      const bool fits = own != state.end()
                            ? same_form(input, own->second)
                            : given != before.inputs.end() &&
                                  same_form(input, described(before.tensors[index(given->second)]));
      if (!fits) {
        fail({.thing = "program",
              .wrong = fmt::format("nothing has its input '{}' ({})", name,
                                   form_of(input.shape, input.dtype)),
              .advice = "add state with Editor::state"});
      }
    }
  } catch (const Error& error) {
    ErrorFields fields = error.fields();
    fields.thing = fields.thing.empty()
                       ? fmt::format("transformation '{}'", transform.name)
                       : fmt::format("transformation '{}': {}", transform.name, fields.thing);
    throw Error(std::move(fields), error.kind());
  }
}

}  // namespace tessera::graph
