module;
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <tessera/json.hpp>
#include <thread>
#include <utility>
#include <vector>
module tessera.app.server;

import :model_service;
import :stop_signals;
import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.tokenize;
import tessera.encoders;
import tessera.hub;

namespace tessera::app {
namespace {

/// Vectors of texts by an encoder, one text after the other: a text's vector does not depend on
/// what else is asked.
class EncoderServer : public ModelService {
 public:
  EncoderServer(const std::string& folder, const ServeOptions& options)
      : ModelService(model_name(folder), options.token, options.waiting),
        options_(options),
        tokenizer_(hub::folder_tokenizer(folder, "{}", folder)),
        model_(encoders::encoder_from_folder(folder)),
        pooling_(pooling_of(folder, options)),
        computing_(static_cast<std::size_t>(options.waiting)) {
    if (shape().takes_images()) {
      fail_input({.thing = folder, .wrong = "the model takes images, and a server has texts"});
    }
    model_->train(false);
    add("/v1/embeddings",
        [this](const auto& body, const auto& responder) { answer(body, responder); });
  }
  ~EncoderServer() override { end_readers(); }
  EncoderServer(const EncoderServer&) = delete;
  EncoderServer& operator=(const EncoderServer&) = delete;

  void run(const std::function<void(int)>& started) {
    HttpServer http(options_.host, options_.port, options_.token.empty(), options_.limits, *this);
    started(http.port());
    while (!StopSignals::requested()) {
      http.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    http.stop(std::chrono::milliseconds(300));
  }

 private:
  static encoders::Pooling pooling_of(const std::string& folder, const ServeOptions& options) {
    const auto asked = options.pooling ? options.pooling : stored_pooling(folder);
    if (asked == EmbeddingPooling::last) {
      fail_input({.thing = "pooling",
                  .wrong = "the last token of an encoder has no hidden state of its own",
                  .expected = "first or mean"});
    }
    return asked == EmbeddingPooling::first ? encoders::Pooling::first : encoders::Pooling::mean;
  }

  const encoders::EncoderShape& shape() const { return model_->shape(); }

  std::vector<std::int64_t> tokens_of(const RequestPrompt& input) const {
    if (!input.tokens.empty()) {
      return input.tokens;
    }
    const auto ids = tokenizer_.opened.tokenizer->encode(input.text, {.parse_special = false});
    return {ids.begin(), ids.end()};
  }

  /// Errors (input): a text is longer than the model takes, or has tokens that it does not have.
  void check(const std::vector<std::int64_t>& tokens) const {
    check_room("input", std::ssize(tokens), shape().max_positions);
    if (tokens.empty() || std::ranges::max(tokens) >= shape().vocab) {
      fail_input({.thing = "input", .wrong = "it has no tokens, or some that the model lacks"});
    }
  }

  void answer(const std::string& body, const HttpResponder& responder) {
    EmbeddingRequest request = parse_embedding_request(body, shape().vocab, shape().dim);
    std::vector<std::vector<std::int64_t>> texts;
    std::int64_t count = 0;
    for (const RequestPrompt& input : request.inputs) {
      texts.push_back(tokens_of(input));
      check(texts.back());
      count += std::ssize(texts.back());
    }
    const auto left = std::make_shared<std::atomic<bool>>(false);
    responder.on_leave([left] { *left = true; });
    const auto made =
        std::make_shared<EmbeddingAnswer>(responder, counts(), std::move(request), name(), count);
    const auto task = [this, left, made, all = std::move(texts)] {
      try {
        for (std::size_t text = 0; text < all.size() && !*left; ++text) {
          if (StopSignals::requested()) {
            throw Error("the server stops", ErrorKind::interrupted);
          }
          made->set(text, vector_of(all[text]));
        }
      } catch (const std::exception& error) {
        made->refuse(error_answer(error), RequestEnd::failed);
      }
    };
    if (!computing_.add(task)) {
      made->refuse(busy_answer(), RequestEnd::busy);
    }
  }

  std::vector<double> vector_of(std::span<const std::int64_t> tokens) const {
    const NoGrad no_grad;
    return to_doubles(
        model_->embeddings(Tensors{from_values(tokens, {1, std::ssize(tokens)})}, pooling_));
  }

  ServeOptions options_;
  hub::ModelTokenizer tokenizer_;
  std::shared_ptr<encoders::EncoderModel> model_;
  encoders::Pooling pooling_;
  TaskThread computing_;  // has the model
};

}  // namespace

bool is_encoder(const std::string& folder) {
  const std::string file = (std::filesystem::path(folder) / "config.json").string();
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) {
    return false;
  }
  const ParsedJson parsed = read_json_object(file);
  const auto found = parsed.value.find("model_type");
  const std::vector<std::string> families = encoders::encoder_families();
  return parsed.problem.empty() && found != parsed.value.end() && found->is_string() &&
         std::ranges::find(families, found->get<std::string>()) != families.end();
}

void serve_encoder(const std::string& folder, const ServeOptions& options,
                   const std::function<void(int)>& started) {
  check_host(options);
  const StopSignals signals;
  const LastMoment last(
      std::chrono::milliseconds(1200), [] { return StopSignals::requested(); },
      [] { std::_Exit(0); });
  EncoderServer(folder, options).run(started);
}

}  // namespace tessera::app
