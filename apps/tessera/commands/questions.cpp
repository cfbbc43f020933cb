module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.data;
import tessera.app.base;
import tessera.runs;
import :subcommands;

// Questions to a run that need no ranks: which rows a step has, and which steps a row.
namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;

/// Who computes a row, and when.
struct RowShare {
  std::vector<int> ranks = {};
  std::int64_t micro_batch = 0;
};

/// By the numbers of the step's rows.
std::map<std::int64_t, RowShare> shares_of(const runs::Run& run) {
  std::map<std::int64_t, RowShare> shares;
  for (const runs::RankRows& part : runs::rows_of_ranks(run)) {
    for (std::int64_t row = part.first; row < part.first + part.rows; ++row) {
      shares[row].ranks.push_back(part.rank);
      shares[row].micro_batch = part.micro_batch;
    }
  }
  return shares;
}

/// "0-3, 8".
std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[i]);
    text += last > i ? fmt::format("-{}", ranks[last]) : "";
    i = last + 1;
  }
  return text;
}

bool is_padded(const std::vector<data::DocumentPlace>& padded, const data::RowRecord& record) {
  return std::ranges::find(padded, record.begin, &data::DocumentPlace::begin) != padded.end();
}

/// A row of a step: where each of its records is.
struct StepRow {
  std::vector<data::RowRecord> records = {};
  std::vector<data::DocumentPlace> padded = {};
  std::int64_t epoch = 0;
};

StepRow row_of(const runs::Dataset& data, std::int64_t step, std::int64_t row) {
  const data::Mixture::SourceRow at = data.place_of(step, row);
  return {.records = data.training().source(at.source).records(at.row),
          .padded = data.history().padded(step, {.source = at.source, .row = at.row}),
          .epoch = at.epoch};
}

Json as_json(const StepRow& row, std::int64_t number, const RowShare& share) {
  Json records = Json::array();
  for (const data::RowRecord& record : row.records) {
    Json entry = {{"place", to_string(record.place)},
                  {"file", record.place.file},
                  {"number", record.place.number},
                  {"begin", record.begin},
                  {"end", record.end},
                  {"trained", record.trained}};
    if (is_padded(row.padded, record)) {
      entry["excluded"] = true;
    }
    records.push_back(std::move(entry));
  }
  return {{"row", number},
          {"ranks", share.ranks},
          {"micro_batch", share.micro_batch},
          {"epoch", row.epoch + 1},
          {"records", records}};
}

void add_lines(TableRows& lines, const StepRow& row, std::int64_t number, const RowShare& share) {
  for (std::size_t i = 0; i < row.records.size(); ++i) {
    const data::RowRecord& record = row.records[i];
    const bool first = i == 0;
    lines.push_back(
        {first ? fmt::format("{}", number) : "", first ? ranks_text(share.ranks) : "",
         first ? fmt::format("{}", share.micro_batch) : "",
         first ? fmt::format("{}", row.epoch + 1) : "", shown(to_string(record.place)),
         fmt::format("{}-{}", record.begin, record.end - 1),
         is_padded(row.padded, record) ? "left out" : fmt::format("{}", record.trained)});
  }
}

/// Of a place's rows, the steps that have them.
struct StepOfRow {
  std::int64_t step = 0;  // from 1
  std::int64_t row = 0;
  bool excluded = false;  // the row has other documents, and this one is padding
};

std::vector<StepOfRow> steps_with(const runs::Dataset& data, const runs::FoundRow& found,
                                  std::int64_t steps) {
  std::vector<StepOfRow> seen;
  const data::RowOrder& order = data.history().order();
  const std::int64_t turns = steps * data.history().batch();
  for (std::int64_t epoch = 0;; ++epoch) {
    const std::int64_t place = order.mixture().place_of(
        {.source = found.row.source, .row = found.row.row, .epoch = epoch});
    if (order.turns_before(place) >= turns) {
      return seen;
    }
    if (const auto turn = order.turn_of(place)) {
      const std::int64_t step = *turn / data.history().batch();
      seen.push_back({.step = step + 1,
                      .row = *turn % data.history().batch(),
                      .excluded = is_padded(data.history().padded(step, found.row), found.what)});
    }
  }
}

/// The run with its data, checked as far as rows need it.
struct OpenRun {
  runs::RecordedRun recorded;
  std::shared_ptr<const runs::DataTask> task;
};

OpenRun open_asked(const QuestionArguments& arguments) {
  OpenRun run;
  run.recorded = runs::open_recorded(arguments.run, arguments.plugins, arguments.step);
  if (arguments.step != 0 || arguments.place.empty()) {
    runs::check_step(run.recorded, arguments.step);
  }
  run.task = runs::open_task(run.recorded);
  return run;
}

}  // namespace

int run_data_where(const QuestionArguments& arguments) {
  const OpenRun run = open_asked(arguments);
  runs::OpenedRun opened =
      runs::open_run(runs::with_data(run.recorded.spec, run.task->data()), run.task, false);
  if (runs::has_mode(opened.run.config)) {
    runs::check_run(opened);  // the mode places the rows
  }
  const std::map<std::int64_t, RowShare> shares = shares_of(opened.run);
  Json rows = Json::array();
  TableRows lines{{"row", "ranks", "micro-batch", "epoch", "place", "tokens", "trained"}};
  for (std::int64_t row = 0; row < opened.run.config.train.batch; ++row) {
    const StepRow found = row_of(run.task->data(), arguments.step - 1, row);
    const RowShare& share = shares.at(row);
    arguments.json ? rows.push_back(as_json(found, row, share))
                   : add_lines(lines, found, row, share);
  }
  if (arguments.json) {
    fmt::print("{}\n", json_text(Json{{"step", arguments.step}, {"rows", rows}}, 2));
  } else {
    fmt::print("step {} of {}\n{}", arguments.step, opened.run.config.train.steps,
               format_table(lines));
  }
  return 0;
}

int run_data_seen(const QuestionArguments& arguments) {
  const data::RecordPlace place = data::parse_record_place(arguments.place);
  const OpenRun run = open_asked(arguments);
  const runs::Dataset& data = run.task->data();
  const std::int64_t steps = runs::with_data(run.recorded.spec, data).train.steps;
  const std::vector<runs::FoundRow> found = runs::find_rows(data.training(), {{place}}).front();
  if (found.empty()) {
    fail_input({.thing = shown(arguments.place),
                .wrong = "no row of the training has this place",
                .expected = "FILE:LINE of its data; rows of the validation are not trained on"});
  }
  std::map<std::pair<std::int64_t, std::int64_t>, StepOfRow> seen;
  for (const runs::FoundRow& row : found) {
    for (const StepOfRow& step : steps_with(data, row, steps)) {
      seen[{step.step, step.row}] = step;
    }
  }
  const std::int64_t done = run.recorded.saved.back().step;
  if (arguments.json) {
    Json all = Json::array();
    for (const auto& [key, step] : seen) {
      all.push_back({{"step", step.step}, {"row", step.row}, {"excluded", step.excluded}});
    }
    fmt::print(
        "{}\n",
        json_text(Json{{"place", arguments.place}, {"saved_step", done}, {"steps", all}}, 2));
    return 0;
  }
  TableRows lines;
  for (const auto& [key, step] : seen) {
    lines.push_back({fmt::format("step {}", step.step), fmt::format("row {}", step.row),
                     step.excluded      ? "left out"
                     : step.step > done ? "not yet in a checkpoint"
                                        : ""});
  }
  fmt::print("{}{}\n", format_table(lines),
             seen.empty() ? fmt::format("no step of {} has it", steps)
                          : count_text(static_cast<std::int64_t>(seen.size()), "step"));
  return 0;
}

}  // namespace tessera::app
