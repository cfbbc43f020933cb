module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.evaluation;

import :answer_filters;
import :python_values;
import :task_texts;
import tessera.base;
import tessera.tokenize;
import tessera.text;

namespace tessera::evaluation {
namespace {

using Json = nlohmann::json;
using Tokens = std::vector<std::int64_t>;

/// How likely a text is after another one.
struct Likelihood {
  double log_probability = 0;
  bool greedy = false;  // it is what the model says itself
};

/// What a model knows of texts, as lm-evaluation-harness asks models of transformers.
class ModelAnswers {
 public:
  explicit ModelAnswers(const text::TextModel& model)
      : model_(model), tokenizer_(*model.tokenizer().tokenizer) {
    const tokenize::SpecialTokens& special = model.tokenizer().special;
    const auto first = special.bos ? special.bos : special.eos;
    prefix_ = first ? std::optional<std::int64_t>(*first) : std::nullopt;
  }

  const text::TextModel& model() const { return model_; }

  /// White space at the end of the context belongs to the continuation. `greedy`: it is asked too.
  Likelihood after(std::string_view context, const std::string& continuation, bool greedy) const {
    const std::string_view before = without_space_behind(context);
    const std::string own = std::string(context.substr(before.size())) + continuation;
    Tokens tokens;
    std::size_t begin = 1;
    if (before.empty()) {
      tokens = {prefix()};
      const Tokens rest = encoded(own, false);
      if (rest.size() > 0 && rest[0] == tokens[0]) {
        tokens.clear();
      }
      tokens.insert(tokens.end(), rest.begin(), rest.end());
    } else {
      tokens = encoded(std::string(before) + own, true);
      begin = encoded(before, true).size();
    }
    return of(std::move(tokens), begin, greedy);
  }

  /// Of a whole document, in windows of the longest sequence, each with one token before it.
  double whole(const std::string& document) const {
    const Tokens tokens = encoded(document, true);
    const auto longest = static_cast<std::size_t>(model_.usual_length());
    double sum = 0;
    for (std::size_t done = 0; done < tokens.size();) {
      const std::size_t count = std::min(longest, tokens.size() - done);
      const std::size_t end = done + count;
      // The last window is as long as the others, and scores what is new.
      const std::size_t first = done == 0 ? 0 : end - std::min(longest, end - 1);
      Tokens window = done == 0 ? Tokens{prefix()} : Tokens{tokens[first - 1]};
      window.insert(window.end(), tokens.begin() + static_cast<std::ptrdiff_t>(first),
                    tokens.begin() + static_cast<std::ptrdiff_t>(end));
      sum += of(std::move(window), 1 + done - first, false).log_probability;
      done = end;
    }
    return sum;
  }

  /// Texts that continue these, each cut before the first of the task's stops.
  std::vector<std::string> answers(const EvaluationTask& task,
                                   std::span<const std::string> contexts,
                                   std::int64_t batch) const {
    const std::int64_t room = model_.usual_length() - task.most_tokens;
    if (room < 1) {
      fail_input({.thing = task.file,
                  .wrong = "answers are longer than the model is meant for",
                  .expected = fmt::format("max_gen_toks below {}", model_.usual_length()),
                  .got = fmt::format("{}", task.most_tokens)});
    }
    std::vector<Tokens> prompts;
    for (const std::string& context : contexts) {
      Tokens tokens = encoded(context, true);
      if (std::ssize(tokens) > room) {
        tokens.erase(tokens.begin(), tokens.end() - room);
      }
      prompts.push_back(std::move(tokens));
    }
    text::Engine engine(model_.ranks(), model_.shape().vocab, {.most = batch});
    const std::vector<text::GeneratedText> texts =
        text::generate(model_, engine, prompts,
                       {.tokens = task.most_tokens,
                        .sampling = {.temperature = task.temperature},
                        .stop = task.until,
                        .end_tokens = special_tokens_in(task.until),
                        .batch = batch});
    std::vector<std::string> answers;
    for (const text::GeneratedText& text : texts) {
      // A text for itself: how its first token is written does not depend on the prompt.
      std::vector<tokenize::TokenId> ids;
      for (const std::int64_t token : text.tokens) {
        ids.push_back(static_cast<tokenize::TokenId>(token));
      }
      std::string answer = tokenizer_.decode(ids, true);
      for (const std::string& stop : task.until) {
        answer = answer.substr(0, answer.find(stop));
      }
      answers.push_back(std::move(answer));
    }
    return answers;
  }

 private:
  /// Stops that are written as special tokens, which texts do not have, end a text by their ids.
  Tokens special_tokens_in(const std::vector<std::string>& stops) const {
    Tokens ids;
    for (const std::string& stop : stops) {
      const auto id = tokenizer_.id(stop);
      if (id && tokenizer_.is_special(*id)) {
        ids.push_back(*id);
      }
    }
    return ids;
  }

  Tokens encoded(std::string_view text, bool special) const {
    const auto ids = tokenizer_.encode(text, {.add_special = special});
    return {ids.begin(), ids.end()};
  }

  std::int64_t prefix() const {
    if (!prefix_) {
      fail_input({.thing = "evaluate",
                  .wrong = "a text has nothing before it, and the tokenizer has no token that "
                           "begins or ends texts"});
    }
    return *prefix_;
  }

  /// Of the tokens from `begin` on.
  Likelihood of(Tokens tokens, std::size_t begin, bool greedy) const {
    const auto longest = static_cast<std::size_t>(model_.usual_length()) + 1;
    if (tokens.size() > longest) {
      const std::size_t cut = tokens.size() - longest;
      tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(cut));
      begin = std::max<std::size_t>(begin, cut + 1) - cut;
    }
    begin = std::max<std::size_t>(begin, 1);
    if (!greedy) {
      std::vector<std::uint8_t> scored(tokens.size(), 1);
      std::fill_n(scored.begin(), std::min(begin, tokens.size()), std::uint8_t{0});
      return {.log_probability = text::log_likelihood(model_, tokens, scored)};
    }
    Likelihood found{.log_probability = 0, .greedy = true};
    const std::vector<text::TokenLikelihoods> all = text::prompt_likelihoods(model_, tokens, 1);
    for (std::size_t i = begin - 1; i < all.size(); ++i) {
      found.log_probability += all[i].own.log_probability;
      found.greedy = found.greedy && all[i].likeliest[0].token == all[i].own.token;
    }
    return found;
  }

  const text::TextModel& model_;
  const tokenize::Tokenizer& tokenizer_;
  std::optional<std::int64_t> prefix_;
};

/// Scores of documents, by metric and document: a value and a weight.
struct DocumentScore {
  double value = 0;
  double weight = 1;
};

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
    while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80) {
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
                                  const std::vector<Likelihood>& likelihoods) {
  std::vector<double> values;
  std::vector<double> by_characters;
  std::vector<double> by_bytes;
  for (std::size_t i = 0; i < likelihoods.size(); ++i) {
    const std::string& choice = question.choices[i];
    values.push_back(likelihoods[i].log_probability);
    by_characters.push_back(values.back() / static_cast<double>(characters(choice)));
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

}  // namespace

struct PreparedTask::State {
  EvaluationTask task;
  std::vector<TaskQuestion> questions;
  std::int64_t batch = 8;

  /// Asks the documents of this copy one by one; each gives a value and a weight of each metric.
  template <class Ask>
  std::vector<TaskScore> scores_by_document(const text::TextModel& model, const Ask& ask) const {
    const std::size_t metrics = task.metrics.size();
    std::vector<std::vector<double>> values(metrics);
    std::vector<std::vector<double>> weights(metrics);
    for (std::size_t i = 0; i < questions.size(); ++i) {
      const std::vector<DocumentScore> own = model.copies().owns(static_cast<std::int64_t>(i))
                                                 ? ask(questions[i])
                                                 : std::vector<DocumentScore>(metrics);
      for (std::size_t metric = 0; metric < metrics; ++metric) {
        values[metric].push_back(own[metric].value);
        weights[metric].push_back(own[metric].weight);
      }
    }
    std::vector<TaskScore> scores;
    for (std::size_t metric = 0; metric < metrics; ++metric) {
      const std::vector<double> all_values = model.copies().joined(std::move(values[metric]));
      const std::vector<double> all_weights = model.copies().joined(std::move(weights[metric]));
      std::vector<DocumentScore> all;
      for (std::size_t i = 0; i < all_values.size(); ++i) {
        all.push_back({.value = all_values[i], .weight = all_weights[i]});
      }
      for (const FilterChain& chain : task.filters) {
        scores.push_back(score_of(task.metrics[metric], chain.name, all));
      }
    }
    return scores;
  }

  std::vector<DocumentScore> of_choices(const ModelAnswers& asked,
                                        const TaskQuestion& question) const {
    const bool greedy = std::ranges::any_of(
        task.metrics, [](const TaskMetric& metric) { return metric.name == "exact_match"; });
    std::vector<Likelihood> likelihoods;
    for (std::size_t i = 0; i < question.choices.size(); ++i) {
      likelihoods.push_back(asked.after(question.contexts[question.has_inputs ? i : 0],
                                        question.continuations[question.has_inputs ? 0 : i],
                                        greedy));
    }
    std::vector<DocumentScore> scores;
    for (const double value : choice_scores(task, question, likelihoods)) {
      scores.push_back({.value = value});
    }
    return scores;
  }

  std::vector<DocumentScore> of_text(const ModelAnswers& asked,
                                     const TaskQuestion& question) const {
    const Likelihood found = asked.after(question.contexts[0], question.continuations[0], true);
    std::vector<DocumentScore> scores;
    for (const TaskMetric& metric : task.metrics) {
      scores.push_back(
          {.value = metric.name == "acc" ? (found.greedy ? 1.0 : 0.0) : found.log_probability});
    }
    return scores;
  }

  std::vector<DocumentScore> of_document(const ModelAnswers& asked,
                                         const TaskQuestion& question) const {
    const std::string& document = question.continuations[0];
    const double value = asked.whole(document);
    std::vector<DocumentScore> scores;
    for (const TaskMetric& metric : task.metrics) {
      const std::size_t weight =
          metric.name == "word_perplexity" ? words_in(document) : document.size();
      scores.push_back({.value = value, .weight = static_cast<double>(weight)});
    }
    return scores;
  }

  std::vector<TaskScore> of_answers(const ModelAnswers& asked) const {
    std::vector<std::string> contexts;
    for (const TaskQuestion& question : questions) {
      contexts.push_back(question.contexts[0]);
    }
    const std::vector<std::string> answers = asked.answers(task, contexts, batch);
    std::vector<TaskScore> scores;
    for (const FilterChain& chain : task.filters) {
      for (const TaskMetric& metric : task.metrics) {
        std::vector<DocumentScore> all;
        for (std::size_t i = 0; i < questions.size(); ++i) {
          const Json answer = filtered(chain, answers[i], task.file);
          const bool right = answer.is_string() &&
                             matches_exactly(metric.match, answer.get<std::string>(),
                                             right_answers(questions[i], task.file), task.file);
          all.push_back({.value = right ? 1.0 : 0.0});
        }
        scores.push_back(score_of(metric, chain.name, all));
      }
    }
    return scores;
  }
};

PreparedTask::PreparedTask(const std::string& file, const TaskOptions& options) {
  State made{.task = read_evaluation_task(file), .questions = {}, .batch = options.batch};
  EvaluationTask& task = made.task;
  task.shots = options.shots.value_or(task.shots);
  std::vector<Document> documents = split_documents(task, task.asked_split(), options.folder);
  std::vector<Document> examples;
  if (task.shots > 0) {
    const std::string& split = task.shots_split        ? *task.shots_split
                               : task.training_split   ? *task.training_split
                               : task.validation_split ? *task.validation_split
                                                       : *task.test_split;
    examples = task.shots_documents.is_array() && !task.shots_split
                   ? task.shots_documents.get<std::vector<Document>>()
                   : split_documents(task, split, options.folder);
  }
  const std::size_t count =
      options.limit > 0 ? std::min(documents.size(), static_cast<std::size_t>(options.limit))
                        : documents.size();
  documents.resize(count);
  TaskTexts texts(task, std::move(documents), std::move(examples));
  while (made.questions.size() < texts.count()) {
    made.questions.push_back(texts.next());
  }
  state_ = std::make_unique<const State>(std::move(made));
}

PreparedTask::~PreparedTask() = default;
PreparedTask::PreparedTask(PreparedTask&&) noexcept = default;

const std::string& PreparedTask::name() const { return state_->task.name; }

TaskResult PreparedTask::ask(const text::TextModel& model) const {
  const ModelAnswers asked(model);
  const State& state = *state_;
  TaskResult result{.task = state.task.name,
                    .documents = std::ssize(state.questions),
                    .shots = state.task.shots,
                    .scores = {}};
  switch (state.task.kind) {
    case RequestKind::multiple_choice:
      result.scores = state.scores_by_document(
          model, [&](const TaskQuestion& one) { return state.of_choices(asked, one); });
      break;
    case RequestKind::loglikelihood:
      result.scores = state.scores_by_document(
          model, [&](const TaskQuestion& one) { return state.of_text(asked, one); });
      break;
    case RequestKind::loglikelihood_rolling:
      result.scores = state.scores_by_document(
          model, [&](const TaskQuestion& one) { return state.of_document(asked, one); });
      break;
    case RequestKind::generate_until:
      result.scores = state.of_answers(asked);
      break;
  }
  return result;
}

}  // namespace tessera::evaluation
