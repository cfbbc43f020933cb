module;
#include <fmt/format.h>

#include <string>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.app.base;
import tessera.text;
import tessera.evaluation;
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

std::string name_of(const std::vector<std::string>& files) {
  return files.size() == 1 ? files[0] : fmt::format("{} files", files.size());
}

int evaluate(const text::TextModel& model, const EvaluateArguments& arguments,
             const std::vector<evaluation::PreparedTask>& tasks) {
  Json results = Json::array();
  if (!arguments.text.empty()) {
    results.push_back(
        result_of("perplexity", name_of(arguments.text),
                  text::text_perplexity(model, arguments.text, arguments.perplexity)));
  }
  if (!arguments.jsonl.empty()) {
    results.push_back(
        result_of("perplexity of records", name_of(arguments.jsonl),
                  text::record_perplexity(model, arguments.jsonl, arguments.chat_template,
                                          arguments.perplexity)));
  }
  const std::vector<text::Question> examples = arguments.shots_from.empty()
                                                   ? std::vector<text::Question>()
                                                   : text::read_questions(arguments.shots_from);
  text::QuestionOptions asked = arguments.asked;
  asked.shots = arguments.shots.value_or(0);
  for (const std::string& file : arguments.questions) {
    add_results(results, file, text::ask(model, text::read_questions(file), examples, asked));
  }
  for (const evaluation::PreparedTask& task : tasks) {
    results.push_back(result_of(task.ask(model)));
  }
  if (!model.copies().is_first()) {
    return 0;
  }
  const std::string text =
      json_text(Json{{"model", arguments.model}, {"results", results}}, 2) + "\n";
  fmt::print("{}", arguments.json ? text : as_table(results));
  if (!arguments.to.empty()) {
    write_output("evaluate", arguments.to, text);
  }
  return 0;
}

}  // namespace

int run_evaluate(const EvaluateArguments& arguments) {
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
  std::vector<evaluation::PreparedTask> tasks;
  for (const std::string& file : arguments.tasks) {
    tasks.emplace_back(file, evaluation::TaskOptions{.folder = arguments.task_data,
                                                     .shots = arguments.shots,
                                                     .limit = arguments.limit,
                                                     .batch = arguments.asked.generation.batch});
  }
  return use_model(arguments,
                   [&](const text::TextModel& model) { return evaluate(model, arguments, tasks); });
}

}  // namespace tessera::app
