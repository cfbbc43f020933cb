module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.evaluation;

import :evaluation_task;
import :yaml_file;
import tessera.base;

namespace tessera::evaluation {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// What the scores of documents become for all of them, by metric.
struct MetricForm {
  const char* name;
  RequestKind kind;
  const char* aggregation;
  bool higher_is_better;
};
constexpr MetricForm known_metrics[] = {
    {"acc", RequestKind::multiple_choice, "mean", true},
    {"acc_norm", RequestKind::multiple_choice, "mean", true},
    {"acc_bytes", RequestKind::multiple_choice, "mean", true},
    {"exact_match", RequestKind::multiple_choice, "mean", true},
    {"acc", RequestKind::loglikelihood, "mean", true},
    {"perplexity", RequestKind::loglikelihood, "perplexity", false},
    {"word_perplexity", RequestKind::loglikelihood_rolling, "weighted_perplexity", false},
    {"byte_perplexity", RequestKind::loglikelihood_rolling, "weighted_perplexity", false},
    {"bits_per_byte", RequestKind::loglikelihood_rolling, "bits_per_byte", false},
    {"exact_match", RequestKind::generate_until, "mean", true},
};

const MetricForm* known_metric(const std::string& name, RequestKind kind) {
  for (const MetricForm& one : known_metrics) {
    if (one.name == name && one.kind == kind) {
      return &one;
    }
  }
  return nullptr;
}

constexpr std::pair<const char*, RequestKind> kinds[] = {
    {"multiple_choice", RequestKind::multiple_choice},
    {"loglikelihood", RequestKind::loglikelihood},
    {"loglikelihood_rolling", RequestKind::loglikelihood_rolling},
    {"generate_until", RequestKind::generate_until},
};

/// Members of an object of the file. Whoever asks for one has read it; what nobody has read is
/// wrong, and so is a function of Python's.
class TaskMembers {
 public:
  TaskMembers(const Json& object, std::string place, std::vector<std::string>& problems)
      : object_(object), place_(std::move(place)), problems_(problems) {}

  /// Null: it is not there, or cannot be used.
  const Json* find(const char* name) {
    read_.insert(name);
    const auto found = object_.find(name);
    if (found == object_.end() || found->is_null()) {
      return nullptr;
    }
    if (found->is_object() && found->contains(function_tag)) {
      problem(name,
              fmt::format("the function {} of Python's is not supported: write a template, or "
                          "give documents that have what it computes",
                          shown(json_text((*found)[function_tag]), 80)));
      return nullptr;
    }
    return &*found;
  }

  void problem(const std::string& name, const std::string& wrong) {
    problems_.push_back(fmt::format("{}{}: {}", place_, name, wrong));
  }

  void read(const char* name, std::string& into) {
    if (const Json* value = find(name); value != nullptr && value->is_string()) {
      into = value->get<std::string>();
    } else if (value != nullptr) {
      expected(name, "a text", *value);
    }
  }
  void read(const char* name, std::optional<std::string>& into) {
    std::string text;
    read(name, text);
    if (!text.empty()) {
      into = text;
    }
  }
  void read(const char* name, bool& into) {
    if (const Json* value = find(name); value != nullptr && value->is_boolean()) {
      into = value->get<bool>();
    } else if (value != nullptr) {
      expected(name, "true or false", *value);
    }
  }
  void read(const char* name, std::int64_t low, std::int64_t high, std::int64_t& into) {
    const Json* value = find(name);
    if (value == nullptr) {
      return;
    }
    if (value->is_number_integer() && *value >= low && *value <= high) {
      into = value->get<std::int64_t>();
    } else {
      expected(name, fmt::format("a whole number from {} to {}", low, high), *value);
    }
  }
  void read(const char* name, std::vector<std::string>& into) {
    const Json* value = find(name);
    if (value == nullptr) {
      return;
    }
    const Json list = value->is_array() ? *value : Json::array({*value});
    if (std::ranges::all_of(list, [](const Json& one) { return one.is_string(); })) {
      into = list.get<std::vector<std::string>>();
    } else {
      expected(name, "a text or a list of texts", *value);
    }
  }
  void ignore(std::initializer_list<const char*> names) {
    read_.insert(names.begin(), names.end());
  }
  /// A member that may only have this value.
  void only(const char* name, const Json& value) {
    if (const Json* given = find(name); given != nullptr && *given != value) {
      expected(name, json_text(value), *given);
    }
  }
  void check_rest() {
    for (const auto& [name, value] : object_.items()) {
      if (!value.is_null() && !read_.contains(name)) {
        problem(shown(name, 60), "it is not supported");
      }
    }
  }
  void expected(const char* name, const std::string& what, const Json& got) {
    problem(name, fmt::format("expected {}, got {}", what, shown(json_text(got), 80)));
  }

 private:
  const Json& object_;
  std::string place_;
  std::vector<std::string>& problems_;
  std::set<std::string> read_;
};

class TaskReader {
 public:
  TaskReader(const std::string& file, const Json& json)
      : file_(file), members_(json, "", problems_) {
    task_.file = file;
  }

  EvaluationTask task() {
    members_.read("task", task_.name);
    if (task_.name.empty()) {
      members_.problem("task", "the task has no name");
    }
    read_kind();
    read_data();
    read_texts();
    read_shots();
    read_generation();
    read_filters();
    read_metrics();
    members_.ignore({"tag", "group", "task_alias", "metadata", "should_decontaminate",
                     "doc_to_decontamination_query", "unsafe_code"});
    members_.only("repeats", 1);
    for (const char* const name : {"process_docs", "process_results", "custom_dataset"}) {
      if (members_.find(name) != nullptr) {
        members_.problem(name, "it is not supported");
      }
    }
    members_.check_rest();
    if (!problems_.empty()) {
      fail_input(
          fmt::format("{}: the task cannot be run:\n  {}", file_, fmt::join(problems_, "\n  ")));
    }
    return std::move(task_);
  }

 private:
  void read_kind() {
    std::string name = "generate_until";
    members_.read("output_type", name);
    for (const auto& [known, kind] : kinds) {
      if (name == known) {
        task_.kind = kind;
        return;
      }
    }
    members_.problem("output_type", fmt::format("'{}' is not supported", shown(name, 60)));
  }

  /// A name is beside the task's file, or else below the working directory.
  std::string path_of(const std::string& name) const {
    const fs::path beside = fs::path(file_).parent_path() / name;
    std::error_code ignored;
    return fs::exists(beside, ignored) ? beside.string() : name;
  }

  void read_data() {
    std::string path;
    members_.read("dataset_path", path);
    std::string name;
    members_.read("dataset_name", name);
    task_.data.name = name.empty() ? path : path + "/" + name;
    members_.read("training_split", task_.training_split);
    members_.read("validation_split", task_.validation_split);
    members_.read("test_split", task_.test_split);
    if (!task_.test_split && !task_.validation_split) {
      members_.problem("test_split", "there is no split with questions");
    }
    const Json* more = members_.find("dataset_kwargs");
    if (more == nullptr) {
      return;
    }
    TaskMembers given(*more, "dataset_kwargs.", problems_);
    given.ignore({"trust_remote_code"});
    const bool in_files = path == "json" || path == "parquet" || path == "arrow";
    if (const Json* files = in_files ? given.find("data_files") : nullptr) {
      task_.data.name = {};
      const Json by_split = files->is_object() ? *files : Json{{"train", *files}};
      TaskMembers splits(by_split, "dataset_kwargs.data_files.", problems_);
      for (const auto& [split, value] : by_split.items()) {
        std::vector<std::string> names;
        splits.read(split.c_str(), names);
        for (std::string& one : names) {
          one = path_of(one);
        }
        task_.data.files[split] = std::move(names);
      }
    }
    given.check_rest();
  }

  void read_field(TaskMembers& from, const char* name, TaskField& into) {
    if (const Json* value = from.find(name)) {
      into.value = *value;
    }
  }

  void read_texts() {
    read_field(members_, "doc_to_text", task_.text);
    read_field(members_, "doc_to_target", task_.target);
    read_field(members_, "doc_to_choice", task_.choice);
    read_field(members_, "description", task_.description);
    read_field(members_, "gen_prefix", task_.answer_prefix);
    members_.read("target_delimiter", task_.target_delimiter);
    members_.read("fewshot_delimiter", task_.shots_delimiter);
    const bool rolling = task_.kind == RequestKind::loglikelihood_rolling;
    if (!task_.text.given() && !rolling) {
      members_.problem("doc_to_text", "it is missing");
    }
    if (!task_.target.given() && task_.kind != RequestKind::multiple_choice) {
      members_.problem("doc_to_target", "it is missing");
    }
    if (!task_.choice.given() && task_.kind == RequestKind::multiple_choice) {
      members_.problem("doc_to_choice", "it is missing");
    }
  }

  void read_shots() {
    constexpr std::int64_t most_shots = 1000;
    members_.read("num_fewshot", 0, most_shots, task_.shots);
    members_.read("fewshot_split", task_.shots_split);
    const Json* more = members_.find("fewshot_config");
    if (more == nullptr) {
      return;
    }
    TaskMembers given(*more, "fewshot_config.", problems_);
    std::string sampler = "default";
    given.read("sampler", sampler);
    task_.first_shots = sampler == "first_n";
    if (sampler != "default" && sampler != "first_n") {
      given.problem("sampler", "expected default or first_n");
    }
    given.read("split", task_.shots_split);
    if (const Json* samples = given.find("samples")) {
      task_.shots_documents = *samples;
      if (!samples->is_array() || !std::ranges::all_of(*samples, &Json::is_object)) {
        given.expected("samples", "a list of documents", *samples);
      }
    }
    given.check_rest();
  }

  void read_generation() {
    task_.until = {task_.shots_delimiter};
    const Json* more = members_.find("generation_kwargs");
    if (more == nullptr) {
      return;
    }
    TaskMembers given(*more, "generation_kwargs.", problems_);
    given.read("until", task_.until);
    std::erase(task_.until, "");
    constexpr std::int64_t most = std::int64_t{1} << 20;
    for (const char* const name :
         {"max_completion_tokens", "max_tokens", "max_new_tokens", "max_gen_toks"}) {
      given.read(name, 1, most, task_.most_tokens);  // the last one decides
    }
    bool draws = true;
    given.read("do_sample", draws);
    const Json* temperature = given.find("temperature");
    if (temperature != nullptr && !temperature->is_number()) {
      given.expected("temperature", "a number", *temperature);
    } else if (temperature != nullptr) {
      task_.temperature = draws ? temperature->get<double>() : 0;
    } else if (draws && given.find("do_sample") != nullptr) {
      task_.temperature = 1;
    }
    given.check_rest();
  }

  void read_filters() {
    const Json* list = members_.find("filter_list");
    if (list == nullptr) {
      task_.filters = {FilterChain{}};
      return;
    }
    for (const Json& one : list->is_array() ? *list : Json::array({*list})) {
      if (!one.is_object() || !one.contains("filter") || !one["filter"].is_array()) {
        members_.expected("filter_list", "a list of names and lists of filters", one);
        continue;
      }
      TaskMembers given(one, "filter_list.", problems_);
      FilterChain chain;
      given.read("name", chain.name);
      for (const Json& step : *given.find("filter")) {
        read_filter(step, chain.filters);
      }
      given.check_rest();
      task_.filters.push_back(std::move(chain));
    }
  }

  void read_filter(const Json& step, std::vector<AnswerFilter>& filters) {
    using Kind = AnswerFilter::Kind;
    constexpr std::pair<const char*, Kind> names[] = {
        {"regex", Kind::regex},
        {"remove_whitespace", Kind::strip},
        {"lowercase", Kind::lower},
        {"uppercase", Kind::upper},
        {"map", Kind::map},
        {"take_first", Kind::take_first},
        {"majority_vote", Kind::take_first}};  // of one answer
    if (!step.is_object()) {
      members_.expected("filter_list.filter", "a list of functions", step);
      return;
    }
    TaskMembers given(step, "filter_list.filter.", problems_);
    std::string name;
    given.read("function", name);
    const auto* const known =
        std::ranges::find_if(names, [&](const auto& one) { return name == one.first; });
    if (known == std::end(names)) {
      given.problem("function", fmt::format("'{}' is not supported", shown(name, 60)));
      return;
    }
    AnswerFilter filter{.kind = known->second};
    if (filter.kind == Kind::regex) {
      filter.pattern = R"(#### (\-?[0-9\.\,]+))";
      filter.fallback = "[invalid]";
      constexpr std::int64_t most_matches = 1'000'000;
      given.read("regex_pattern", filter.pattern);
      given.read("group_select", -most_matches, most_matches, filter.group);
      given.read("fallback", filter.fallback);
    } else if (filter.kind == Kind::map) {
      const Json* words = given.find("mapping_dict");
      filter.words = words == nullptr ? Json::object() : *words;
      if (!filter.words.is_object()) {
        given.expected("mapping_dict", "an object", filter.words);
      }
      if (const Json* otherwise = given.find("default_value")) {
        filter.otherwise = *otherwise;
      }
    }
    given.check_rest();
    filters.push_back(std::move(filter));
  }

  void read_metrics() {
    const Json* list = members_.find("metric_list");
    if (list == nullptr) {
      add_usual_metrics();
      return;
    }
    for (const Json& one : list->is_array() ? *list : Json::array({*list})) {
      if (!one.is_object()) {
        members_.expected("metric_list", "a list of metrics", one);
        continue;
      }
      TaskMembers given(one, "metric_list.", problems_);
      TaskMetric metric;
      given.read("metric", metric.name);
      const MetricForm* known = known_metric(metric.name, task_.kind);
      if (known == nullptr) {
        given.problem("metric", fmt::format("'{}' is not supported for this output_type",
                                            shown(metric.name, 60)));
        continue;
      }
      metric.higher_is_better = known->higher_is_better;
      given.read("higher_is_better", metric.higher_is_better);
      given.only("aggregation", known->aggregation);
      given.only("hf_evaluate", false);
      if (metric.name == "exact_match") {
        given.read("ignore_case", metric.match.ignore_case);
        given.read("ignore_punctuation", metric.match.ignore_punctuation);
        given.read("ignore_numbers", metric.match.ignore_numbers);
        given.read("regexes_to_ignore", metric.match.ignored);
      }
      given.check_rest();
      task_.metrics.push_back(std::move(metric));
    }
  }

  /// Those of lm-evaluation-harness without a list.
  void add_usual_metrics() {
    const std::vector<const char*> names =
        task_.kind == RequestKind::multiple_choice ? std::vector{"acc", "acc_norm"}
        : task_.kind == RequestKind::loglikelihood ? std::vector{"perplexity", "acc"}
        : task_.kind == RequestKind::loglikelihood_rolling
            ? std::vector{"word_perplexity", "byte_perplexity", "bits_per_byte"}
            : std::vector{"exact_match"};
    for (const char* const name : names) {
      task_.metrics.push_back(
          {.name = name, .higher_is_better = known_metric(name, task_.kind)->higher_is_better});
    }
  }

  const std::string& file_;
  std::vector<std::string> problems_;
  TaskMembers members_;
  EvaluationTask task_;
};

}  // namespace

const std::string& EvaluationTask::asked_split() const {
  return test_split ? *test_split : *validation_split;
}

EvaluationTask read_evaluation_task(const std::string& file) {
  const Json json = read_yaml_file(file);
  return TaskReader(file, json).task();
}

}  // namespace tessera::evaluation
