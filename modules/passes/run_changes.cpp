module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :change;
import :editor;
import :run_changes;

namespace tessera::graph {
namespace {

void write(const std::string& dump, std::size_t number, const std::string& name,
           const std::string& text) {
  const std::filesystem::path file =
      std::filesystem::path(dump) / fmt::format("{:02}-{}", number, name);
  try_side_work(SideWork::output, "graph.dump", [&] {
    if (const std::string why = write_file(file.string(), text); !why.empty()) {
      fail({.thing = "graph.dump",
            .wrong = fmt::format("cannot write {}: {}", file.string(), why),
            .advice = "name a folder that can be written and has room"});
    }
  });
}

/// `known`: the program as it is; null: unknown.
void edit(const Change& change, Program& program, AddedState& state, const Analysis* known,
          const Agree& agree) {
  if (change.facts.needs_loss && !program.outputs.contains(Editor::loss_output)) {
    fail_input({.wrong = "it needs the loss, and this program has no output of it",
                .expected = fmt::format("an output '{}'", Editor::loss_output),
                .advice = "use it with steps that compute a loss, on ranks that have it"});
  }
  if (change.run) {
    Editor editor(program, state,
                  {.known = known, .agree = agree, .needs_loss = change.facts.needs_loss});
    change.run(editor);
  }
}

/// Optimizers count no step of parameters that the change has left without an update.
void drop_lost_updates(const Program& before, Program& program) {
  const std::vector<std::string> were = before.written();
  const std::vector<std::string> are = program.written();
  std::erase_if(program.updates, [&](const ProgramUpdate& one) {
    return std::ranges::binary_search(were, one.input) &&
           !std::ranges::binary_search(are, one.input);
  });
}

/// Error: an output is gone, or nobody has an input.
void check_ends(const Program& before, const Program& program, const AddedState& state) {
  for (const auto& [name, number] : before.outputs) {
    if (!program.outputs.contains(name)) {
      fail({.thing = "program", .wrong = fmt::format("it has no output '{}' any more", name)});
    }
  }
  for (const auto& [name, of] : program.inputs) {
    const ProgramTensor& input = program.tensors[of.tensor];
    const auto is = [&](const Dims& shape, DType dtype) {
      return input.shape == shape && input.dtype == dtype;
    };
    const auto own = state.find(name);
    const auto given = before.inputs.find(name);
    const ProgramTensor* const was =
        given == before.inputs.end() ? nullptr : &before.tensors[given->second.tensor];
    const bool fits = own != state.end() ? is(own->second.shape(), own->second.dtype())
                                         : was != nullptr && is(was->shape, was->dtype);
    if (!fits) {
      fail({.thing = "program",
            .wrong = fmt::format("nothing has its input '{}' ({}{})", name, name_of(input.dtype),
                                 to_string(input.shape)),
            .advice = "add state with Editor::state"});
    }
  }
}

}  // namespace

void fail_in_change(const std::string& name, const Error& error) {
  ErrorFields fields = error.fields();
  fields.thing =
      fmt::format("change '{}'{}{}", name, fields.thing.empty() ? "" : ": ", fields.thing);
  throw Error(std::move(fields), error.kind());
}

void run_change(const Change& change, Program& program, AddedState& state, const Agree& agree) {
  const Program before = program;
  try {
    edit(change, program, state, nullptr, agree);
    verify(program);
    if (change.facts.keeps_bits) {
      verify_same(before, program);
    }
    drop_lost_updates(before, program);
    check_ends(before, program, state);
  } catch (const Error& error) {
    fail_in_change(change.name, error);
  }
}

std::vector<PassReport> run_passes(Program& program, std::span<const std::string> names,
                                   const std::string& dump, const Agree& agree) {
  check_passes(names);
  return run_checked(program, names, dump, agree);
}

std::vector<PassReport> run_checked(Program& program, std::span<const std::string> names,
                                    const std::string& dump, const Agree& agree) {
  std::unique_ptr<Analysis> known = verified(program);
  ValueNames value_names;
  Values values = values_of(program, *known, value_names);
  if (!dump.empty()) {
    std::error_code ignored;  // write() says so
    std::filesystem::create_directories(dump, ignored);
    write(dump, 0, "recorded.txt", program.to_text());
  }
  std::vector<PassReport> reports;
  for (const std::string& name : names) {
    const Program before = program;
    PassReport report = {
        .name = name, .instructions_before = known->places(), .peak_before = known->peak_bytes()};
    try {
      AddedState none;  // a program with state has another input, which is compared
      edit(find_change(name), program, none, known.get(), agree);
      known = verified(program);
      Values left = values_of(program, *known, value_names);
      compare(before, values, program, left);
      values = std::move(left);
    } catch (const Error& error) {
      fail_in_change(name, error);
    }
    report.instructions_after = known->places();
    report.peak_after = known->peak_bytes();
    reports.push_back(std::move(report));
    if (!dump.empty()) {
      const std::string text = program.to_text();
      write(dump, reports.size(), name + ".txt", text);
      write(dump, reports.size(), name + ".diff", difference(before.to_text(), text));
    }
  }
  return reports;
}

}  // namespace tessera::graph
