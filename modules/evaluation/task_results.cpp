module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tessera/content_hash.hpp>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.evaluation;

import :task_requests;
import :task_scores;
import :task_texts;
import tessera.base;
import tessera.text;

namespace tessera::evaluation {
namespace {

using Json = nlohmann::ordered_json;

/// Whether it is an answer to that.
bool is_answer(const TaskAnswer& answer, const TaskRequest& request, RequestKind kind) {
  return kind == RequestKind::generate_until ? answer.likelihoods.empty()
                                             : answer.likelihoods.size() == request.scored.size();
}

/// All that an answer depends on besides the model.
std::string hash_of(const TaskRequest& request, const text::GenerationOptions& options) {
  Json asked = Json::array();
  for (const text::ScoredText& text : request.scored) {
    asked.push_back({text.tokens, text.first});
  }
  if (request.scored.empty()) {
    asked = {request.prompt, options.tokens, options.sampling.temperature, options.stop};
  }
  const std::string all = json_text(asked);
  return content_hash(std::as_bytes(std::span(all)));
}

}  // namespace

struct PreparedTask::State {
  State(EvaluationTask of, TaskChat in, std::vector<Document> documents,
        std::vector<Document> examples, const std::string& system)
      : task(std::move(of)), chat(std::move(in)), scorer(task) {
    TaskTexts texts(task, std::move(documents), std::move(examples), system);
    while (questions.size() < texts.count()) {
      questions.push_back(texts.next());
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const EvaluationTask task;
  TaskChat chat;
  TaskMetrics scorer;
  std::vector<TaskQuestion> questions;
};

namespace {

/// What a model is asked of a task by this copy, and its answers.
class TaskRun {
 public:
  TaskRun(const text::TextModel& model, text::Engine& engine, const EvaluationTask& task,
          const TaskChat& chat, StoredAnswers* kept)
      : model_(model),
        engine_(engine),
        task_(task),
        requests_(model, task, chat),
        generation_(requests_.generation(engine.most())),
        kept_(kept) {}

  /// Those of other copies are empty, unless they are texts.
  std::vector<TaskAnswer> answers(const std::vector<TaskQuestion>& questions) {
    questions_ = &questions;
    answers_.resize(questions.size());
    find_kept();
    task_.kind == RequestKind::generate_until ? generate() : score();
    return std::move(answers_);
  }

 private:
  bool owns(std::size_t number) const {
    return model_.copies().owns(static_cast<std::int64_t>(number));
  }

  TaskRequest request(std::size_t number) const {
    try {
      return requests_.request((*questions_)[number]);
    } catch (const Error& error) {
      fail_at(fmt::format("{}: document {}", task_.file, number), error);
    }
  }

  /// All copies leave out the same documents: those whose answers their owners have.
  void find_kept() {
    std::vector<double> missing(answers_.size(), 1);
    for (std::size_t i = 0; kept_ != nullptr && i < answers_.size(); ++i) {
      const TaskRequest asked = request(i);
      const TaskAnswer* const found = kept_->find(hash_of(asked, generation_));
      if (found != nullptr && is_answer(*found, asked, task_.kind)) {
        answers_[i] = *found;
        missing[i] = 0;
      }
    }
    missing = model_.copies().joined(std::move(missing));
    for (std::size_t i = 0; i < missing.size(); ++i) {
      if (missing[i] != 0) {
        missing_.push_back(i);
      }
    }
  }

  void keep(std::size_t number, const TaskRequest& asked) {
    if (kept_ == nullptr) {
      return;
    }
    const TaskQuestion& question = (*questions_)[number];
    kept_->add(hash_of(asked, generation_), answers_[number],
               {.task = task_.name,
                .document = number,
                .text = joined_text(question.contexts[0]),
                .target = json_text(question.target)});
  }

  void generate() {
    std::vector<TaskRequest> asked;
    std::vector<std::vector<std::int64_t>> prompts;
    for (const std::size_t number : missing_) {
      asked.push_back(request(number));
      prompts.push_back(asked.back().prompt);
    }
    const auto ended = [&](std::size_t at, const text::GeneratedText& text) {
      answers_[missing_[at]].text = requests_.answer(text);
      keep(missing_[at], asked[at]);
    };
    const auto texts =
        text::generate(model_, engine_, prompts, generation_, nullptr, nullptr, ended);
    for (std::size_t at = 0; at < texts.size(); ++at) {
      answers_[missing_[at]].text = requests_.answer(texts[at]);
    }
  }

  /// A document's texts follow each other, so that what they share is computed once.
  void score() {
    struct Part {
      std::size_t document;
      std::size_t text;
    };
    std::vector<TaskRequest> asked(answers_.size());
    std::vector<std::size_t> left(answers_.size());
    std::vector<Part> parts;
    for (const std::size_t number : missing_) {
      if (!owns(number)) {
        continue;
      }
      const std::size_t texts = requests_.count((*questions_)[number]);
      answers_[number].likelihoods.resize(texts);
      left[number] = texts;
      for (std::size_t text = 0; text < texts; ++text) {
        parts.push_back({number, text});
      }
    }
    text::score_texts(
        model_, engine_, parts.size(),
        [&](std::size_t at) {
          const auto& [number, text] = parts[at];
          if (asked[number].scored.empty()) {
            asked[number] = request(number);
          }
          return asked[number].scored[text];
        },
        [&](std::size_t at, const text::TextLikelihood& found) {
          const auto& [number, text] = parts[at];
          answers_[number].likelihoods[text] = found;
          if (--left[number] == 0) {
            keep(number, asked[number]);
            asked[number] = {};
          }
        });
  }

  const text::TextModel& model_;
  text::Engine& engine_;
  const EvaluationTask& task_;
  TaskRequests requests_;
  text::GenerationOptions generation_;
  StoredAnswers* kept_;
  const std::vector<TaskQuestion>* questions_ = nullptr;
  std::vector<TaskAnswer> answers_;
  std::vector<std::size_t> missing_;
};

}  // namespace

PreparedTask::PreparedTask(const std::string& file, const TaskOptions& options) {
  EvaluationTask task = read_evaluation_task(file);
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
  state_ = std::make_unique<const State>(std::move(task), options.chat, std::move(documents),
                                         std::move(examples), options.system);
}

PreparedTask::~PreparedTask() = default;
PreparedTask::PreparedTask(PreparedTask&&) noexcept = default;

const std::string& PreparedTask::name() const { return state_->task.name; }

TaskResult PreparedTask::ask(const text::TextModel& model, text::Engine& engine,
                             StoredAnswers* kept) const {
  const State& state = *state_;
  TaskRun run(model, engine, state.task, state.chat, kept);
  const std::vector<TaskAnswer> answers = run.answers(state.questions);
  const std::size_t scores = state.scorer.count();
  std::vector<std::vector<double>> values(scores, std::vector<double>(answers.size()));
  std::vector<std::vector<double>> weights = values;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (!model.copies().owns(static_cast<std::int64_t>(i))) {
      continue;
    }
    const std::vector<DocumentScore> own = state.scorer.document(state.questions[i], answers[i]);
    for (std::size_t score = 0; score < scores; ++score) {
      values[score][i] = own[score].value;
      weights[score][i] = own[score].weight;
    }
  }
  TaskResult result{.task = state.task.name,
                    .documents = std::ssize(state.questions),
                    .shots = state.task.shots,
                    .scores = {}};
  for (std::size_t score = 0; score < scores; ++score) {
    const std::vector<double> all_values = model.copies().joined(std::move(values[score]));
    const std::vector<double> all_weights = model.copies().joined(std::move(weights[score]));
    std::vector<DocumentScore> all;
    for (std::size_t i = 0; i < all_values.size(); ++i) {
      all.push_back({.value = all_values[i], .weight = all_weights[i]});
    }
    result.scores.push_back(state.scorer.total(score, all));
  }
  return result;
}

}  // namespace tessera::evaluation
