module;
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numbers>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.text;

import tessera.base;
import tessera.tokenize;
import tessera.data;

namespace tessera::text {
namespace {

std::int64_t length_of(const TextModel& model, const PerplexityOptions& options) {
  constexpr std::int64_t most = 2048;
  return options.length > 0 ? options.length : std::min(model.usual_length(), most);
}

/// With the mean loss, of the likelihoods of all windows or documents in their order: the same sum
/// on any number of copies of the model.
Perplexity finished(Perplexity result, const TextModel& model, std::vector<double> likelihoods) {
  if (result.tokens == 0) {
    fail_input({.thing = "evaluate", .wrong = "there is no token to score"});
  }
  double sum = 0;
  for (const double likelihood : model.copies().joined(std::move(likelihoods))) {
    sum -= likelihood;
  }
  result.loss = sum / static_cast<double>(result.tokens);
  return result;
}

std::shared_ptr<const data::ExampleMaker> maker_of(const TextModel& model,
                                                   std::shared_ptr<const data::ChatTemplate> chat,
                                                   const PerplexityOptions& options) {
  return std::make_shared<const data::ExampleMaker>(
      model.tokenizer(), std::move(chat),
      options.all_tokens ? data::TrainOn::all : data::TrainOn::answers, model.texts().records);
}

}  // namespace

double Perplexity::perplexity() const { return std::exp(loss); }
double Perplexity::bits_per_byte() const {
  return bytes == 0
             ? 0
             : loss * static_cast<double>(tokens) / std::numbers::ln2 / static_cast<double>(bytes);
}

Perplexity text_perplexity(const TextModel& model, std::span<const std::string> files,
                           const PerplexityOptions& options) {
  const data::EncodedText text =
      data::EncodedText::from_files(files, maker_of(model, nullptr, options));
  const std::int64_t length = length_of(model, options);
  const std::int64_t stride = options.stride > 0 ? std::min(options.stride, length) : length;
  Perplexity result{.texts = std::ssize(files)};
  for (const std::string& file : files) {
    result.bytes += static_cast<std::int64_t>(data::DataFile::content_of(file).size());
  }
  std::vector<double> windows;
  std::int64_t scored_to = 1;  // the first token has none before it
  for (std::int64_t begin = 0; scored_to < text.size(); begin += stride) {
    const std::int64_t end = std::min(begin + length + 1, text.size());
    const std::int64_t window = std::ssize(windows);
    windows.push_back(0);
    if (model.copies().owns(window)) {
      std::vector<std::int64_t> tokens(static_cast<std::size_t>(end - begin));
      text.read(begin, tokens);
      std::vector<std::uint8_t> scored(tokens.size(), 1);
      std::fill_n(scored.begin(), scored_to - begin, std::uint8_t{0});
      windows.back() = log_likelihood(model, tokens, scored);
    }
    result.tokens += end - scored_to;
    scored_to = end;
  }
  return finished(result, model, std::move(windows));
}

Perplexity record_perplexity(const TextModel& model, std::span<const std::string> files,
                             const std::string& chat_template, const PerplexityOptions& options) {
  const std::int64_t length = length_of(model, options);
  const data::Documents documents(files,
                                  maker_of(model, chat_template_of(model, chat_template), options),
                                  {.longest = length + 1, .too_long = data::TooLong::skip});
  Perplexity result{.texts = documents.size(), .left_out = documents.counts().left_out};
  std::vector<double> likelihoods;
  for (std::int64_t i = 0; i < documents.size(); ++i) {
    likelihoods.push_back(0);
    if (model.copies().owns(i)) {
      const data::Example document = documents.read(i);
      const std::vector<std::int64_t> tokens(document.ids.begin(), document.ids.end());
      likelihoods.back() = log_likelihood(model, tokens, document.trained);
    }
    result.tokens += documents.trained(i);
  }
  return finished(result, model, std::move(likelihoods));
}

}  // namespace tessera::text
