module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tessera/input_file.hpp>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.app.base;
import tessera.text;
import tessera.evaluation;
import :stored_paths;
import :subcommands;
import :text_commands;

namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;

Json result_of(const char* task, const std::string& of, const text::Perplexity& result) {
  Json json = {{"task", task},          {"of", of},
               {"texts", result.texts}, {"tokens", result.tokens},
               {"loss", result.loss},   {"perplexity", result.perplexity()}};
  if (result.bytes > 0) {
    json["bits_per_byte"] = result.bits_per_byte();
  } else {
    json["left_out"] = result.left_out;
  }
  return json;
}

void add_results(Json& results, const std::string& file, const text::QuestionScores& scores) {
  if (scores.choices > 0) {
    results.push_back({{"task", "multiple choice"},
                       {"of", file},
                       {"questions", scores.choices},
                       {"accuracy", scores.accuracy.value},
                       {"accuracy_error", scores.accuracy.error},
                       {"accuracy_normalized", scores.normalized.value},
                       {"accuracy_normalized_error", scores.normalized.error}});
  }
  if (scores.generated > 0) {
    results.push_back({{"task", "exact match"},
                       {"of", file},
                       {"questions", scores.generated},
                       {"exact_match", scores.exact_match.value},
                       {"exact_match_error", scores.exact_match.error}});
  }
}

Json result_of(const evaluation::TaskResult& result) {
  Json json = {{"task", result.task}, {"documents", result.documents}, {"shots", result.shots}};
  for (const evaluation::TaskScore& score : result.scores) {
    const std::string name =
        score.filter == "none" ? score.metric : score.metric + "," + score.filter;
    json[name] = score.value;
    if (score.error) {
      json[name + "_error"] = *score.error;
    }
  }
  return json;
}

std::string as_table(const Json& results) {
  TableRows rows;
  for (const Json& result : results) {
    std::vector<std::string> cells;
    for (const auto& [name, value] : result.items()) {
      cells.push_back(value.is_string() ? value.get<std::string>()
                      : value.is_number_float()
                          ? fmt::format("{} {:.4f}", name, value.get<double>())
                          : fmt::format("{} {}", name, json_text(value)));
    }
    rows.push_back(std::move(cells));
  }
  return format_table(rows, "");
}

/// What a model's results are, as --to writes them. Errors (input): the file has others.
Json results_in(const std::string& file) {
  const ParsedJson parsed = parse_json_object(input_text(file, std::size_t{1} << 24));
  const auto refuse = [&](const std::string& wrong) {
    fail_input({.thing = file,
                .wrong = wrong,
                .advice = "name files that 'tessera evaluate --to FILE' has written"});
  };
  if (!parsed.problem.empty()) {
    refuse(parsed.problem);
  }
  const Json value = Json::parse(json_text(parsed.value));
  if (!value.contains("model") || !value["model"].is_string() || !value.contains("results") ||
      !value["results"].is_array()) {
    refuse("it has no model and results");
  }
  for (const Json& result : value["results"]) {
    if (!result.is_object() || !result.contains("task") || !result["task"].is_string()) {
      refuse("a result has no task");
    }
  }
  return value;
}

/// A row for each score of each task, a column for each model; empty where a model has none.
std::string table_of_models(const std::vector<Json>& models) {
  using Score = std::pair<std::string, std::string>;
  std::vector<Score> scores;
  std::map<Score, std::map<std::size_t, std::string>> cells;
  for (std::size_t model = 0; model < models.size(); ++model) {
    for (const Json& result : models[model]["results"]) {
      const std::string of = result.contains("of") && result["of"].is_string()
                                 ? " " + result["of"].get<std::string>()
                                 : "";
      for (const auto& [name, value] : result.items()) {
        if (!value.is_number_float() || name.ends_with("_error")) {
          continue;
        }
        const Score score(shown(result["task"].get<std::string>() + of, 60), shown(name, 40));
        if (std::ranges::find(scores, score) == scores.end()) {
          scores.push_back(score);
        }
        const auto error = result.find(name + "_error");
        cells[score][model] = fmt::format("{:.4f}", value.get<double>());
        if (error != result.end() && error->is_number_float()) {
          cells[score][model] += fmt::format(" ± {:.4f}", error->get<double>());
        }
      }
    }
  }
  TableRows rows = {{"task", "score"}};
  for (const Json& model : models) {
    constexpr std::size_t most = 40;  // the end of a path is what differs
    const std::string name = model["model"].get<std::string>();
    const bool fits = name.size() <= most;
    rows.front().push_back(shown(fits ? name : "..." + name.substr(name.size() - most), 60));
  }
  for (const Score& score : scores) {
    rows.push_back({score.first, score.second});
    for (std::size_t model = 0; model < models.size(); ++model) {
      rows.back().push_back(cells[score].contains(model) ? cells[score][model] : "-");
    }
  }
  return format_table(rows, "");
}

std::string name_of(const std::vector<std::string>& files, const InputCopies& copies) {
  return files.size() == 1 ? copies.named(files[0]) : fmt::format("{} files", files.size());
}

void ask_tasks(Json& results, const text::TextModel& model, const EvaluateArguments& arguments,
               const std::vector<evaluation::PreparedTask>& tasks) {
  if (tasks.empty()) {
    return;
  }
  std::optional<evaluation::StoredAnswers> kept;
  if (!arguments.keep.empty()) {
    kept.emplace(arguments.keep, model_files(arguments));
    if (kept->damaged() > 0 && model.copies().is_first()) {
      fmt::print(stderr, "note: {}: {} damaged lines are computed again\n", arguments.keep,
                 kept->damaged());
    }
  }
  text::Engine engine(model.ranks(), model.shape().vocab,
                      {.most = arguments.asked.generation.batch});
  for (const evaluation::PreparedTask& task : tasks) {
    results.push_back(result_of(task.ask(model, engine, kept ? &*kept : nullptr)));
  }
}

int evaluate(const text::TextModel& model, const EvaluateArguments& arguments,
             const InputCopies& copies, const std::vector<evaluation::PreparedTask>& tasks,
             const std::vector<Json>& beside) {
  Json results = Json::array();
  if (!arguments.text.empty()) {
    results.push_back(
        result_of("perplexity", name_of(arguments.text, copies),
                  text::text_perplexity(model, arguments.text, arguments.perplexity)));
  }
  if (!arguments.jsonl.empty()) {
    results.push_back(
        result_of("perplexity of records", name_of(arguments.jsonl, copies),
                  text::record_perplexity(model, arguments.jsonl, arguments.chat_template,
                                          arguments.perplexity)));
  }
  const std::vector<text::Question> examples = arguments.shots_from.empty()
                                                   ? std::vector<text::Question>()
                                                   : text::read_questions(arguments.shots_from);
  text::QuestionOptions asked = arguments.asked;
  asked.shots = arguments.shots.value_or(0);
  for (const std::string& file : arguments.questions) {
    add_results(results, copies.named(file),
                text::ask(model, text::read_questions(file), examples, asked));
  }
  ask_tasks(results, model, arguments, tasks);
  if (!model.copies().is_first()) {
    return 0;
  }
  const Json all = {{"model", arguments.model}, {"results", results}};
  const std::string text = json_text(all, 2) + "\n";
  if (arguments.json) {
    fmt::print("{}", text);
  } else if (beside.empty()) {
    fmt::print("{}", as_table(results));
  } else {
    std::vector<Json> models = beside;
    models.push_back(all);
    fmt::print("{}", table_of_models(models));
  }
  if (!arguments.to.empty()) {
    write_output("evaluate", arguments.to, text);
  }
  return 0;
}

}  // namespace

int run_evaluate(const EvaluateArguments& given) {
  EvaluateArguments arguments = given;
  if (arguments.text.empty() && arguments.jsonl.empty() && arguments.questions.empty() &&
      arguments.tasks.empty()) {
    fail_input({.thing = "evaluate",
                .wrong = "there is nothing to evaluate with",
                .advice = "give --text, --jsonl, --questions or --tasks"});
  }
  if (!arguments.questions.empty() &&
      arguments.asked.format.find("{question}") == std::string::npos) {
    fail_input({.thing = "--format",
                .wrong = "it does not contain {question}, so every prompt would be the same",
                .got = shown(arguments.asked.format, 60)});
  }
  InputCopies copies;
  for (std::vector<std::string>* files :
       {&arguments.text, &arguments.jsonl, &arguments.questions, &arguments.beside}) {
    copies.take(*files);
  }
  copies.take_tasks(arguments.tasks);
  for (std::string* path :
       {&arguments.task_data, &arguments.shots_from, &arguments.chat_template}) {
    copies.take(*path);
  }
  evaluation::TaskChat chat = arguments.chat;
  chat.template_file = arguments.chat_template;
  std::vector<evaluation::PreparedTask> tasks;
  for (const std::string& file : arguments.tasks) {
    tasks.emplace_back(file, evaluation::TaskOptions{.folder = arguments.task_data,
                                                     .shots = arguments.shots,
                                                     .limit = arguments.limit,
                                                     .system = arguments.system,
                                                     .chat = chat});
  }
  std::vector<Json> beside;
  for (const std::string& file : arguments.beside) {
    beside.push_back(results_in(file));
  }
  return use_model(arguments, [&](const text::TextModel& model) {
    return evaluate(model, arguments, copies, tasks, beside);
  });
}

}  // namespace tessera::app
