export module tessera.text:questions;

import tessera.base;
import :text_model;
import :generate;

export namespace tessera::text {

/// A question with choices, of which one is right, or with the texts that are right answers.
struct Question {
  std::string text;
  std::vector<std::string> choices = {};
  std::size_t right = 0;                  // among the choices
  std::vector<std::string> answers = {};  // without choices
};

/// The questions of a JSONL file in the forms that the data sets of lm-evaluation-harness have
/// (docs/evaluation.md). Errors (input) with file and line: the file cannot be read; a line that is
/// no question; no question at all.
std::vector<Question> read_questions(const std::string& file);

/// How questions are asked.
struct QuestionOptions {
  /// What the model reads of a question: {question} stands for it.
  std::string format = "Question: {question}\nAnswer:";
  std::int64_t shots = 0;  // questions with their answers that the model reads before each one
  /// The shots of each question are drawn with this seed; none: they are the first examples.
  std::optional<std::uint64_t> shots_seed = {};
  GenerationOptions generation = {.tokens = 64, .sampling = {.temperature = 0}, .stop = {"\n"}};
};

/// A share of questions, with the standard error of the mean.
struct Share {
  double value = 0;
  double error = 0;
};

/// How many answers are right.
struct QuestionScores {
  std::int64_t choices = 0;    // questions with choices
  Share accuracy;              // the likeliest choice is the right one
  Share normalized;            // the likeliest one by its likelihood divided by its characters
  std::int64_t generated = 0;  // questions without
  Share exact_match;           // the generated text is a right one, without blanks around
};

/// What the model reads of each question: the shots, each with " ", its right answer (the first of
/// several) and an empty line after it, and the question. `examples`: where the shots are from;
/// none: the other questions. Errors (input): there are fewer examples than shots; one has no
/// answer.
std::vector<std::string> question_prompts(std::span<const Question> questions,
                                          std::span<const Question> examples,
                                          const QuestionOptions& options);

/// The logarithms of the likelihoods of " " and each choice after the prompt. Errors (input): no
/// tokens, or more than the model computes.
std::vector<double> choice_likelihoods(const TextModel& model, const std::string& prompt,
                                       std::span<const std::string> choices);

/// Asks the model: its answer is the likeliest choice, or the text that it generates. Errors
/// (input): those of the two above, and of generate.
QuestionScores ask(const TextModel& model, std::span<const Question> questions,
                   std::span<const Question> examples, const QuestionOptions& options);

}  // namespace tessera::text
