export module tessera.app.evaluation:questions;

import tessera.app.base;
import tessera.app.generation;

export namespace tessera::app {

/// A question with choices, of which one is right, or with the texts that are right answers.
struct Question {
  std::string text;
  std::vector<std::string> choices = {};
  std::size_t right = 0;                  // among the choices
  std::vector<std::string> answers = {};  // without choices
};

/// The questions of a JSONL file in the forms that the data sets of lm-evaluation-harness have
/// (docs/generation.md). Errors (input) with file and line: the file cannot be read; a line that is
/// no question; no question at all.
std::vector<Question> read_questions(const std::string& file);

struct QuestionOptions {
  /// What the model reads: {question} stands for the question.
  std::string format = "Question: {question}\nAnswer:";
  GenerationOptions generation = {.tokens = 64, .sampling = {.temperature = 0}, .stop = {"\n"}};
};

/// A share of questions, with the standard error of the mean.
struct Share {
  double value = 0;
  double error = 0;
};

struct QuestionScores {
  std::int64_t choices = 0;    // questions with choices
  Share accuracy;              // the likeliest choice is the right one
  Share normalized;            // the likeliest one by its likelihood divided by its characters
  std::int64_t generated = 0;  // questions without
  Share exact_match;           // the generated text is a right one, without blanks around
};

/// Asks the model: a choice's likelihood is that of " " and the choice after the question. Errors
/// (input): those of generate; a question without tokens, or longer than the model computes.
QuestionScores ask(const TextModel& model, std::span<const Question> questions,
                   const QuestionOptions& options);

}  // namespace tessera::app
