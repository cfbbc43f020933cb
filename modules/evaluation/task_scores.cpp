module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/utf8.hpp>
#include <vector>
module tessera.evaluation;

import :python_values;
import :task_scores;
import tessera.base;
import tessera.text;

namespace tessera::evaluation {
namespace {

using Json = nlohmann::json;

double mean_of(std::span<const DocumentScore> scores) {
  double sum = 0;
  double weights = 0;
  for (const DocumentScore& one : scores) {
    sum += one.value;
    weights += one.weight;
  }
  return sum / weights;
}

/// The standard error of a mean; nothing of one document.
std::optional<double> error_of(std::span<const DocumentScore> scores) {
  if (scores.size() < 2) {
    return std::nullopt;
  }
  const double mean = mean_of(scores);
  double squares = 0;
  for (const DocumentScore& one : scores) {
    squares += (one.value - mean) * (one.value - mean);
  }
  const auto count = static_cast<double>(scores.size());
  return std::sqrt(squares / (count - 1)) / std::sqrt(count);
}

TaskScore score_of(const TaskMetric& metric, const std::string& filter,
                   std::span<const DocumentScore> scores) {
  TaskScore score{.metric = metric.name,
                  .filter = filter,
                  .value = mean_of(scores),
                  .higher_is_better = metric.higher_is_better};
  if (metric.name.ends_with("perplexity")) {
    score.value = std::exp(-score.value);
  } else if (metric.name == "bits_per_byte") {
    score.value = -score.value / std::log(2.0);
  } else {
    score.error = error_of(scores);
  }
  return score;
}

std::size_t words_in(std::string_view text) {
  // re.split(r"\s+"): white space at an end makes an empty word there.
  std::size_t words = 1;
  while (!text.empty()) {
    const std::string_view rest = without_space_before(text);
    if (rest.size() < text.size()) {
      ++words;
      text = rest;
      continue;
    }
    std::size_t bytes = 1;
    while (bytes < text.size() && is_continuation(text[bytes])) {
      ++bytes;
    }
    text.remove_prefix(bytes);
  }
  return words;
}

/// The first place of the largest value.
std::size_t largest(const std::vector<double>& values) {
  return static_cast<std::size_t>(std::ranges::max_element(values) - values.begin());
}

/// The numbers of the right choices; -1 for what is none of them.
std::vector<std::int64_t> right_choices(const TaskQuestion& question) {
  std::vector<std::int64_t> right;
  for (const Json& one :
       question.target.is_array() ? question.target : Json::array({question.target})) {
    std::int64_t number = -1;
    if (one.is_number_integer() && one >= 0 && one < std::ssize(question.choices)) {
      number = one.get<std::int64_t>();
    } else if (one.is_string()) {
      const auto found = std::ranges::find(question.choices, one.get<std::string>());
      number = found == question.choices.end() ? -1 : found - question.choices.begin();
    }
    right.push_back(number);
  }
  return right;
}

/// The scores of a document with choices, by the task's metrics.
std::vector<double> choice_scores(const EvaluationTask& task, const TaskQuestion& question,
                                  const std::vector<text::TextLikelihood>& likelihoods) {
  std::vector<double> values;
  std::vector<double> by_characters;
  std::vector<double> by_bytes;
  for (std::size_t i = 0; i < likelihoods.size(); ++i) {
    const std::string& choice = question.choices[i];
    values.push_back(likelihoods[i].log_probability);
    by_characters.push_back(values.back() / static_cast<double>(count_characters(choice)));
    by_bytes.push_back(values.back() / static_cast<double>(choice.size()));
  }
  const std::vector<std::int64_t> right = right_choices(question);
  const auto is_right = [&](const std::vector<double>& all) {
    return std::ranges::find(right, static_cast<std::int64_t>(largest(all))) != right.end() ? 1.0
                                                                                            : 0.0;
  };
  std::vector<double> scores;
  for (const TaskMetric& metric : task.metrics) {
    scores.push_back(metric.name == "acc_norm"    ? is_right(by_characters)
                     : metric.name == "acc_bytes" ? is_right(by_bytes)
                     : metric.name == "acc"
                         ? is_right(values)
                         : std::ranges::any_of(right, [&](std::int64_t one) {
                             return one >= 0 && likelihoods[static_cast<std::size_t>(one)].greedy;
                           }));
  }
  return scores;
}

/// What an answer must be.
std::vector<std::string> right_answers(const TaskQuestion& question, const std::string& file) {
  const auto written = [](const Json& one) {
    return one.is_string() ? one.get<std::string>() : json_text(one);
  };
  if (!question.choices.empty()) {
    const std::int64_t number = right_choices(question).at(0);
    if (number < 0) {
      fail_input({.thing = file, .wrong = "doc_to_target names no choice"});
    }
    return {question.choices[static_cast<std::size_t>(number)]};
  }
  std::vector<std::string> right;
  for (const Json& one :
       question.target.is_array() ? question.target : Json::array({question.target})) {
    right.push_back(written(one));
  }
  return right;
}

/// Of a whole document: its likelihood, for each of its words or bytes.
std::vector<DocumentScore> document_scores(const EvaluationTask& task, const std::string& document,
                                           std::span<const text::TextLikelihood> windows) {
  double value = 0;
  for (const text::TextLikelihood& window : windows) {
    value += window.log_probability;
  }
  std::vector<DocumentScore> scores;
  for (const TaskMetric& metric : task.metrics) {
    const std::size_t weight =
        metric.name == "word_perplexity" ? words_in(document) : document.size();
    scores.push_back({.value = value, .weight = static_cast<double>(weight)});
  }
  return scores;
}

}  // namespace

TaskMetrics::TaskMetrics(const EvaluationTask& task) : task_(task) {
  for (const FilterChain& chain : task.filters) {
    filters_.emplace_back(chain, task.file);
  }
  for (const TaskMetric& metric : task.metrics) {
    matches_.emplace_back(metric.match, task.file);
  }
}

std::size_t TaskMetrics::count() const { return filters_.size() * matches_.size(); }

std::vector<DocumentScore> TaskMetrics::document(const TaskQuestion& question,
                                                 const TaskAnswer& answer) const {
  std::vector<DocumentScore> scores;
  if (task_.kind == RequestKind::generate_until) {
    const std::vector<std::string> right = right_answers(question, task_.file);
    for (const AnswerFilters& filters : filters_) {
      const Json text = filters.of(answer.text);
      for (const AnswerMatch& match : matches_) {
        const bool is_right = text.is_string() && match.is_one_of(text.get<std::string>(), right);
        scores.push_back({.value = is_right ? 1.0 : 0.0});
      }
    }
    return scores;
  }
  switch (task_.kind) {
    case RequestKind::multiple_choice:
      for (const double value : choice_scores(task_, question, answer.likelihoods)) {
        scores.push_back({.value = value});
      }
      break;
    case RequestKind::loglikelihood:
      for (const TaskMetric& metric : task_.metrics) {
        const text::TextLikelihood& found = answer.likelihoods.at(0);
        scores.push_back(
            {.value = metric.name == "acc" ? (found.greedy ? 1.0 : 0.0) : found.log_probability});
      }
      break;
    default:
      scores = document_scores(task_, question.continuations[0], answer.likelihoods);
      break;
  }
  // Filters change texts alone.
  const std::vector<DocumentScore> once = scores;
  for (std::size_t chain = 1; chain < filters_.size(); ++chain) {
    scores.insert(scores.end(), once.begin(), once.end());
  }
  return scores;
}

TaskScore TaskMetrics::total(std::size_t number, std::span<const DocumentScore> documents) const {
  return score_of(task_.metrics[number % matches_.size()],
                  filters_[number / matches_.size()].name(), documents);
}

}  // namespace tessera::evaluation
