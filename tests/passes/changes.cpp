// A change of captured steps and its facts: where the host lets it be used, and what it finds.
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.nn;
import tessera.program;
import tessera.passes;

#include "program_text.hpp"

using namespace tessera;
using graph::Change;
using graph_test::program;
using testing::error_of;

namespace {

const std::string step =
    "input %0: f32[2] = x\n"
    "section step\n"
    "  %1: f32[2] = exp(%0)\n"
    "  %2: f32[2] = neg(%0)\n"
    "output %1 = y\n";

void double_output(graph::Editor& edit) {
  TensorIndex& y = edit.program().outputs.at("y");
  edit.move_to(0, 2);
  y = edit.value("add", {y, y}, "alpha=1");
}

void nothing(graph::Editor& /*edit*/) {}

std::shared_ptr<nn::Module> same(const std::string& /*name*/,
                                 const std::shared_ptr<nn::Module>& /*module*/) {
  return nullptr;
}

std::string error_in(const Change& change, const std::string& body = step) {
  Program changed = program(body);
  graph::AddedState added;
  return error_of([&] { graph::run_change(change, changed, added); });
}

std::string contradiction(const Change& change) {
  return error_of([&] { graph::check_facts(change); });
}

}  // namespace

TEST_CASE("facts that contradict a change's functions are refused") {
  CHECK(contradiction({.name = "T"}) ==
        "change 'T': it has no function; set Change::run or Change::replacement");
  CHECK(contradiction({.name = "T", .facts = {.needs_loss = true}, .replacement = same}) ==
        "change 'T': it says that it needs the loss and changes no program; set Change::run, or "
        "leave needs_loss out");
  CHECK(contradiction({.name = "T", .facts = {.evaluates_as_written = true}, .run = nothing}) ==
        "change 'T': it speaks of evaluations of the model as it is written and replaces no "
        "module; set Change::replacement, or leave evaluates_as_written out");
  const std::string of_a_pass =
      "change 'T': it has facts of a pass, and does not keep bits or acts before distribution; set "
      "keeps_bits, or leave those facts out";
  CHECK(contradiction({.name = "T", .facts = {.moves_communication = true}, .run = nothing}) ==
        of_a_pass);
  CHECK(contradiction({.name = "T",
                       .facts = {.keeps_bits = true, .ends_lifetimes = true},
                       .run = nothing,
                       .replacement = same}) == of_a_pass);
  CHECK(contradiction({.name = "T", .run = nothing, .keeps = graph::PartialPass()}) == of_a_pass);
  for (const Change& pass : graph::built_in_passes()) {
    CHECK_NOTHROW(graph::check_facts(pass));
    CHECK(graph::is_pass(pass));
  }
}

TEST_CASE("a change that says that it keeps bits and does not is found after it has run") {
  CHECK(error_in({.name = "T", .run = double_output}) == "no error");
  CHECK(error_in({.name = "T", .facts = {.keeps_bits = true}, .run = double_output})
            .starts_with("change 'T': program: it is not the same after a pass: output y"));
  CHECK(error_in({.name = "T",
                  .facts = {.keeps_bits = true},
                  .run = [](graph::Editor& edit) { edit.state("s", zeros({})); }})
            .starts_with("change 'T': program: it is not the same after a pass: it has other "
                         "inputs or outputs"));
  CHECK(error_in({.name = "T", .facts = {.keeps_bits = true}, .run = [](graph::Editor& edit) {
                    std::erase_if(edit.program().sections[0].instructions,
                                  [](const auto& i) { return i.op->name == "neg"; });
                  }}) == "no error");
}

TEST_CASE("the loss is for changes that say that they need it, in programs that have one") {
  const Change reads{.name = "T", .facts = {.needs_loss = true}, .run = [](graph::Editor& edit) {
                       static_cast<void>(edit.loss());
                     }};
  CHECK(error_in(reads) ==
        "change 'T': it needs the loss, and this program has no output of it (expected an output "
        "'loss'); use it with steps that compute a loss, on ranks that have it");
  const std::string with_loss = step + "output %2 = loss\n";
  CHECK(error_in(reads, with_loss) == "no error");
  CHECK(error_in({.name = "T", .run = reads.run}, with_loss) ==
        "change 'T': Editor::loss: the facts of this change do not say that it needs the loss; set "
        "ChangeFacts::needs_loss");
}

TEST_CASE("facts decide whether a change is a pass, and where it is in an order") {
  plugin::host().add<Change>("Doubles",
                             [] { return Change{.name = "Doubles", .run = double_output}; });
  plugin::host().add<Change>("Last", [] {
    return Change{.name = "Last",
                  .facts = {.keeps_bits = true, .after = {"dead", "lifetimes"}},
                  .run = nothing};
  });
  const auto refused = [](const std::vector<std::string>& names) {
    return error_of([&] { graph::check_passes(names); });
  };
  CHECK(refused({"dead", "Doubles"}) ==
        "changes: 'Doubles' is no pass: it changes what steps compute; name it in "
        "graph.transforms");
  CHECK(refused({"dead", "Last"}) ==
        "changes: 'Last' needs 'lifetimes' before it; add 'lifetimes' before 'Last'");
  CHECK(refused({"lifetimes", "dead", "Last"}) == "no error");
  CHECK(graph::facts_in_words(graph::find_change("Doubles")) ==
        std::vector<std::string>{"after distribution: changes the program",
                                 "changes what steps compute", "named in graph.transforms"});
  CHECK(graph::facts_in_words(graph::find_change("Last")) ==
        std::vector<std::string>{"after distribution: changes the program", "keeps bits",
                                 "after dead and lifetimes",
                                 "named in graph.passes or graph.transforms"});
}
