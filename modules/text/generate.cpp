module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.text;

import tessera.base;
import tessera.tokenize;

namespace tessera::text {
namespace {

/// A prompt and the text that follows it.
class Continuation {
 public:
  Continuation(const TextModel& model, std::span<const std::int64_t> prompt, std::size_t number,
               const GenerationOptions& options, const TextReceiver& receive)
      : model_(model),
        options_(options),
        receive_(receive),
        number_(number),
        random_(options.seed + number * 0x9E3779B97F4A7C15U),
        tokens_(prompt.begin(), prompt.end()),
        decoder_(*model.tokenizer().tokenizer, true),
        shown_(options.stop) {
    std::vector<tokenize::TokenId> before;
    for (const std::int64_t id : prompt) {
      const auto token = static_cast<tokenize::TokenId>(id);
      if (is_known(token)) {
        before.push_back(token);
      }
    }
    decoder_.start_after(std::move(before));
  }

  bool ended() const { return ended_; }
  std::size_t size() const { return tokens_.size(); }
  /// The token after the first `length` of them, or where it has none yet, one by these logits.
  std::int64_t after(std::size_t length, const std::vector<double>& logits) {
    if (length == tokens_.size() && !ended_) {
      add(logits);
    }
    return length < tokens_.size() ? tokens_[length] : tokens_.back();
  }

  void end(TextEnd how) {
    if (std::exchange(ended_, true)) {
      return;
    }
    text_.end = how;
    if (how != TextEnd::stop && how != TextEnd::cancelled) {
      const std::string last = shown_.add(decoder_.finish());
      give(last + shown_.finish());
      text_.end = shown_.stopped() ? TextEnd::stop : how;
    }
  }

  GeneratedText take() { return std::move(text_); }

 private:
  /// Else it is a row of the model without a token.
  bool is_known(tokenize::TokenId token) const {
    return model_.tokenizer().tokenizer->token(token).has_value();
  }

  std::string decode(std::int64_t id) {
    const auto token = static_cast<tokenize::TokenId>(id);
    return is_known(token) ? decoder_.add(token) : std::string();
  }

  void add(const std::vector<double>& logits) {
    const double noise = static_cast<double>(random_() >> 11) * 0x1p-53;
    const std::int64_t token = choose(candidates(logits, tokens_, options_.sampling), noise);
    tokens_.push_back(token);
    text_.tokens.push_back(token);
    if ((model_.ends_at(token) && !options_.beyond_end) ||
        std::ranges::find(options_.end_tokens, token) != options_.end_tokens.end()) {
      end(TextEnd::token);
      return;
    }
    const bool wanted = give(shown_.add(decode(token)));
    const std::int64_t longest = model_.longest();
    if (!wanted) {
      end(TextEnd::cancelled);
    } else if (shown_.stopped()) {
      end(TextEnd::stop);
    } else if (std::ssize(text_.tokens) == options_.tokens ||
               (longest > 0 && std::ssize(tokens_) > longest)) {
      end(TextEnd::length);
    }
  }

  bool give(const std::string& part) {
    text_.text += part;
    return !receive_ || receive_(number_, part);
  }

  const TextModel& model_;
  const GenerationOptions& options_;
  const TextReceiver& receive_;
  std::size_t number_;
  std::mt19937_64 random_;
  std::vector<std::int64_t> tokens_;
  tokenize::StreamDecoder decoder_;
  StreamedText shown_;
  GeneratedText text_;
  bool ended_ = false;
};

/// Continues all of them at the same time. The rows have one length: that of the shortest prompt at
/// first, and a row's next token is one of its prompt until there is none.
void continue_all(Decoding& decoding, std::span<Continuation> all,
                  const std::function<bool()>& wanted) {
  std::size_t length = all[0].size();
  for (const Continuation& one : all) {
    length = std::min(length, one.size());
  }
  TokenRows rows(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t at = 0; at < length; ++at) {
      rows[i].push_back(all[i].after(at, {}));
    }
  }
  while (!std::ranges::all_of(all, &Continuation::ended)) {
    const std::vector<std::vector<double>> logits = decoding.next(rows, wanted);
    if (logits.empty()) {
      std::ranges::for_each(all, [](Continuation& one) { one.end(TextEnd::cancelled); });
      return;
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      rows[i].push_back(all[i].after(rows[i].size(), logits[i]));
    }
  }
}

void check(const TextModel& model, std::span<const std::vector<std::int64_t>> prompts,
           const GenerationOptions& options) {
  options.sampling.check("generate");
  if (options.tokens < 1 || options.batch < 1) {
    fail_input({.thing = "generate", .wrong = "tokens and batch must be at least 1"});
  }
  const std::int64_t longest = model.longest();
  for (const std::vector<std::int64_t>& prompt : prompts) {
    if (prompt.empty()) {
      fail_input({.thing = "generate", .wrong = "a prompt has no tokens"});
    }
    if (longest > 0 && std::ssize(prompt) > longest) {
      fail_input({.thing = "generate",
                  .wrong = "the prompt is longer than the model computes",
                  .expected = fmt::format("at most {} tokens", longest),
                  .got = fmt::format("{}", prompt.size())});
    }
  }
}

/// The texts of all copies of the model.
std::vector<GeneratedText> joined(const Copies& copies, std::vector<GeneratedText> texts) {
  if (copies.count() == 1) {
    return texts;
  }
  std::vector<std::string> written;
  for (const GeneratedText& text : texts) {
    written.push_back(json_text(nlohmann::json{
        {"text", text.text}, {"tokens", text.tokens}, {"end", static_cast<int>(text.end)}}));
  }
  const std::vector<std::string> all = copies.joined(std::move(written));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const nlohmann::json json = nlohmann::json::parse(all[i]);
    texts[i] = {.text = json["text"].get<std::string>(),
                .tokens = json["tokens"].get<std::vector<std::int64_t>>(),
                .end = static_cast<TextEnd>(json["end"].get<int>())};
  }
  return texts;
}

}  // namespace

std::vector<GeneratedText> generate(const TextModel& model, Decoding& decoding,
                                    std::span<const std::vector<std::int64_t>> prompts,
                                    const GenerationOptions& options, const TextReceiver& receive,
                                    const std::function<bool()>& wanted) {
  check(model, prompts, options);
  // Prompts of similar lengths are continued together.
  std::vector<std::size_t> order(prompts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return std::pair(prompts[i].size(), i); });
  std::vector<GeneratedText> texts(prompts.size());
  const auto batch = static_cast<std::size_t>(options.batch);
  std::erase_if(order,
                [&](std::size_t i) { return !model.copies().owns(static_cast<std::int64_t>(i)); });
  for (std::size_t begin = 0; begin < order.size(); begin += batch) {
    const auto numbers = std::span(order).subspan(begin, std::min(batch, order.size() - begin));
    std::vector<Continuation> together;
    together.reserve(numbers.size());
    for (const std::size_t number : numbers) {
      together.emplace_back(model, prompts[number], number, options, receive);
    }
    continue_all(decoding, together, wanted);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      texts[numbers[i]] = together[i].take();
    }
  }
  return joined(model.copies(), std::move(texts));
}

std::vector<std::int64_t> prompt_tokens(const TextModel& model, std::string_view text) {
  if (text.empty()) {
    fail_input(
        {.thing = "generate", .wrong = "the prompt is empty", .advice = "give --prompt TEXT"});
  }
  const auto ids = model.encoder().prompt(text);
  return {ids.begin(), ids.end()};
}

std::string generate_text(const std::string& path, const std::string& prompt,
                          const GenerationOptions& options) {
  const TextModel model(path);
  Decoding decoding(model.ranks(), model.shape().vocab);
  const std::vector<std::int64_t> tokens = prompt_tokens(model, prompt);
  return generate(model, decoding, std::span(&tokens, 1), options).at(0).text;
}

}  // namespace tessera::text
