// Tasks of lm-evaluation-harness: its own scores of a model, and files that cannot be run.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"
#include "trained.hpp"

import tessera.base;
import tessera.text;
import tessera.evaluation;

using generation_test::reference;
using nlohmann::json;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::input_error;
using trainer_test::read_file;

namespace evaluation = tessera::evaluation;

namespace {

std::string stored(const std::string& name) { return reference + "evaluation/" + name; }

/// The scores of a model, which answers eight texts at the same time.
evaluation::TaskResult asked(const evaluation::PreparedTask& task,
                             const tessera::text::TextModel& model,
                             evaluation::StoredAnswers* kept = nullptr) {
  tessera::text::Engine engine(model.ranks(), model.shape().vocab, {.most = 8});
  return task.ask(model, engine, kept);
}

json scores_of(const evaluation::TaskResult& result) {
  json scores = json::object();
  for (const evaluation::TaskScore& score : result.scores) {
    const std::string name =
        score.filter == "none" ? score.metric : score.metric + "," + score.filter;
    scores[name] = score.value;
    if (score.error) {
      scores[name + "_error"] = *score.error;
    }
  }
  return scores;
}

std::string task_file(const std::string& name) { return stored("tasks/" + name + ".yaml"); }

/// A task of one document, which is complete but for this.
std::string error_of(const std::string& yaml,
                     const std::string& documents = "{\"q\": \"a\", \"c\": [\"x\", \"y\"]}\n") {
  const Folder own;
  own.write("test.jsonl", documents);
  const std::string file = own.write("task.yaml",
                                     "task: one\ndataset_path: json\ndataset_kwargs: {data_files: "
                                     "{test: test.jsonl}}\ntest_split: test\n" +
                                         yaml);
  const std::string error = input_error([&] { const evaluation::PreparedTask task(file, {}); });
  return error;
}

const std::string choices =
    "output_type: multiple_choice\ndoc_to_text: q\ndoc_to_target: 0\ndoc_to_choice: c\n";

}  // namespace

TEST_CASE("tasks have the scores of lm-evaluation-harness") {
  const json expected = json::parse(read_file(stored("expected.json")))["scores"];
  const tessera::text::TextModel model(stored("model"));
  REQUIRE(expected.size() == 8);
  for (const auto& [name, scores] : expected.items()) {
    INFO(name);
    const evaluation::PreparedTask task(task_file(name), {});
    CHECK(task.name() == name);
    const json got = scores_of(asked(task, model));
    INFO(got.dump());
    for (const auto& [metric, value] : scores.items()) {
      INFO(metric);
      REQUIRE(got.contains(metric));
      CHECK(got[metric].get<double>() == Approx(value.get<double>()).epsilon(2e-4));
    }
  }
}

TEST_CASE("tasks are asked in a conversation as lm-evaluation-harness does") {
  const json expected = json::parse(read_file(stored("expected.json")));
  const tessera::text::TextModel model(stored("model"));
  const std::string system = expected["system"].get<std::string>();
  REQUIRE(expected["forms"].size() == 3);
  for (const auto& [form, tasks] : expected["forms"].items()) {
    for (const auto& [name, scores] : tasks.items()) {
      INFO(form << " " << name);
      const evaluation::TaskOptions options{.system = form == "chat" ? "" : system,
                                            .chat = {.asked = form != "system",
                                                     .one_turn = form == "turn",
                                                     .template_file = stored("chat.jinja")}};
      const json got = scores_of(asked(evaluation::PreparedTask(task_file(name), options), model));
      INFO(got.dump());
      for (const auto& [metric, value] : scores.items()) {
        INFO(metric);
        REQUIRE(got.contains(metric));
        CHECK(got[metric].get<double>() == Approx(value.get<double>()).epsilon(2e-4));
      }
    }
  }
  const evaluation::PreparedTask chat(task_file("letters"), {.chat = {.asked = true}});
  has(input_error([&] { static_cast<void>(asked(chat, model)); }),
      "the model's tokenizer has no chat template; name a file with one (--chat-template)");
}

TEST_CASE("answers that are kept are not asked again, whatever ended the run") {
  const tessera::text::TextModel model(stored("model"));
  for (const std::string name : {"letters", "sums"}) {
    INFO(name);
    const Folder own;
    const std::string file = (own.path() / "answers.jsonl").string();
    const evaluation::PreparedTask task(task_file(name), {});
    json expected;
    {
      evaluation::StoredAnswers kept(file, model.path());
      expected = scores_of(asked(task, model, &kept));
    }
    const std::string all = read_file(file);
    const auto lines = std::ranges::count(all, '\n');
    CHECK(lines == asked(task, model).documents);
    const json line = json::parse(all.substr(0, all.find('\n')));
    CHECK(line["task"] == name);
    CHECK(line.contains("question"));
    // As a run that was killed leaves it: the last line is half there, another one was lost.
    own.write("answers.jsonl", all.substr(all.find('\n') + 1, all.size() * 2 / 3));
    {
      evaluation::StoredAnswers kept(file, model.path());
      CHECK(kept.damaged() == 1);
      CHECK(scores_of(asked(task, model, &kept)) == expected);
    }
    const std::string again = read_file(file);
    CHECK(std::ranges::count(again, '\n') == lines + 1);
    // Whatever is kept is believed: a changed answer changes the scores.
    evaluation::StoredAnswers kept(file, model.path());
    CHECK(kept.damaged() == 1);
    CHECK(scores_of(asked(task, model, &kept)) == expected);
    CHECK(read_file(file) == again);
  }
  const Folder own;
  const std::string other =
      own.write("answers.jsonl", "{\"model\": \"x\", \"asked\": \"y\", \"answer\": [[0, true]]}\n");
  has(input_error([&] { const evaluation::StoredAnswers kept(other, stored("model")); }),
      "answers.jsonl: it has answers of another model, or the model's files have changed; name "
      "another file, or remove it");
  has(input_error([&] {
        const evaluation::StoredAnswers kept((own.path() / "none/a").string(), stored("model"));
      }),
      "answers cannot be written there");
}

TEST_CASE("a task asks as many documents with as many shots as it is told") {
  const tessera::text::TextModel model(stored("model"));
  const evaluation::TaskResult few =
      asked(evaluation::PreparedTask(task_file("letters"), {.shots = 0, .limit = 3}), model);
  CHECK(few.documents == 3);
  CHECK(few.shots == 0);
  CHECK(!asked(evaluation::PreparedTask(task_file("letters"), {.limit = 1}), model)
             .scores.at(0)
             .error);
  has(input_error([] { const evaluation::PreparedTask task(task_file("letters"), {.shots = 31}); }),
      "there are fewer examples than shots (expected more than 31, got 30)");
}

TEST_CASE("a task that cannot be run is refused with all that is wrong") {
  CHECK(error_of(choices).empty());
  const std::string all = error_of(
      "output_type: multiple_choice\ndoc_to_text: !function utils.text\nrepeats: 2\nprocess_docs: "
      "!function utils.docs\n"
      "metric_list: [{metric: f1}, {metric: acc, aggregation: median}]\nnum_fewshot: "
      "many\nmystery: 1\n"
      "fewshot_config: {sampler: balanced}\n");
  for (const char* part :
       {"the task cannot be run:",
        "doc_to_text: the function \"utils.text\" of Python's is not supported: write a template",
        "process_docs: the function \"utils.docs\"", "doc_to_choice: it is missing",
        "repeats: expected 1, got 2", "metric: 'f1' is not supported for this output_type",
        "aggregation: expected \"mean\", got \"median\"",
        "num_fewshot: expected a whole number from 0 to 1000, got \"many\"",
        "mystery: it is not supported", "fewshot_config.sampler: expected default or first_n"}) {
    has(all, part);
  }
  has(error_of("output_type: guess\ndoc_to_text: q\ndoc_to_target: q\n"),
      "output_type: 'guess' is not supported");
  has(error_of("doc_to_text: q\ndoc_to_target: q\nfilter_list: [{name: a, filter: [{function: "
               "custom}]}]\n"),
      "function: 'custom' is not supported");
  has(error_of(choices + "gen_prefix: \"{{nothing}}\"\n"), "document 0: ");
  has(error_of(choices + "description: \"{{ x | regex_replace('a', 'b') }}\"\n"), "regex_replace");
  has(error_of(
          "output_type: multiple_choice\ndoc_to_text: q\ndoc_to_target: 0\ndoc_to_choice: q\n"),
      "doc_to_choice: it has a wrong value (expected a list of texts, got \"a\")");
  has(error_of(
          "doc_to_text: q\ndoc_to_target: q\nfilter_list: [{name: a, filter: [{function: regex, "
          "regex_pattern: '(a'}]}]\n"),
      "the regular expression '(a' is not supported: ");
  has(error_of("doc_to_text: q\ndoc_to_target: q\nmetric_list: [{metric: exact_match, "
               "regexes_to_ignore: ['[']}]\n"),
      "the regular expression '[' is not supported: ");
  has(error_of(choices, ""), "split 'test' has no documents");
  has(error_of(choices, "{\"q\": }\n"), "test.jsonl:1: ");
  has(error_of(choices, "[1]\n"), "test.jsonl:1: ");
  const Folder own;
  const std::string named = own.write(
      "named.yaml", "task: named\ndataset_path: someone/some\ntest_split: test\n" + choices);
  has(input_error([&] { const evaluation::PreparedTask task(named, {}); }),
      "the data set 'someone/some' is not in files; give --task-data FOLDER, in which "
      "named/test.jsonl has its documents");
  own.write("data/named/test.jsonl", "{\"q\": \"a\", \"c\": [\"x\"]}\n");
  const evaluation::PreparedTask found(named, {.folder = (own.path() / "data").string()});
  CHECK(found.name() == "named");
}

TEST_CASE("hostile YAML of tasks is refused in words") {
  const Folder own;
  const auto error = [&](const std::string& yaml) {
    const std::string file = own.write("task.yaml", yaml);
    return input_error([&] { const evaluation::PreparedTask task(file, {}); });
  };
  has(error(""), "the file cannot be read, or is empty");
  has(error("[1, 2]"), "it has no names and values");
  has(error("a: [1"), "task.yaml:");
  has(error("a: 1\na: 2\n"), "task.yaml:2: 'a' is there twice");
  has(error("a: !!python/object/apply:os.system [\"true\"]\n"),
      "task.yaml:1: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not supported");
  has(error("include: task.yaml\n"), "files include each other");
  has(error("include: other.yaml\n"), "other.yaml: the file cannot be read");
  has(error("a: " + std::string(2'000'000, 'x') + "\n"),
      "it is too large (expected at most 1 MiB)");
  has(error("a: " + std::string(100, '[') + std::string(100, ']') + "\n"),
      "more than 100000 values or 32 levels");
  // Each list has the one before it ten times.
  std::string laughs = "l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string before = "*l" + std::to_string(i - 1);
    laughs += "l" + std::to_string(i) + ": &l" + std::to_string(i) + " [" + before;
    for (int j = 1; j < 10; ++j) {
      laughs += ", " + before;
    }
    laughs += "]\n";
  }
  has(error(laughs), "more than 100000 values or 32 levels");
  // A regular expression that takes exponential time in others.
  const tessera::text::TextModel model(stored("model"));
  own.write("test.jsonl", "{\"q\": \"a\", \"t\": \"b\"}\n");
  const std::string slow = own.write(
      "slow.yaml",
      "task: slow\ndataset_path: json\ndataset_kwargs: {data_files: {test: "
      "test.jsonl}}\ntest_split: test\n"
      "doc_to_text: q\ndoc_to_target: t\ngeneration_kwargs: {until: [], max_gen_toks: 60}\n"
      "filter_list: [{name: n, filter: [{function: regex, regex_pattern: "
      "'((.|\\s)+)+(?=\\A)'}]}]\n");
  has(input_error([&] { static_cast<void>(asked(evaluation::PreparedTask(slow, {}), model)); }),
      "slow.yaml: the regular expression cannot be matched: ");
}
