module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.collective;
import tessera.app.base;
import tessera.app.config;
import tessera.runs;
import tessera.app.run;
import :page;
import :subcommands;

namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;

/// JSON has no infinities.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
Json number(const std::optional<double>& value) { return value ? number(*value) : Json(nullptr); }

Json as_json(const runs::ReplayStep& step) {
  Json all = {{"step", step.step},
              {"checkpoint", step.checkpoint},
              {"loss", number(step.loss)},
              {"recorded_loss", number(step.recorded_loss)},
              {"grad_norm", number(step.grad_norm)},
              {"recorded_grad_norm", number(step.recorded_norm)},
              {"lr", step.lr},
              {"skipped", step.skipped},
              {"same", step.recorded_loss ? Json(step.same()) : Json(nullptr)}};
  if (step.rows_are_loss) {
    all["rows_are_loss"] = *step.rows_are_loss;
    all["terms"] = Json::object();
    for (const auto& [name, sum] : step.terms) {
      all["terms"][name] = number(sum);
    }
    all["rows"] = Json::array();
    for (const runs::ReplayRow& row : step.rows) {
      Json documents = Json::array();
      for (const runs::ReplayDocument& document : row.documents) {
        documents.push_back({{"place", document.place},
                             {"begin", document.begin},
                             {"end", document.end},
                             {"trained", document.trained},
                             {"loss", number(document.loss)}});
      }
      all["rows"].push_back({{"row", row.row},
                             {"trained", row.trained},
                             {"loss", number(row.loss)},
                             {"documents", documents}});
    }
    all["tokens"] = Json::array();
    for (const runs::ReplayToken& token : step.tokens) {
      all["tokens"].push_back({{"row", token.row},
                               {"position", token.position},
                               {"place", token.place},
                               {"token", token.token},
                               {"text", shown(token.text)},
                               {"loss", number(token.loss)}});
    }
  }
  for (const runs::ReplayModule& module : step.modules) {
    all["modules"].push_back({{"name", module.name},
                              {"activations", number(module.activations)},
                              {"gradients", number(module.gradients)}});
  }
  all["updates"] = Json::array();
  for (const runs::ReplayUpdate& update : step.updates) {
    all["updates"].push_back({{"group", update.group},
                              {"parameters", update.parameters},
                              {"before", number(update.before)},
                              {"change", number(update.change)}});
  }
  if (!step.note.empty()) {
    all["note"] = step.note;
  }
  return all;
}

std::string mean_text(double loss, std::int64_t trained) {
  return trained == 0 ? "-" : fmt::format("{:.4f}", loss / static_cast<double>(trained));
}

std::string compared(const char* what, double now, const std::optional<double>& recorded) {
  return fmt::format("{} {}{}", what, now,
                     !recorded          ? ", which the run has not recorded"
                     : *recorded == now ? ", as recorded"
                                        : fmt::format(", and {} was recorded", *recorded));
}

/// The parts of the answer, for people.
std::vector<PageSection> sections_of(const runs::ReplayStep& step) {
  std::vector<PageSection> all;
  std::string head =
      fmt::format("{}\n{}\nlearning rate {:g}{}\ncomputed from {}\n",
                  compared("loss", step.loss, step.recorded_loss),
                  compared("gradient norm", step.grad_norm, step.recorded_norm), step.lr,
                  step.skipped ? "; the update was left out" : "", shown(step.checkpoint));
  if (step.rows_are_loss) {
    std::string terms;
    for (const auto& [name, sum] : step.terms) {
      terms += fmt::format("{}{} ({:.4f})", terms.empty() ? " and the term of " : ", ", name, sum);
    }
    head += fmt::format("the losses of the rows{} {} the loss, in all bits\n", terms,
                        *step.rows_are_loss ? "are" : "are not");
  }
  head += step.note.empty() ? "" : step.note + "\n";
  all.push_back({.title = fmt::format("Step {}", step.step), .text = head});
  if (!step.rows.empty()) {
    TableRows rows{{"row", "place", "tokens", "trained", "mean loss", "loss"}};
    for (const runs::ReplayRow& row : step.rows) {
      for (std::size_t i = 0; i < row.documents.size(); ++i) {
        const runs::ReplayDocument& document = row.documents[i];
        rows.push_back({i == 0 ? fmt::format("{}", row.row) : "", shown(document.place),
                        fmt::format("{}-{}", document.begin, document.end - 1),
                        fmt::format("{}", document.trained),
                        mean_text(document.loss, row.trained == 1 ? 1 : document.trained),
                        fmt::format("{:.4f}", document.loss)});
      }
    }
    all.push_back({.title = "Rows, the largest mean loss first", .text = format_table(rows)});
  }
  if (!step.tokens.empty()) {
    TableRows tokens{{"loss", "token", "text", "row", "position", "place"}};
    for (const runs::ReplayToken& token : step.tokens) {
      tokens.push_back({fmt::format("{:.4f}", token.loss), fmt::format("{}", token.token),
                        shown(token.text, 40), fmt::format("{}", token.row),
                        fmt::format("{}", token.position), shown(token.place)});
    }
    all.push_back({.title = "Tokens that lost most", .text = format_table(tokens)});
  }
  if (!step.modules.empty()) {
    TableRows modules{{"module", "activations", "gradients"}};
    for (const runs::ReplayModule& module : step.modules) {
      modules.push_back({module.name.empty() ? "(the model)" : module.name,
                         fmt::format("{:.6g}", module.activations),
                         module.gradients ? fmt::format("{:.6g}", *module.gradients) : "-"});
    }
    all.push_back({.title = "Norms of modules", .text = format_table(modules)});
  }
  TableRows updates{{"parameters", "elements", "norm", "norm of the change", "share"}};
  for (const runs::ReplayUpdate& update : step.updates) {
    updates.push_back(
        {update.group, fmt::format("{}", update.parameters), fmt::format("{:.6g}", update.before),
         fmt::format("{:.6g}", update.change),
         fmt::format("{:.3g}", update.before > 0 ? update.change / update.before : 0)});
  }
  all.push_back({.title = "Update", .text = format_table(updates)});
  return all;
}

runs::ReplayRequest request_of(const QuestionArguments& arguments) {
  runs::ReplayRequest request{.step = arguments.step,
                              .rows = arguments.rows,
                              .modules = arguments.modules,
                              .from_beginning = arguments.from_beginning,
                              .device = arguments.device};
  if (arguments.record.empty()) {
    return request;
  }
  std::error_code error;
  std::filesystem::create_directories(arguments.record, error);
  if (error || !std::filesystem::is_empty(arguments.record, error)) {
    fail_input({.thing = "--record",
                .wrong = error ? fmt::format("{} cannot be made: {}", shown(arguments.record),
                                             error.message())
                               : fmt::format("{} is not empty", shown(arguments.record)),
                .advice = "name a new folder"});
  }
  if (arguments.record_from < 0 || arguments.record_from > arguments.step) {
    fail_input({.thing = "--record-from",
                .wrong = "it is not a step up to that of the replay",
                .expected = fmt::format("1 to {}", arguments.step),
                .got = fmt::format("{}", arguments.record_from)});
  }
  request.record = {.folder = arguments.record,
                    .first = arguments.record_from,
                    .view = runs::recorded_view(arguments.record_as),
                    .captured = arguments.captured};
  if (!arguments.record_values.empty()) {
    request.record->values = {.rank = static_cast<int>(arguments.record_values.at(0)),
                              .number = arguments.record_values.at(1)};
  }
  return request;
}

}  // namespace

int run_replay(const QuestionArguments& arguments) {
  std::optional<runs::RunSpec> layout;
  if (!arguments.layout.empty()) {
    layout = load_config(arguments.layout, {}, [&](const runs::RunSpec& opened) {
      runs::use_plugins(opened, arguments.plugins);
    });
  }
  const runs::RecordedRun run = runs::open_recorded(arguments.run, arguments.plugins,
                                                    arguments.step, layout ? &*layout : nullptr);
  const runs::ReplayRequest request = request_of(arguments);
  const ScratchFolder scratch("replay");
  const runs::OpenedRun opened = runs::open_replay(run, request, layout, scratch.path());
  if (request.record) {
    runs::record_rows(opened, request);
  }
  const std::string text = text_of_ranks(
      runs::launch_options(opened),
      [&](collective::World& world) { return runs::replay_rank(opened, request, world); });
  const runs::ReplayStep step = runs::replayed_step(text, run, opened);
  if (request.record) {
    write_output("replay", arguments.record + "/step.json", json_text(as_json(step), 2));
  }
  const std::vector<PageSection> sections = sections_of(step);
  if (!arguments.html.empty()) {
    write_output("replay", arguments.html,
                 page_of(fmt::format("Step {} of {}", step.step, run.folder), sections));
  }
  if (arguments.json) {
    fmt::print("{}\n", json_text(as_json(step), 2));
  } else {
    for (const PageSection& section : sections) {
      fmt::print("{}{}:\n{}", &section == sections.data() ? "" : "\n", section.title, section.text);
    }
    if (!arguments.html.empty()) {
      fmt::print("\npage written: {}\n", arguments.html);
    }
  }
  return step.recorded_loss && !step.same() ? 1 : 0;
}

}  // namespace tessera::app
