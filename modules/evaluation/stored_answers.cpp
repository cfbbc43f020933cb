module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <tessera/content_hash.hpp>
#include <tessera/input_file.hpp>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.evaluation;

import :stored_answers;
import tessera.base;
import tessera.text;

namespace tessera::evaluation {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// A hash of the names, sizes and times of a model's files: weights are too large to be read.
std::string identity_of(const text::ModelFiles& model) {
  std::vector<std::string> parts = {fmt::format("{} {} {}", static_cast<int>(model.precision),
                                                model.keys ? static_cast<int>(*model.keys) : -1,
                                                static_cast<int>(model.activations))};
  const auto add = [&](const fs::path& path) {
    std::error_code error;
    const auto size = fs::file_size(path, error);
    const auto time = fs::last_write_time(path, error);
    if (!error) {
      parts.push_back(
          fmt::format("{} {} {}", path.string(), size, time.time_since_epoch().count()));
    }
  };
  for (const std::string& path : {model.path, model.tokenizer, model.base, model.adapter}) {
    parts.push_back(path);
    std::error_code error;
    if (!path.empty() && fs::is_directory(path, error)) {
      for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
        add(entry.path());
      }
    } else if (!path.empty()) {
      add(path);
    }
  }
  std::ranges::sort(parts);
  const std::string all = fmt::format("{}", fmt::join(parts, "\n"));
  return content_hash(std::as_bytes(std::span(all)));
}

Json json_of(const TaskAnswer& answer) {
  if (answer.likelihoods.empty()) {
    return answer.text;
  }
  Json list = Json::array();
  for (const text::TextLikelihood& one : answer.likelihoods) {
    list.push_back({one.log_probability, one.greedy});
  }
  return list;
}

/// None: it is no answer.
std::optional<TaskAnswer> answer_in(const nlohmann::json& value) {
  if (value.is_string()) {
    return TaskAnswer{.text = value.get<std::string>()};
  }
  TaskAnswer answer;
  for (const auto& one : value.is_array() ? value : nlohmann::json::array({nullptr})) {
    if (!one.is_array() || one.size() != 2 || !one[0].is_number() || !one[1].is_boolean()) {
      return std::nullopt;
    }
    answer.likelihoods.push_back(
        {.log_probability = one[0].get<double>(), .greedy = one[1].get<bool>()});
  }
  return answer;
}

}  // namespace

struct StoredAnswers::State {
  std::string file;
  std::string model;
  std::map<std::string, TaskAnswer> answers;  // by what was asked
  std::int64_t damaged = 0;
  std::ofstream stream;

  /// Whether the line is an answer.
  bool read(const std::string& line) {
    const ParsedJson parsed = parse_json_object(line);
    const auto text = [&](const char* name) -> const std::string* {
      const auto found = parsed.value.find(name);
      return found != parsed.value.end() && found->is_string()
                 ? &found->get_ref<const std::string&>()
                 : nullptr;
    };
    if (!parsed.problem.empty() || text("model") == nullptr || text("asked") == nullptr ||
        !parsed.value.contains("answer")) {
      return false;
    }
    if (*text("model") != model) {
      fail_input({.thing = file,
                  .wrong = "it has answers of another model, or the model's files have changed",
                  .advice = "name another file, or remove it"});
    }
    auto answer = answer_in(parsed.value.at("answer"));
    if (!answer) {
      return false;
    }
    answers[*text("asked")] = std::move(*answer);
    return true;
  }
};

StoredAnswers::StoredAnswers(const std::string& file, const text::ModelFiles& model)
    : state_(std::make_unique<State>()) {
  state_->file = file;
  state_->model = identity_of(model);
  bool ends = true;  // with the end of a line
  if (std::ifstream stream(file, std::ios::binary); stream) {
    std::string line;
    while (next_line(stream, file, line)) {
      state_->damaged += line.empty() || state_->read(line) ? 0 : 1;
      ends = !stream.eof();
    }
  }
  state_->stream.open(file, std::ios::binary | std::ios::app);
  if (!ends) {
    state_->stream << '\n';
  }
  if (!state_->stream) {
    fail_input({.thing = file, .wrong = "answers cannot be written there"});
  }
}

StoredAnswers::~StoredAnswers() = default;

std::int64_t StoredAnswers::damaged() const { return state_->damaged; }

const TaskAnswer* StoredAnswers::find(const std::string& asked) const {
  const auto found = state_->answers.find(asked);
  return found == state_->answers.end() ? nullptr : &found->second;
}

void StoredAnswers::add(const std::string& asked, const TaskAnswer& answer,
                        const StoredQuestion& question) {
  const Json line = {{"task", question.task},     {"document", question.document},
                     {"question", question.text}, {"target", Json::parse(question.target)},
                     {"answer", json_of(answer)}, {"asked", asked},
                     {"model", state_->model}};
  state_->stream << json_text(line) + "\n" << std::flush;
  if (!state_->stream) {
    fail_input({.thing = state_->file, .wrong = "answers cannot be written there"});
  }
  state_->answers.emplace(asked, answer);
}

}  // namespace tessera::evaluation
