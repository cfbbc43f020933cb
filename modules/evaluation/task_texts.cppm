module;
#include <nlohmann/json.hpp>
module tessera.evaluation:task_texts;

import tessera.base;
import tessera.data;
import :evaluation_task;

// What a task makes of its documents.

namespace tessera::evaluation {

using Document = nlohmann::json;

/// The documents of a split, each with all members of the first one. `folder`: where the data sets
/// are that the task does not name files of (FOLDER/TASK/SPLIT.jsonl). Errors (input): no files; a
/// line that is no object; no documents.
std::vector<Document> split_documents(const EvaluationTask& task, const std::string& split,
                                      const std::string& folder);

/// A part of what a model reads before it answers.
struct TaskMessage {
  enum class Role : std::uint8_t { system, user, assistant };
  Role role = Role::user;
  std::string text;
  std::string delimiter = {};  // behind it, where messages are joined
};

/// What one document asks.
struct TaskQuestion {
  /// One; or with several inputs one for each choice. The last message is the question, or of the
  /// assistant, with which its answer begins.
  std::vector<std::vector<TaskMessage>> contexts;
  std::vector<std::string> continuations;  // whose likelihood is asked; of one context or of each
  std::vector<std::string> choices;        // of multiple_choice
  nlohmann::json target;                   // a number, a text, or a list of them
  bool has_inputs = false;                 // the choices are in the contexts
};

/// The text that messages are without a chat template: one after the other.
std::string joined_text(std::span<const TaskMessage> messages);

/// Makes questions of documents, with the examples before them.
class TaskTexts {
 public:
  /// `documents`: those that are asked. `examples`: where shots are from. `system`: what comes
  /// before a task's description. Errors (input): a field is no template that is supported.
  TaskTexts(const EvaluationTask& task, std::vector<Document> documents,
            std::vector<Document> examples, std::string system = {});
  ~TaskTexts();

  std::size_t count() const;
  /// The next document's: shots are drawn one document after the other. Errors (input) with the
  /// number of the document: a template cannot be rendered; a value has not the type that is
  /// needed.
  TaskQuestion next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::evaluation
