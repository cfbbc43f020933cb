module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/base64.hpp>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.app.server;

import :model_service;
import tessera.base;
import tessera.text;

namespace tessera::app {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

/// The bytes of f32 numbers, the lowest first.
std::string bytes_of(std::span<const double> values) {
  std::string bytes;
  for (const double value : values) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    for (int shift = 0; shift < 32; shift += 8) {
      bytes += static_cast<char>(bits >> shift & 255);
    }
  }
  return bytes;
}

/// Pooling by its name in Sentence Transformers.
std::optional<EmbeddingPooling> pooling_named(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, EmbeddingPooling>, 6> names = {{
      {"cls", EmbeddingPooling::first},
      {"mean", EmbeddingPooling::mean},
      {"lasttoken", EmbeddingPooling::last},
      {"pooling_mode_cls_token", EmbeddingPooling::first},
      {"pooling_mode_mean_tokens", EmbeddingPooling::mean},
      {"pooling_mode_lasttoken", EmbeddingPooling::last},
  }};
  const auto* const found =
      std::ranges::find(names, name, [](const auto& known) { return known.first; });
  return found == names.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

std::optional<EmbeddingPooling> stored_pooling(const std::string& folder) {
  const std::string file = (std::filesystem::path(folder) / "1_Pooling" / "config.json").string();
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) {
    return std::nullopt;
  }
  const ParsedJson parsed = read_json_object(file);
  std::vector<std::string> modes;
  if (parsed.problem.empty()) {
    for (const auto& [key, value] : parsed.value.items()) {
      if (key == "pooling_mode" && value.is_string()) {
        modes.push_back(value.get<std::string>());
      } else if (key.starts_with("pooling_mode_") && value == true) {
        modes.push_back(key);
      }
    }
  }
  const auto pooling = modes.size() == 1 ? pooling_named(modes[0]) : std::nullopt;
  if (!pooling) {
    fail_input({.thing = file,
                .wrong = parsed.problem.empty() ? "this pooling is not computed" : parsed.problem,
                .expected = "one of cls, mean and lasttoken",
                .got = join_words(modes),
                .advice = "choose one with --pooling"});
  }
  return pooling;
}

std::vector<double> unit_vector(std::vector<double> values, std::int64_t dimensions) {
  if (dimensions > 0) {
    values.resize(std::min(values.size(), static_cast<std::size_t>(dimensions)));
  }
  double squares = 0;
  for (const double value : values) {
    squares += value * value;
  }
  for (double& value : values) {
    value /= squares > 0 ? std::sqrt(squares) : 1;
  }
  return values;
}

std::string embeddings_json(std::span<const std::vector<double>> vectors, bool base64,
                            const std::string& model, std::int64_t tokens) {
  Ordered data = Ordered::array();
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    Ordered one = {{"object", "embedding"}, {"index", i}};
    if (base64) {
      one["embedding"] = to_base64(bytes_of(vectors[i]));
    } else {
      // As many digits as the f32 number has.
      for (const double value : vectors[i]) {
        one["embedding"].push_back(std::stod(fmt::format("{}", static_cast<float>(value))));
      }
    }
    data.push_back(std::move(one));
  }
  return json_text(Ordered{{"object", "list"},
                           {"data", std::move(data)},
                           {"model", model},
                           {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}});
}

EmbeddingAnswer::EmbeddingAnswer(HttpResponder responder, ServerCounts& counts,
                                 EmbeddingRequest request, std::string model, std::int64_t tokens)
    : responder_(std::move(responder)),
      counts_(counts),
      request_(std::move(request)),
      model_(std::move(model)),
      tokens_(tokens),
      vectors_(request_.inputs.size()),
      left_(vectors_.size()) {
  counts_.begin();
  counts_.add_prompt(tokens_);
}

EmbeddingAnswer::~EmbeddingAnswer() { counted(RequestEnd::left); }

void EmbeddingAnswer::counted(RequestEnd how) {
  if (!over_.exchange(true)) {
    counts_.end(how,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count());
  }
}

void EmbeddingAnswer::set(std::size_t text, std::vector<double> values) {
  vectors_.at(text) = unit_vector(std::move(values), request_.dimensions);
  if (--left_ == 0 && !over_) {
    counted(RequestEnd::answered);
    responder_.answer({.body = embeddings_json(vectors_, request_.base64, model_, tokens_)});
  }
}

void EmbeddingAnswer::refuse(const HttpAnswer& answer, RequestEnd how) {
  if (!over_) {
    counted(how);
    responder_.answer(answer);
  }
}

EmbeddingJob::EmbeddingJob(std::vector<std::int64_t> tokens, EmbeddingPooling pooling,
                           std::size_t text, std::shared_ptr<EmbeddingAnswer> answer,
                           AdapterUse adapter)
    : tokens_(std::move(tokens)),
      pooling_(pooling),
      text_(text),
      answer_(std::move(answer)),
      adapter_(std::move(adapter)) {}

void EmbeddingJob::fail_with(const std::exception& error) {
  answer_->refuse(error_answer(error), RequestEnd::failed);
}

std::optional<text::EngineRequest> EmbeddingJob::request(const std::shared_ptr<ModelJob>& self,
                                                         const text::TextModel& /*model*/,
                                                         const std::function<bool()>& wanted) {
  const auto sum = std::make_shared<std::vector<double>>();
  const auto count = std::ssize(tokens_);
  const double share = pooling_ == EmbeddingPooling::mean ? 1 / static_cast<double>(count) : 1;
  const auto take = [sum, share](std::span<const double> states) {
    sum->resize(states.size());
    for (std::size_t i = 0; i < states.size(); ++i) {
      (*sum)[i] += share * states[i];
    }
  };
  return text::EngineRequest{
      .prompt = tokens_,
      .tokens = 0,
      .states = {.all = pooling_ == EmbeddingPooling::mean, .take = take},
      .adapter = adapter_ ? adapter_->number : 0,
      .wanted = [this, self, wanted] { return wanted() && !cancelled() && !answer_->over(); },
      .ended =
          [this, self, sum, wanted](const std::exception* error) {
            if (!wanted()) {
              refuse();
            } else if (error != nullptr) {
              fail_with(*error);
            } else if (!cancelled() && !answer_->over()) {
              answer_->set(text_, std::move(*sum));
            }
          }};
}

}  // namespace tessera::app
