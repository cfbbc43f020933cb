module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <system_error>
#include <tessera/input_file.hpp>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.evaluation;

import :python_random;
import :python_values;
import :task_texts;
import tessera.base;
import tessera.data;

namespace tessera::evaluation {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::uint64_t shots_seed = 1234;  // lm-evaluation-harness' own

/// The lines of a file, which may be compressed, or of a format that a source reads.
std::istringstream lines_of(const std::string& file) {
  const data::DataFile content = data::DataFile::content_of(file);
  std::string text;
  text.reserve(content.size());
  data::for_each_piece(content, content.size(), [&](std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  return std::istringstream(std::move(text));
}

/// The file of a split below a folder: the first of these that is there.
std::string split_file(const fs::path& folder, const std::string& split) {
  for (const char* const ending : {".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow"}) {
    std::error_code ignored;
    if (!fs::exists(folder / (split + ".jsonl"), ignored) &&
        fs::exists(folder / (split + ending), ignored)) {
      return (folder / (split + ending)).string();
    }
  }
  return (folder / (split + ".jsonl")).string();
}

void read_documents(const std::string& file, std::vector<Document>& documents) {
  std::istringstream stream = lines_of(file);
  std::string line;
  for (std::int64_t number = 1; next_line(stream, file, line); ++number) {
    if (without_space(line).empty()) {
      continue;
    }
    ParsedJson parsed = parse_json_object(line);
    if (!parsed.problem.empty()) {
      fail_input({.thing = fmt::format("{}:{}", file, number), .wrong = parsed.problem});
    }
    documents.push_back(std::move(parsed.value));
  }
}

/// A field with its template.
class FieldText {
 public:
  FieldText(const TaskField& field, const Document& first, const std::string& name)
      : value_(field.value), name_(name) {
    if (!value_.is_string()) {
      return;
    }
    if (first.contains(value_.get_ref<const std::string&>())) {
      member_ = value_.get<std::string>();
    } else {
      template_.emplace(value_.get_ref<const std::string&>(), name);
    }
  }

  bool given() const { return !value_.is_null(); }
  bool is_text() const { return template_.has_value(); }
  const std::string& name() const { return name_; }

  /// The member or the value itself; of a template its text.
  Json of(const Document& document) const {
    if (member_) {
      return document.at(*member_);
    }
    return template_ ? Json(template_->render(json_text(document))) : value_;
  }

 private:
  Json value_;
  std::string name_;
  std::optional<std::string> member_;
  std::optional<data::TextTemplate> template_;
};

[[noreturn]] void refuse(const FieldText& field, const char* expected, const Json& got) {
  fail_input({.thing = field.name(),
              .wrong = "it has a wrong value",
              .expected = expected,
              .got = shown(json_text(got), 80)});
}

/// Whether a delimiter is between two texts: both are there, and neither has white space there.
bool is_delimited(const std::string& before, const std::string& after) {
  return !before.empty() && !after.empty() && without_space_behind(before) == before &&
         without_space_before(after) == after;
}

std::string delimited(const std::string& before, const std::string& after,
                      const std::string& delimiter) {
  return before + (is_delimited(before, after) ? delimiter : "") + after;
}

}  // namespace

std::string joined_text(std::span<const TaskMessage> messages) {
  std::string text;
  for (const TaskMessage& message : messages) {
    text += message.text + message.delimiter;
  }
  return text;
}

std::vector<Document> split_documents(const EvaluationTask& task, const std::string& split,
                                      const std::string& folder) {
  std::vector<std::string> files;
  if (task.data.name.empty()) {
    const auto found = task.data.files.find(split);
    if (found == task.data.files.end()) {
      fail_input({.thing = task.file,
                  .wrong = fmt::format("dataset_kwargs.data_files has no split '{}'", split)});
    }
    files = found->second;
  } else if (folder.empty()) {
    fail_input(
        {.thing = task.file,
         .wrong = fmt::format("the data set '{}' is not in files", task.data.name),
         .advice = fmt::format("give --task-data FOLDER, in which {}/{}.jsonl has its documents",
                               task.name, split)});
  } else {
    files = {split_file(fs::path(folder) / task.name, split)};
  }
  std::vector<Document> documents;
  for (const std::string& file : files) {
    read_documents(file, documents);
  }
  if (documents.empty()) {
    fail_input({.thing = task.file, .wrong = fmt::format("split '{}' has no documents", split)});
  }
  for (Document& document : documents) {
    for (const auto& [name, value] : documents.front().items()) {
      if (!document.contains(name)) {
        document[name] = nullptr;
      }
    }
  }
  return documents;
}

struct TaskTexts::State {
  State(const EvaluationTask& of, std::vector<Document> asked, std::vector<Document> shots_from,
        std::string instruction)
      : task(of),
        system(std::move(instruction)),
        documents(std::move(asked)),
        examples(std::move(shots_from)),
        text(of.text, documents.front(), of.file + ": doc_to_text"),
        target(of.target, documents.front(), of.file + ": doc_to_target"),
        choice(of.choice, documents.front(), of.file + ": doc_to_choice"),
        description(of.description, documents.front(), of.file + ": description"),
        prefix(of.answer_prefix, documents.front(), of.file + ": gen_prefix"),
        random(shots_seed) {}

  const EvaluationTask& task;
  std::string system;
  std::vector<Document> documents;
  std::vector<Document> examples;
  FieldText text;
  FieldText target;
  FieldText choice;
  FieldText description;
  FieldText prefix;
  PythonRandom random;
  std::size_t asked = 0;

  std::string plain(const FieldText& field, const Document& document) const {
    const Json value = field.given() ? field.of(document) : Json("");
    if (!value.is_string()) {
      refuse(field, "a text", value);
    }
    return value.get<std::string>();
  }

  /// doc_to_text: a text, or with choices the number of one.
  Json text_of(const Document& document) const {
    Json value = text.given() ? text.of(document) : Json("");
    if (text.is_text() && choice.given() && is_digits(value.get_ref<const std::string&>())) {
      return std::stoll(value.get<std::string>().substr(0, 18));
    }
    return value;
  }

  Json target_of(const Document& document) const {
    Json value = target.of(document);
    if (value.is_boolean()) {
      return value.get<bool>() ? 1 : 0;
    }
    if (!target.is_text()) {
      return value;
    }
    const auto& written = value.get_ref<const std::string&>();
    if (choice.given() && is_digits(written)) {
      return std::stoll(written.substr(0, 18));
    }
    if (written.size() >= 2 && written.front() == '[' && written.back() == ']') {
      return python_literal(written).value_or(value);
    }
    return value;
  }

  std::vector<std::string> choices_of(const Document& document) const {
    Json value = choice.of(document);
    if (choice.is_text()) {
      value = python_literal(value.get_ref<const std::string&>()).value_or(value);
    }
    if (value.is_object()) {
      Json list = Json::array();
      for (const auto& [name, one] : value.items()) {
        list.push_back(one);
      }
      value = list;
    }
    if (!value.is_array() || value.empty() ||
        !std::ranges::all_of(value, [](const Json& one) { return one.is_string(); })) {
      refuse(choice, "a list of texts", value);
    }
    return value.get<std::vector<std::string>>();
  }

  std::vector<std::size_t> drawn(const Document& document) {
    const auto count = static_cast<std::size_t>(task.shots);
    const bool own = task.shots_documents.is_null() && task.shots_split == task.test_split;
    const auto differs = [&](std::size_t i) { return !own || examples[i] != document; };
    if (count + (own && !task.first_shots ? 1 : 0) > examples.size()) {
      fail_input({.thing = task.file,
                  .wrong = "there are fewer examples than shots",
                  .expected = fmt::format("more than {}", count),
                  .got = fmt::format("{}", examples.size())});
    }
    std::vector<std::size_t> numbers;
    if (!task.first_shots) {
      numbers = random.sample(examples.size(), count + (own ? 1 : 0));
      std::erase_if(numbers, [&](std::size_t i) { return !differs(i); });
    }
    if (task.first_shots || numbers.size() < count) {
      numbers.clear();
      std::vector<std::size_t> others;
      for (std::size_t i = 0; i < examples.size(); ++i) {
        if (differs(i)) {
          others.push_back(i);
        }
      }
      if (others.size() < count) {
        fail_input({.thing = task.file, .wrong = "there are fewer examples than shots"});
      }
      if (task.first_shots) {
        numbers = others;
      } else {
        for (const std::size_t at : random.sample(others.size(), count)) {
          numbers.push_back(others[at]);
        }
      }
    }
    numbers.resize(count);
    return numbers;
  }

  /// A question with its answer.
  void add_example(std::vector<TaskMessage>& messages, const Document& document) const {
    const Json asks = text_of(document);
    const Json answer = target_of(document);
    const auto choices = choice.given() ? choices_of(document) : std::vector<std::string>();
    const auto numbered = [&](const FieldText& field, const Json& value) {
      if (!value.is_number_integer() || value < 0 || value >= std::ssize(choices)) {
        refuse(field, "the number of a choice", value);
      }
      return choices[value.get<std::size_t>()];
    };
    const bool inputs = asks.is_number_integer();
    const std::string question = inputs             ? numbered(text, asks)
                                 : asks.is_string() ? asks.get<std::string>()
                                                    : std::string();
    if (!inputs && !asks.is_string()) {
      refuse(text, "a text", asks);
    }
    const Json one = answer.is_array() && !answer.empty() ? answer[0] : answer;
    const std::string right = one.is_string()               ? one.get<std::string>()
                              : !inputs && !choices.empty() ? numbered(target, one)
                                                            : std::string();
    if (!one.is_string() && (inputs || choices.empty())) {
      refuse(target, "a text", one);
    }
    const std::string begins = plain(prefix, document);
    if (right.empty()) {
      add_question(messages, question, begins, task.target_delimiter);
      return;
    }
    const bool spaced = begins.empty() || is_delimited(question, begins);
    messages.push_back({.role = TaskMessage::Role::user,
                        .text = question,
                        .delimiter = spaced ? task.target_delimiter : ""});
    messages.push_back({.role = TaskMessage::Role::assistant,
                        .text = delimited(begins, right, " "),
                        .delimiter = task.shots_delimiter});
  }

  /// A question, and what its answer begins with.
  static void add_question(std::vector<TaskMessage>& messages, const std::string& question,
                           const std::string& begins, const std::string& delimiter) {
    messages.push_back({.role = TaskMessage::Role::user,
                        .text = question,
                        .delimiter = is_delimited(question, begins) ? delimiter : ""});
    if (!begins.empty()) {
      messages.push_back({.role = TaskMessage::Role::assistant, .text = begins});
    }
  }

  TaskQuestion question(const Document& document) {
    TaskQuestion made;
    std::vector<TaskMessage> before;
    const std::string says = delimited(system, plain(description, document), task.shots_delimiter);
    if (!says.empty()) {
      before.push_back({.role = TaskMessage::Role::system, .text = says});
    }
    if (task.kind != RequestKind::loglikelihood_rolling && task.shots > 0) {
      for (const std::size_t number : drawn(document)) {
        add_example(before, examples[number]);
      }
    }
    const std::string begins = plain(prefix, document);
    const Json asks = text_of(document);
    if (target.given()) {
      made.target = target_of(document);
    }
    if (choice.given()) {
      made.choices = choices_of(document);
    }
    if (task.kind == RequestKind::multiple_choice && asks.is_number_integer()) {
      made.has_inputs = true;
      for (const std::string& one : made.choices) {
        add_question(made.contexts.emplace_back(before), one, begins, "");
      }
      made.continuations = {written(made.target)};
      made.target = asks;
      return made;
    }
    if (!asks.is_string()) {
      refuse(text, "a text", asks);
    }
    add_question(made.contexts.emplace_back(before), asks.get<std::string>(), begins,
                 task.target_delimiter);
    if (task.kind == RequestKind::multiple_choice) {
      made.continuations = made.choices;
    } else if (task.kind != RequestKind::generate_until) {
      made.continuations = {written(made.target)};
    }
    return made;
  }

  std::string written(const Json& value) const {
    if (!value.is_string()) {
      refuse(target, "a text", value);
    }
    return value.get<std::string>();
  }
};

TaskTexts::TaskTexts(const EvaluationTask& task, std::vector<Document> documents,
                     std::vector<Document> examples, std::string system)
    : state_(std::make_unique<State>(task, std::move(documents), std::move(examples),
                                     std::move(system))) {}
TaskTexts::~TaskTexts() = default;

std::size_t TaskTexts::count() const { return state_->documents.size(); }

TaskQuestion TaskTexts::next() {
  const std::size_t number = state_->asked++;
  try {
    return state_->question(state_->documents.at(number));
  } catch (const Error& error) {
    fail_at(fmt::format("document {}", number), error);
  }
}

}  // namespace tessera::evaluation
