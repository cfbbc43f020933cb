module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <tessera/input_file.hpp>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <tessera/utf8.hpp>
#include <utility>
#include <vector>
module tessera.text;

import tessera.base;
import tessera.tokenize;
import tessera.data;

namespace tessera::text {
namespace {

using Json = nlohmann::json;
using Tokens = std::vector<std::int64_t>;

/// The first of these members that there is.
const Json* member(const Json& record, std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    if (const auto found = record.find(name); found != record.end()) {
      return &*found;
    }
  }
  return nullptr;
}

std::vector<std::string> texts_of(const Json& list, const char* what) {
  std::vector<std::string> texts;
  for (const Json& text : list.is_array() ? list : Json::array({nullptr})) {
    if (!text.is_string()) {
      fail_input({.wrong = fmt::format("'{}' must be a list of texts", what)});
    }
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

/// Readings of an answer: its place, and how it was found.
using Readings = std::vector<std::pair<std::size_t, const char*>>;

Readings readings_of(const Json& answer, const std::vector<std::string>& choices,
                     const std::vector<std::string>& labels) {
  Readings readings;
  const auto add = [&](std::size_t place, const char* how) {
    if (place < choices.size()) {
      readings.emplace_back(place, how);
    }
  };
  const auto find = [&](const std::vector<std::string>& names, const std::string& text,
                        const char* how) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names[i] == text) {
        add(i, how);
      }
    }
  };
  const std::string text = answer.is_string() ? answer.get<std::string>() : json_text(answer);
  find(labels, text, "a label");
  if (answer.is_number_unsigned()) {
    add(answer.get<std::size_t>(), "a number from 0");
  } else if (answer.is_string() && readings.empty()) {  // labels are there for nothing else
    find(choices, text, "the text of a choice");
    if (text.size() == 1 && text[0] >= 'A' && text[0] <= 'Z') {
      add(static_cast<std::size_t>(text[0] - 'A'), "a letter");
    } else if (text.size() == 1 && text[0] >= '0' && text[0] <= '9') {
      add(static_cast<std::size_t>(text[0] - '0'), "a number from 0");
    }
  }
  return readings;
}

/// A choice by its place, from 0, or by its label, its text or a letter. Error (input): none, or
/// two readings that name different choices.
std::size_t right_choice(const Json& answer, const std::vector<std::string>& choices,
                         const std::vector<std::string>& labels) {
  const Readings readings = readings_of(answer, choices, labels);
  if (readings.empty()) {
    fail_input({.wrong = "the answer is none of the choices",
                .expected = fmt::format("0 to {}, a letter, or the text of one",
                                        static_cast<std::int64_t>(choices.size()) - 1),
                .got = shown(json_text(answer), 60)});
  }
  for (const auto& [place, how] : readings) {
    if (place != readings[0].first) {
      fail_input({.wrong = fmt::format("the answer {} is read in two ways: as {} it is choice {}, "
                                       "as {} it is choice {}",
                                       shown(json_text(answer), 60), readings[0].second,
                                       readings[0].first, how, place),
                  .advice = "give the number of the choice, from 0, and not as a text"});
    }
  }
  return readings[0].first;
}

Question question_of(const std::string& line) {
  const ParsedJson parsed = parse_json_object(line);
  if (!parsed.problem.empty()) {
    fail_input({.wrong = parsed.problem});
  }
  const Json& record = parsed.value;
  const Json* const text = member(record, {"question", "prompt", "query", "ctx"});
  if (text == nullptr || !text->is_string()) {
    fail_input({.wrong = "there is no text 'question', 'prompt', 'query' or 'ctx'"});
  }
  const Json* const answer = member(record, {"answer", "answerKey", "label", "gold"});
  if (answer == nullptr) {
    fail_input({.wrong = "there is no 'answer', 'answerKey', 'label' or 'gold'"});
  }
  Question question{.text = text->get<std::string>()};
  const Json* choices = member(record, {"choices", "endings"});
  if (choices == nullptr) {
    question.answers =
        answer->is_string() ? std::vector{answer->get<std::string>()} : texts_of(*answer, "answer");
    return question;
  }
  std::vector<std::string> labels;
  if (choices->is_object()) {
    if (!choices->contains("text") || !choices->contains("label")) {
      fail_input({.wrong = "'choices' must be a list, or have 'text' and 'label'"});
    }
    labels = texts_of((*choices)["label"], "label");
    choices = &(*choices)["text"];
  }
  question.choices = texts_of(*choices, "choices");
  question.right = right_choice(*answer, question.choices, labels);
  return question;
}

std::string in_format(const Question& question, const QuestionOptions& options) {
  constexpr std::string_view place = "{question}";
  std::string text = options.format;
  for (std::size_t at = text.find(place); at != std::string::npos;
       at = text.find(place, at + question.text.size())) {
    text.replace(at, place.size(), question.text);
  }
  return text;
}

std::string with_answer(const Question& example, const QuestionOptions& options) {
  if (example.choices.empty() && example.answers.empty()) {
    fail_input({.thing = "--shots",
                .wrong = fmt::format("an example has no answer: '{}'", shown(example.text, 60))});
  }
  return in_format(example, options) + " " +
         (example.choices.empty() ? example.answers[0] : example.choices[example.right]) + "\n\n";
}

/// The numbers of a question's shots among `count` examples; `left_out` is none of them.
std::vector<std::size_t> shots_of(std::size_t question, std::size_t count,
                                  std::optional<std::size_t> left_out,
                                  const QuestionOptions& options) {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < count; ++i) {
    if (i != left_out) {
      all.push_back(i);
    }
  }
  const auto shots = static_cast<std::size_t>(options.shots);
  if (all.size() < shots) {
    fail_input({.thing = "--shots",
                .wrong = "there are fewer examples",
                .expected = fmt::format("at most {}", all.size()),
                .got = fmt::format("{}", shots)});
  }
  if (options.shots_seed) {
    std::mt19937_64 random(*options.shots_seed + question * 0x9E3779B97F4A7C15U);
    for (std::size_t i = 0; i < shots; ++i) {
      std::swap(all[i], all[i + random() % (all.size() - i)]);
    }
  }
  all.resize(shots);
  return all;
}

/// Of the values 1 among 1 and 0.
Share share_of(const std::vector<double>& right) {
  const auto count = static_cast<double>(right.size());
  if (right.empty()) {
    return {};
  }
  const double mean = static_cast<double>(std::ranges::count(right, 1.0)) / count;
  return {mean, right.size() < 2 ? 0 : std::sqrt(mean * (1 - mean) / (count - 1))};
}

/// The choice with the highest value; the first of equal ones.
std::size_t best(const std::vector<double>& values) {
  return static_cast<std::size_t>(std::ranges::max_element(values) - values.begin());
}

}  // namespace

std::vector<Question> read_questions(const std::string& file) {
  // It may be compressed, or of a format that a source reads.
  const data::DataFile content = data::DataFile::content_of(file);
  std::string text;
  data::for_each_piece(content, content.size(), [&](std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  std::istringstream stream(std::move(text));
  std::vector<Question> questions;
  std::string line;
  for (std::int64_t number = 1; next_line(stream, file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    try {
      questions.push_back(question_of(line));
    } catch (const Error& error) {
      fail_at(fmt::format("{}:{}", file, number), error);
    }
  }
  if (questions.empty()) {
    fail_input({.thing = file, .wrong = "there is no question in it"});
  }
  return questions;
}

std::vector<std::string> question_prompts(std::span<const Question> questions,
                                          std::span<const Question> examples,
                                          const QuestionOptions& options) {
  const bool own = examples.empty();
  const std::span<const Question> from = own ? questions : examples;
  std::vector<std::string> prompts;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    std::string prompt;
    if (options.shots > 0) {
      const auto left_out = own ? std::optional(i) : std::nullopt;
      for (const std::size_t shot : shots_of(i, from.size(), left_out, options)) {
        prompt += with_answer(from[shot], options);
      }
    }
    prompts.push_back(prompt + in_format(questions[i], options));
  }
  return prompts;
}

std::vector<double> choice_likelihoods(const TextModel& model, const std::string& prompt,
                                       std::span<const std::string> choices) {
  const std::size_t before = prompt_tokens(model, prompt).size();
  std::vector<double> likelihoods;
  for (const std::string& choice : choices) {
    const Tokens tokens = prompt_tokens(model, prompt + " " + choice);
    std::vector<std::uint8_t> scored(tokens.size(), 1);
    std::fill_n(scored.begin(), std::min(before, tokens.size()), std::uint8_t{0});
    likelihoods.push_back(log_likelihood(model, tokens, scored));
  }
  return likelihoods;
}

QuestionScores ask(const TextModel& model, std::span<const Question> questions,
                   std::span<const Question> examples, const QuestionOptions& options) {
  const std::vector<std::string> texts = question_prompts(questions, examples, options);
  std::vector<double> right;  // of the questions with choices: 1 or 0
  std::vector<double> right_normalized;
  std::vector<Tokens> prompts;  // of the others
  std::vector<const Question*> open;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const Question& question = questions[i];
    if (question.choices.empty()) {
      prompts.push_back(prompt_tokens(model, texts[i]));
      open.push_back(&question);
      continue;
    }
    const bool own = model.copies().owns(std::ssize(right));
    right.push_back(0);
    right_normalized.push_back(0);
    if (own) {
      std::vector<double> values = choice_likelihoods(model, texts[i], question.choices);
      right.back() = best(values) == question.right ? 1 : 0;
      for (std::size_t choice = 0; choice < values.size(); ++choice) {
        const std::int64_t length = count_characters(question.choices[choice]);
        values[choice] /= static_cast<double>(std::max<std::int64_t>(length, 1));
      }
      right_normalized.back() = best(values) == question.right ? 1 : 0;
    }
  }
  QuestionScores scores{.choices = std::ssize(right),
                        .accuracy = share_of(model.copies().joined(std::move(right))),
                        .normalized = share_of(model.copies().joined(std::move(right_normalized))),
                        .generated = std::ssize(open),
                        .exact_match = {}};
  if (open.empty()) {
    return scores;
  }
  Engine engine(model.ranks(), model.shape().vocab);
  const std::vector<GeneratedText> answers = generate(model, engine, prompts, options.generation);
  std::vector<double> matches;
  for (std::size_t i = 0; i < open.size(); ++i) {
    const std::string_view text = without_blanks(answers[i].text);
    const bool match = std::ranges::any_of(open[i]->answers, [&](const std::string& answer) {
      return without_blanks(answer) == text;
    });
    matches.push_back(match ? 1 : 0);
  }
  scores.exact_match = share_of(matches);
  return scores;
}

}  // namespace tessera::text
