module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.app.base;
import tessera.runs;
import :subcommands;

// Where two runs, or two ways to compute a step, differ first. Each side is computed by a program
// of its own, which records its calls; here the recordings are compared.
namespace tessera::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Results of f32 in other layouts are that close, those of 16 bits less.
constexpr double close_of_f32 = 1e-4;
constexpr double close_of_16_bits = 3e-2;
constexpr double longest_replay = 7 * 86400.0;  // seconds

/// One of the two: who computes it, from what, and how.
struct Side {
  std::string name;  // for people: "the first run"
  std::string program;
  runs::RunDescription run;
  std::vector<std::string> options = {};  // of 'replay'
  std::string folder = {};                // of its recording
};

/// What both sides compute.
struct StepToCompare {
  std::int64_t step = 0;
  std::int64_t first = 0;  // of those that are recorded
  bool from_beginning = false;
  runs::RecordedView view = runs::RecordedView::executed;
  double tolerance = 0;
};

bool is_16_bits(const runs::RunDescription& run) {
  const std::string precision = run.value("train.precision");
  return precision == "\"bf16\"" || precision == "\"f16\"";
}

bool has_checkpoint_before(const runs::RunDescription& run, std::int64_t step) {
  return run.saved.front().step < step;
}

/// The steps that are done in the newest checkpoint before a step; 0: there is none.
std::int64_t done_before(const runs::RunDescription& run, std::int64_t step) {
  std::int64_t done = 0;
  for (const runs::RecordedRun::Checkpoint& saved : run.saved) {
    done = saved.step < step ? std::max(done, saved.step) : done;
  }
  return done;
}

void check_arguments(const BisectArguments& arguments) {
  const auto refuse = [](const char* option, const std::string& why) {
    fail_input({.thing = option, .wrong = why});
  };
  if (!arguments.against.empty() && arguments.against != "eager") {
    fail_input({.thing = "--against",
                .wrong = "there is no such way to compute a step",
                .expected = "eager",
                .got = arguments.against});
  }
  if (arguments.second.empty() && arguments.other_program.empty() && arguments.layout.empty() &&
      arguments.device.empty() && arguments.against.empty()) {
    fail_input({.thing = "bisect",
                .wrong = "there is nothing to compare the run with",
                .expected = "another run, or one of --other-program, --layout, --device and "
                            "--against eager"});
  }
  if (arguments.step < 0) {
    refuse("--step", "steps are counted from 1");
  }
  if (arguments.tolerance && !(*arguments.tolerance >= 0 && *arguments.tolerance < 1)) {
    refuse("--tolerance", "it is a part of a norm (expected 0 or more, and less than 1)");
  }
}

/// The step, and from where it is computed.
StepToCompare step_of(const BisectArguments& arguments, const Side& first, const Side& second,
                      const std::optional<runs::MetricsComparison>& metrics) {
  const bool two_runs = !arguments.second.empty();
  StepToCompare compared;
  const std::int64_t steps = std::min(first.run.steps, second.run.steps);
  if (arguments.step != 0) {
    if (arguments.step > steps) {
      fail_input({.thing = "--step",
                  .wrong = "the run has no such step",
                  .expected = fmt::format("1 to {}", steps),
                  .got = fmt::format("{}", arguments.step)});
    }
    compared.step = compared.first = arguments.step;
  } else if (two_runs) {
    compared.step = metrics->first->step;
    // A loss of this step may be wrong by the update of the one before.
    compared.first = std::max<std::int64_t>(1, compared.step - 1);
  } else {
    // The step after the last checkpoint that has one.
    compared.step = compared.first = done_before(first.run, steps) + 1;
  }
  const auto before = [&](std::int64_t step) {
    return has_checkpoint_before(first.run, step) && has_checkpoint_before(second.run, step);
  };
  if (!before(compared.first)) {
    compared.from_beginning = !two_runs || (metrics && metrics->from_beginning);
    if (!compared.from_beginning && before(compared.step)) {
      compared.first = compared.step;
    }
  }
  if (!two_runs) {
    // Both sides have one state there, and no step is computed that is not looked at.
    compared.first = 1 + done_before(first.run, compared.step);
  }
  return compared;
}

std::vector<std::string> command_of(const Side& side, const StepToCompare& compared,
                                    const std::optional<runs::CallPlace>& values) {
  std::vector<std::string> words = {side.program,
                                    "replay",
                                    side.run.folder,
                                    "--step",
                                    fmt::format("{}", compared.step),
                                    "--record",
                                    side.folder,
                                    "--record-from",
                                    fmt::format("{}", compared.first),
                                    "--record-as",
                                    std::string(name_of(compared.view)),
                                    "--json"};
  if (compared.from_beginning) {
    words.emplace_back("--from-beginning");
  }
  words.insert(words.end(), side.options.begin(), side.options.end());
  if (values) {
    words.insert(words.end(), {"--record-values", fmt::format("{}", values->rank),
                               fmt::format("{}", values->number)});
  }
  return words;
}

/// Lets the side's program compute and record the step. Errors: those of the program.
void record(const Side& side, const StepToCompare& compared,
            const std::optional<runs::CallPlace>& values = {}) {
  std::error_code ignored;
  fs::remove_all(side.folder, ignored);
  const ProgramResult result =
      run_program(command_of(side, compared, values), Patience(longest_replay),
                  fmt::format("bisect: {} computes step {}", side.name, compared.step), "ends");
  const bool has_answered = result.code == 0 || result.code == 1;
  if (has_answered && fs::exists(side.folder + "/step.json", ignored)) {
    return;
  }
  std::string text = result.output;
  while (text.ends_with('\n')) {
    text.pop_back();
  }
  constexpr std::string_view prefix = "error: ";
  if (text.starts_with(prefix)) {
    text.erase(0, prefix.size());
  }
  if (result.code == -1) {
    fail_input({.thing = "bisect",
                .wrong = fmt::format("{} cannot be started: {}", shown(side.program), text)});
  }
  const bool has_said_why = !text.empty();
  if (!has_said_why) {
    text = fmt::format("{} ended with {} and no word", shown(side.program), result.code);
  }
  const std::string wrong =
      fmt::format("{} has not computed step {}: {}", side.name, compared.step, text);
  has_said_why&& result.code == exit_code_of(ErrorKind::run)
      ? fail({.thing = "bisect", .wrong = wrong})
      : fail_input({.thing = "bisect", .wrong = wrong});
}

/// What a side's replay says: whether its numbers are those that the run has recorded.
std::optional<bool> has_recorded_numbers(const Side& side) {
  const ParsedJson step = read_json_object(side.folder + "/step.json");
  const auto same = step.value.find("same");
  return step.problem.empty() && same != step.value.end() && same->is_boolean()
             ? std::optional(same->get<bool>())
             : std::nullopt;
}

struct BisectResult {
  std::optional<runs::MetricsComparison> metrics = {};
  StepToCompare step = {};
  runs::RecordingComparison recordings = {};
  std::vector<runs::ElementDifference> elements = {};
  std::optional<bool> first_is_recorded = {};
  std::optional<bool> second_is_recorded = {};
};

std::string joined(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", number);
  }
  return "[" + text + "]";
}

std::string place_text(const runs::RecordedCall& call) {
  if (call.phase == "start") {
    return fmt::format("{} before the step", shown(call.module));
  }
  std::string text = fmt::format("'{}'", call.op);
  if (call.turn > 0) {
    text += fmt::format(" (call {} of it there)", call.turn + 1);
  }
  text += call.phase.empty() ? "" : fmt::format(" in the {}", call.phase);
  text += call.module.empty() ? "" : fmt::format(" of module {}", shown(call.module));
  return text;
}

std::string parameters_text(const runs::RecordedCall& call) {
  if (call.phase == "start") {
    return "";
  }
  std::vector<std::string> names;
  for (const std::vector<runs::RecordedTensor>* const all : {&call.in, &call.out}) {
    for (const runs::RecordedTensor& tensor : *all) {
      if (!tensor.parameter.empty() && std::ranges::find(names, tensor.parameter) == names.end() &&
          names.size() < 3) {
        names.push_back(tensor.parameter);
      }
    }
  }
  return names.empty() ? "" : fmt::format(" with parameter {}", join_words(names));
}

/// The element of a result that differs most; null: none is known.
const runs::ElementDifference* result_element(const BisectResult& result) {
  for (const runs::ElementDifference& one : result.elements) {
    if (one.is_result && one.differing > 0) {
      return &one;
    }
  }
  return nullptr;
}

std::string cause_text(const runs::CallDifference& call, double tolerance) {
  const char* const equal = tolerance > 0 && !call.operands.empty()
                                ? "Its operands agree within the tolerance"
                                : "Its operands are equal";
  if (call.first.phase == "start") {
    return "The parameter differs before the step: the difference is older than the steps that "
           "were computed, or the checkpoints are not of equal runs.";
  }
  if (call.other_arguments) {
    return fmt::format("It was called with other arguments: ({}) and ({}).",
                       shown(call.first.arguments, 200), shown(call.second.arguments, 200));
  }
  if (call.begins_here && call.first.communicates) {
    return fmt::format(
        "{} on this rank, and it communicates: the operator or the transport of "
        "one side is wrong.",
        equal);
  }
  if (call.begins_here) {
    return fmt::format("{}, so this operator computes something else in the second.", equal);
  }
  std::string text = fmt::format(
      "Its operand {} differs already, by {:.2g} times its norm, and no call that both "
      "have made it: it was written outside of operators, or by a call that only one "
      "has.",
      call.operands.front(), call.before);
  for (const std::string& one : call.unmatched) {
    text += fmt::format(" Only in the {}.", one);
  }
  return text;
}

std::string call_text(const BisectResult& result) {
  const runs::CallDifference& call = *result.recordings.call;
  std::string text = fmt::format("{} calls are the same. The first that differs is {}{}",
                                 result.recordings.compared - 1, place_text(call.first),
                                 parameters_text(call.first));
  text += fmt::format(", on rank {}: result {} differs by {:.2g} times its norm. ",
                      call.first.place.rank, call.results.front(), call.distance);
  if (const runs::ElementDifference* const one = result_element(result)) {
    text += fmt::format(
        "{} of its {} elements differ, element {} most: {} in the first and {} in "
        "the second. ",
        one->differing, one->elements, joined(one->place), one->first, one->second);
  }
  return text + cause_text(call, result.step.tolerance);
}

std::string nothing_text(const BisectResult& result) {
  std::string text =
      fmt::format("All {} calls that both have are the same. ", result.recordings.compared);
  const auto is_not = [](const std::optional<bool>& same) { return same && !*same; };
  const bool first = is_not(result.first_is_recorded);
  const bool second = is_not(result.second_is_recorded);
  if (first || second) {
    text += fmt::format(
        "But {} recorded other numbers than the step has now: another build, "
        "machine or plugin computed it. Compare with that by --other-program, or "
        "run this command there.",
        first && second ? "both runs have"
        : first         ? "the first run has"
                        : "the second run has");
  }
  return text;
}

/// One paragraph that says it all.
std::string paragraph(const BisectResult& result) {
  std::string text;
  if (result.metrics && !result.metrics->first) {
    return fmt::format("The numbers of all {} steps that both runs have recorded are the same.",
                       result.metrics->compared);
  }
  if (result.metrics) {
    const runs::DifferingStep& step = *result.metrics->first;
    text = fmt::format(
        "Step {} is the first whose {} differs: {} in the first and {} in the "
        "second. ",
        step.step, step.what, step.first, step.second);
  }
  text += result.step.first < result.step.step
              ? fmt::format("Steps {} to {} were computed twice and compared ", result.step.first,
                            result.step.step)
              : fmt::format("Step {} was computed twice and compared ", result.step.step);
  text += result.step.tolerance == 0
              ? "in all bits. "
              : fmt::format("within {:g} of each result's norm. ", result.step.tolerance);
  if (const auto& row = result.recordings.row) {
    return text + fmt::format(
                      "Row {} of step {} is not the same: {} in the first and {} in the "
                      "second. The data or their order differ, before any operator.",
                      row->row, row->step, shown(row->first), shown(row->second));
  }
  return text + (result.recordings.call ? call_text(result) : nothing_text(result));
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json as_json(const runs::RecordedCall& call) {
  return {{"rank", call.place.rank}, {"call", call.place.number},  {"step", call.step},
          {"phase", call.phase},     {"module", call.module},      {"operator", call.op},
          {"turn", call.turn},       {"arguments", call.arguments}};
}

Json as_json(const BisectResult& result) {
  Json all = {{"step", nullptr}, {"same", true}};
  if (result.metrics && result.metrics->first) {
    const runs::DifferingStep& step = *result.metrics->first;
    all["recorded"] = {{"step", step.step},
                       {"what", step.what},
                       {"first", number(step.first)},
                       {"second", number(step.second)}};
    all["same"] = false;
  }
  if (result.step.step > 0) {
    all["step"] = result.step.step;
    all["first_step"] = result.step.first;
    all["tolerance"] = result.step.tolerance;
    all["view"] = name_of(result.step.view);
    all["compared"] = result.recordings.compared;
    all["only_first"] = result.recordings.only_first;
    all["only_second"] = result.recordings.only_second;
    all["other_shapes"] = result.recordings.other_shapes;
  }
  if (const auto& row = result.recordings.row) {
    all["same"] = false;
    all["row"] = {
        {"step", row->step}, {"row", row->row}, {"first", row->first}, {"second", row->second}};
  }
  if (const auto& call = result.recordings.call; call && !result.recordings.row) {
    all["same"] = false;
    all["call"] = as_json(call->first);
    all["second_call"] = as_json(call->second);
    all["results"] = call->results;
    all["operands"] = call->operands;
    all["distance"] = number(call->distance);
    all["operands_distance"] = number(call->before);
    all["begins_here"] = call->begins_here;
    all["other_arguments"] = call->other_arguments;
    all["unmatched"] = call->unmatched;
    all["elements"] = Json::array();
    for (const runs::ElementDifference& one : result.elements) {
      Json entry = {{"of", one.is_result ? "result" : "operand"},
                    {"tensor", one.tensor},
                    {"element", one.place},
                    {"first", number(one.first)},
                    {"second", number(one.second)},
                    {"differing", one.differing},
                    {"elements", one.elements}};
      if (!one.problem.empty()) {
        entry["problem"] = one.problem;
      }
      all["elements"].push_back(std::move(entry));
    }
  }
  all["text"] = paragraph(result);
  return all;
}

void print_table(const BisectResult& result) {
  if (!result.recordings.call || result.recordings.row) {
    return;
  }
  TableRows rows{{"", "tensor", "element", "first", "second", "differ"}};
  for (const runs::ElementDifference& one : result.elements) {
    const char* const what = one.is_result ? "result" : "operand";
    rows.push_back(
        one.problem.empty()
            ? std::vector<std::string>{what, fmt::format("{}", one.tensor), joined(one.place),
                                       fmt::format("{}", one.first), fmt::format("{}", one.second),
                                       fmt::format("{} of {}", one.differing, one.elements)}
            : std::vector<std::string>{what, fmt::format("{}", one.tensor), one.problem, "", "",
                                       ""});
  }
  const runs::RecordedCall& call = result.recordings.call->first;
  fmt::print("step {}, {}, module {}, operator {}:\n{}\n", call.step,
             call.phase.empty() ? "no phase" : call.phase,
             call.module.empty() ? "-" : shown(call.module), call.op, format_table(rows));
}

/// The two sides, from what the command says.
std::pair<Side, Side> sides_of(const BisectArguments& arguments) {
  const std::string here = fs::read_symlink("/proc/self/exe").string();
  const bool two_runs = !arguments.second.empty();
  Side first{.name = "the first", .program = here, .run = runs::describe_run(arguments.first)};
  Side second{.name = "the second",
              .program = arguments.other_program.empty() ? here : arguments.other_program,
              .run = two_runs ? runs::describe_run(arguments.second) : first.run};
  for (Side* const side : {&first, &second}) {
    for (const std::string& plugin : arguments.plugins) {
      side->options.insert(side->options.end(), {"--plugin", plugin});
    }
  }
  if (!arguments.layout.empty()) {
    second.options.insert(second.options.end(), {"--layout", arguments.layout});
  }
  if (!arguments.device.empty()) {
    first.options.insert(first.options.end(), {"--device", "cpu"});
    second.options.insert(second.options.end(), {"--device", arguments.device});
  }
  if (!arguments.against.empty()) {
    second.options.emplace_back("--captured");
  }
  return {std::move(first), std::move(second)};
}

/// How close results must be, and which calls belong together.
void choose_comparison(const BisectArguments& arguments, const Side& first, const Side& second,
                       StepToCompare& compared) {
  const bool layouts = !runs::same_layout(first.run, second.run) || !arguments.layout.empty();
  const bool devices = !arguments.device.empty() ||
                       first.run.value("train.device") != second.run.value("train.device");
  const bool precisions = first.run.value("train.precision") != second.run.value("train.precision");
  compared.view = layouts ? runs::RecordedView::written : runs::RecordedView::executed;
  const double close =
      is_16_bits(first.run) || is_16_bits(second.run) ? close_of_16_bits : close_of_f32;
  compared.tolerance = arguments.tolerance.value_or(layouts || devices || precisions ? close : 0);
}

}  // namespace

int run_bisect(const BisectArguments& arguments) {
  check_arguments(arguments);
  auto [first, second] = sides_of(arguments);
  BisectResult result;
  StepToCompare compared;
  choose_comparison(arguments, first, second, compared);
  if (!arguments.second.empty()) {
    runs::check_one_config(first.run, second.run);
    if (arguments.step == 0) {
      result.metrics = runs::compare_metrics(first.run, second.run, compared.tolerance);
    }
  }
  const bool found = !result.metrics || result.metrics->first;
  if (found) {
    const StepToCompare step = step_of(arguments, first, second, result.metrics);
    compared.step = step.step;
    compared.first = step.first;
    compared.from_beginning = step.from_beginning;
    result.step = compared;
    const ScratchFolder scratch("bisect");
    if (!arguments.keep.empty()) {
      std::error_code error;
      if (fs::exists(arguments.keep, error) && !fs::is_empty(arguments.keep, error)) {
        fail_input({.thing = "--keep",
                    .wrong = fmt::format("{} is not empty", shown(arguments.keep)),
                    .advice = "name a new folder"});
      }
    }
    const fs::path folder = arguments.keep.empty() ? scratch.path() : arguments.keep;
    first.folder = (folder / "first").string();
    second.folder = (folder / "second").string();
    record(first, compared);
    record(second, compared);
    result.recordings = runs::compare_recordings(first.folder, second.folder, compared.tolerance);
    if (arguments.device.empty()) {
      result.first_is_recorded = has_recorded_numbers(first);
    }
    if (arguments.device.empty() && arguments.layout.empty()) {
      result.second_is_recorded = has_recorded_numbers(second);
    }
    if (result.recordings.call && !result.recordings.row) {
      record(first, compared, result.recordings.call->first.place);
      record(second, compared, result.recordings.call->second.place);
      result.elements = runs::compare_values(first.folder, second.folder);
    }
  }
  const bool same = !(result.metrics && result.metrics->first) && !result.recordings.call &&
                    !result.recordings.row;
  if (arguments.json) {
    fmt::print("{}\n", json_text(as_json(result), 2));
  } else {
    print_table(result);
    fmt::print("{}\n", wrap_text(paragraph(result), "", ""));
  }
  return same ? 0 : 1;
}

}  // namespace tessera::app
