module;
#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.checkpoint;
import tessera.collective;
import tessera.app.base;
import tessera.app.config;
import tessera.runs;
import tessera.app.run;
import :subcommands;

// `tessera verify`: a run that is repeated from its record.
namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;

/// "400:420"
std::pair<std::int64_t, std::int64_t> steps_of(const std::string& text) {
  if (text.empty()) {
    return {0, 0};
  }
  const auto number = [](std::string_view word, std::int64_t& into) {
    const auto read = std::from_chars(word.data(), word.data() + word.size(), into);
    return read.ec == std::errc() && read.ptr == word.data() + word.size() && into > 0;
  };
  std::pair<std::int64_t, std::int64_t> steps;
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos || !number(std::string_view(text).substr(0, colon), steps.first) ||
      !number(std::string_view(text).substr(colon + 1), steps.second)) {
    fail_input({.thing = "--steps",
                .wrong = "it does not name steps",
                .expected = "FIRST:LAST, from 1",
                .got = shown(text)});
  }
  return steps;
}

/// Exports what was computed again as the export was made.
void export_again(const runs::VerifyPlan& plan, const std::string& scratch, const std::string& to) {
  const runs::ExportForm& form = plan.exported->form;
  export_checkpoint({.checkpoint = checkpoint_folder(scratch, plan.exported->step),
                     .base = {},
                     .merged = {},
                     .folder = to,
                     .dtype = form.dtype,
                     .gguf = form.format == "gguf",
                     .max_file_bytes = static_cast<std::uint64_t>(form.max_file_bytes),
                     .adapter = form.format == "adapter",
                     .no_tokenizer = !form.tokenizer});
}

Json as_json(const runs::VerifyPlan& plan, const runs::Verdict& verdict,
             const std::vector<std::string>& notes) {
  Json checkpoints = Json::array();
  for (const auto& [step, hash] : verdict.checkpoints) {
    checkpoints.push_back({{"step", step}, {"weights", hash}});
  }
  Json differences = Json::array();
  for (const runs::VerifyDifference& one : verdict.differences) {
    differences.push_back(
        {{"what", one.what}, {"step", one.step}, {"expected", one.expected}, {"got", one.got}});
  }
  return {{"same", verdict.same()},     {"first", plan.first},
          {"last", plan.last},          {"numbers", verdict.numbers},
          {"checkpoints", checkpoints}, {"files", verdict.files},
          {"differences", differences}, {"notes", notes}};
}

void print_verdict(const runs::VerifyPlan& plan, const runs::Verdict& verdict,
                   const std::vector<std::string>& notes) {
  for (const std::string& note : notes) {
    fmt::print("note: {}\n", note);
  }
  TableRows rows{{"numbers compared", fmt::format("{}", verdict.numbers)}};
  for (const auto& [step, hash] : verdict.checkpoints) {
    rows.push_back({fmt::format("weights after step {}", step), hash});
  }
  if (verdict.files > 0) {
    rows.push_back({"files compared", fmt::format("{}", verdict.files)});
  }
  fmt::print("{}", format_table(rows));
  constexpr std::size_t most = 20;
  for (std::size_t i = 0; i < verdict.differences.size() && i < most; ++i) {
    const runs::VerifyDifference& one = verdict.differences[i];
    fmt::print("differs: step {}: {}{}\n", one.step, one.what,
               one.expected.empty() && one.got.empty()
                   ? ""
                   : fmt::format(" (expected {}, got {})", one.expected, one.got));
  }
  if (verdict.differences.size() > most) {
    fmt::print("and {} more\n", verdict.differences.size() - most);
  }
  fmt::print("{}: steps {} to {} of {}\n", verdict.same() ? "the same in all bits" : "NOT the same",
             plan.first, plan.last, shown(plan.run.folder));
}

}  // namespace

int run_verify(const VerifyArguments& arguments) {
  const auto [first, last] = steps_of(arguments.steps);
  std::optional<runs::RunSpec> layout;
  if (!arguments.layout.empty()) {
    layout = load_config(arguments.layout, {}, [&](const runs::RunSpec& opened) {
      runs::use_plugins(opened, arguments.plugins);
    });
  }
  const runs::VerifyPlan plan = runs::plan_verification({.folder = arguments.folder,
                                                         .plugins = arguments.plugins,
                                                         .first = first,
                                                         .last = last,
                                                         .seen_from = arguments.seen_from,
                                                         .layout = layout});
  const ScratchFolder scratch("verify");
  runs::Verdict verdict;
  for (const runs::VerifySegment& segment : plan.segments) {
    const runs::OpenedRun opened = runs::open_segment(plan, segment, scratch.path());
    runs::compare_numbers(plan, segment,
                          text_of_ranks(runs::launch_options(opened),
                                        [&](collective::World& world) {
                                          return runs::verify_rank(plan, segment, opened,
                                                                   scratch.path(), world);
                                        }),
                          verdict);
  }
  std::vector<std::string> notes = plan.notes;
  for (std::string& note : runs::plugin_notes(plan)) {
    notes.push_back(std::move(note));
  }
  if (plan.exported && plan.last == plan.exported->step) {
    const std::string again = scratch.path() + "/export";
    export_again(plan, scratch.path(), again);
    runs::compare_exports(plan, arguments.folder, again, verdict);
  }
  runs::compare_checkpoints(plan, scratch.path(), verdict);
  if (arguments.json) {
    fmt::print("{}\n", json_text(as_json(plan, verdict, notes), 2));
  } else {
    print_verdict(plan, verdict, notes);
  }
  return verdict.same() ? 0 : 1;
}

}  // namespace tessera::app
