module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
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
import tessera.grammar;

namespace tessera::text {
namespace {

void check(const TextModel& model, std::span<const std::int64_t> prompt,
           const GenerationOptions& options) {
  options.sampling.check("generate");
  const bool only_read = options.likeliest && options.of_prompt;
  if (options.tokens < (only_read ? 0 : 1) || options.batch < 1) {
    fail_input({.thing = "generate", .wrong = "tokens and batch must be at least 1"});
  }
  if (options.likeliest.value_or(0) < 0) {
    fail_input({.thing = "generate", .wrong = "likeliest must be at least 0"});
  }
  const std::int64_t longest = model.longest();
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

}  // namespace

struct Continuation::State {
 public:
  State(const TextModel& model, std::span<const std::int64_t> prompt, std::size_t number,
        const GenerationOptions& options, TextReceiver receive)
      : model_(model),
        options_(options),
        receive_(std::move(receive)),
        number_(number),
        random_(seed_of(options.seed, number)),
        tokens_(prompt.begin(), prompt.end()),
        prompt_(prompt.size()),
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
    if (options_.constraint) {
      place_ = options_.constraint->begin();
      for (std::int64_t id = 0; id < model_.shape().vocab; ++id) {
        if (ends_text(id)) {
          ends_.push_back(static_cast<std::size_t>(id));
        }
      }
    }
    end_if_read();
  }

  bool ended() const { return ended_; }

  ScoredPrompt scored_prompt() {
    if (!options_.likeliest || !options_.of_prompt) {
      return {};
    }
    return {.likeliest = *options_.likeliest, .take = [this](const TokenLikelihoods& one) {
              text_.prompt_likelihoods.push_back(one);
              end_if_read();
            }};
  }

  /// Where no token is asked for, a text ends with its prompt.
  void end_if_read() {
    if (options_.tokens == 0 && text_.prompt_likelihoods.size() + 1 == prompt_) {
      end(TextEnd::length);
    }
  }

  std::optional<std::int64_t> next(const std::vector<double>& logits) {
    add(logits);
    return ended_ ? std::nullopt : std::optional(tokens_.back());
  }

  void end(TextEnd how) {
    if (std::exchange(ended_, true)) {
      return;
    }
    text_.end = how;
    if (how != TextEnd::stop && how != TextEnd::cancelled) {
      const std::string last = shown_.add(decoder_.finish());
      give({.text = last + shown_.finish()});
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
    if (std::ranges::find(options_.shown, id) != options_.shown.end()) {
      return decoder_.finish() + model_.tokenizer().tokenizer->token(token).value_or("");
    }
    return is_known(token) ? decoder_.add(token) : std::string();
  }

  bool ends_text(std::int64_t token) const {
    return (model_.ends_at(token) && !options_.beyond_end) ||
           std::ranges::find(options_.end_tokens, token) != options_.end_tokens.end();
  }

  /// The tokens that the constraint allows, with those that end the text where it may end. None:
  /// the text is complete, and has no token for its end.
  std::optional<std::vector<bool>> allowed() {
    std::vector<bool> tokens = options_.constraint->allowed(place_)->tokens;
    for (const std::size_t end : ends_) {
      tokens[end] = place_.complete;
    }
    const bool any = std::ranges::find(tokens, true) != tokens.end();
    if (!any && !place_.complete) {
      fail_input({.thing = "generate",
                  .wrong = "no token of the model continues a text of the grammar",
                  .advice = "the model's tokens cannot express it"});
    }
    return any ? std::optional(std::move(tokens)) : std::nullopt;
  }

  void follow(std::int64_t token) {
    auto next = options_.constraint->after(place_, token);
    require(next.has_value(), "generate: a token does not follow the grammar");
    place_ = std::move(*next);
  }

  void add(const std::vector<double>& logits) {
    const double noise = static_cast<double>(random_() >> 11) * 0x1p-53;
    const auto only = options_.constraint ? allowed() : std::nullopt;
    if (options_.constraint && !only) {
      end(TextEnd::token);
      return;
    }
    const std::int64_t token = choose(candidates(logits, {.all = tokens_, .prompt = prompt_},
                                                 options_.sampling, only ? &*only : nullptr),
                                      noise);
    tokens_.push_back(token);
    text_.tokens.push_back(token);
    if (options_.likeliest) {
      text_.likelihoods.push_back(likelihoods_of(logits, token, *options_.likeliest));
    }
    if (ends_text(token)) {
      give(last_token());
      end(TextEnd::token);
      return;
    }
    if (options_.constraint) {
      follow(token);
    }
    TextPart part = last_token();
    part.text = shown_.add(decode(token));
    const bool wanted = give(part);
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

  TextPart last_token() const {
    const std::span<const TokenLikelihoods> likelihoods = text_.likelihoods;
    return {.tokens = std::span(text_.tokens).last(1),
            .likelihoods = likelihoods.last(options_.likeliest ? 1 : 0)};
  }

  bool give(const TextPart& part) {
    text_.text += part.text;
    return !receive_ || receive_(number_, part);
  }

  const TextModel& model_;
  GenerationOptions options_;
  TextReceiver receive_;
  std::size_t number_;
  std::mt19937_64 random_;
  std::vector<std::int64_t> tokens_;
  std::size_t prompt_;  // so many of them are the prompt
  tokenize::StreamDecoder decoder_;
  StreamedText shown_;
  grammar::Constraint::Place place_;  // of the constraint, where there is one
  std::vector<std::size_t> ends_;     // the tokens that end the text then
  GeneratedText text_;
  bool ended_ = false;
};

Continuation::Continuation(const TextModel& model, std::span<const std::int64_t> prompt,
                           std::size_t number, const GenerationOptions& options,
                           TextReceiver receive) {
  check(model, prompt, options);
  state_ = std::make_unique<State>(model, prompt, number, options, std::move(receive));
}

Continuation::~Continuation() = default;

std::optional<std::int64_t> Continuation::next(const std::vector<double>& logits) {
  return state_->next(logits);
}
ScoredPrompt Continuation::scored_prompt() { return state_->scored_prompt(); }
bool Continuation::ended() const { return state_->ended(); }
void Continuation::end(TextEnd how) { state_->end(how); }
GeneratedText Continuation::take() { return state_->take(); }

namespace {

/// Tokens that may follow.
std::int64_t room_of(const TextModel& model, std::span<const std::int64_t> prompt,
                     const GenerationOptions& options) {
  const std::int64_t longest = model.longest();
  return longest > 0 ? std::min(options.tokens, longest - std::ssize(prompt) + 1) : options.tokens;
}

nlohmann::json json_of(const std::vector<TokenLikelihoods>& all) {
  nlohmann::json list = nlohmann::json::array();
  const auto pair_of = [](const TokenLikelihood& one) {
    return nlohmann::json{one.token, one.log_probability};
  };
  for (const TokenLikelihoods& one : all) {
    nlohmann::json of_token = nlohmann::json::array({pair_of(one.own)});
    for (const TokenLikelihood& other : one.likeliest) {
      of_token.push_back(pair_of(other));
    }
    list.push_back(std::move(of_token));
  }
  return list;
}

std::vector<TokenLikelihoods> likelihoods_in(const nlohmann::json& list) {
  std::vector<TokenLikelihoods> all;
  for (const nlohmann::json& of_token : list) {
    TokenLikelihoods one;
    for (std::size_t i = 0; i < of_token.size(); ++i) {
      const TokenLikelihood read{.token = of_token[i][0].get<std::int64_t>(),
                                 .log_probability = of_token[i][1].get<double>()};
      (i == 0 ? one.own : one.likeliest.emplace_back()) = read;
    }
    all.push_back(std::move(one));
  }
  return all;
}

/// The texts of all copies of the model.
std::vector<GeneratedText> joined(const Copies& copies, std::vector<GeneratedText> texts) {
  if (copies.count() == 1) {
    return texts;
  }
  std::vector<std::string> written;
  for (const GeneratedText& text : texts) {
    written.push_back(json_text(nlohmann::json{{"text", text.text},
                                               {"tokens", text.tokens},
                                               {"end", static_cast<int>(text.end)},
                                               {"likelihoods", json_of(text.likelihoods)},
                                               {"prompt", json_of(text.prompt_likelihoods)}}));
  }
  const std::vector<std::string> all = copies.joined(std::move(written));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const nlohmann::json json = nlohmann::json::parse(all[i]);
    texts[i] = {.text = json["text"].get<std::string>(),
                .tokens = json["tokens"].get<std::vector<std::int64_t>>(),
                .end = static_cast<TextEnd>(json["end"].get<int>()),
                .likelihoods = likelihoods_in(json["likelihoods"]),
                .prompt_likelihoods = likelihoods_in(json["prompt"])};
  }
  return texts;
}

}  // namespace

std::uint64_t seed_of(std::uint64_t seed, std::size_t number) {
  return seed + number * 0x9E3779B97F4A7C15U;  // the golden ratio's bits
}

std::vector<GeneratedText> generate(const TextModel& model, Engine& engine,
                                    std::span<const std::vector<std::int64_t>> prompts,
                                    const GenerationOptions& options, const TextReceiver& receive,
                                    const std::function<bool()>& wanted, const TextEnded& ended) {
  std::vector<std::unique_ptr<Continuation>> all;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    all.push_back(std::make_unique<Continuation>(model, prompts[i], i, options, receive));
  }
  std::vector<GeneratedText> texts(prompts.size());
  std::exception_ptr failed;
  const auto submit = [&](std::size_t i) {
    if (all[i]->ended()) {
      texts[i] = all[i]->take();
      return;
    }
    engine.submit({.prompt = prompts[i],
                   .tokens = room_of(model, prompts[i], options),
                   .scored = all[i]->scored_prompt(),
                   .next = [&own = *all[i]](const auto& logits) { return own.next(logits); },
                   .wanted = [&] { return !failed && (!wanted || wanted()); },
                   .ended =
                       [&, i](const std::exception* error) {
                         if (error != nullptr && !failed) {
                           failed = std::current_exception();
                         }
                         all[i]->end(TextEnd::cancelled);
                         texts[i] = all[i]->take();
                         if (error == nullptr && ended && texts[i].end != TextEnd::cancelled) {
                           ended(i, texts[i]);
                         }
                       }});
  };
  for (std::size_t i = 0; i < prompts.size() && !failed;) {
    if (!model.copies().owns(static_cast<std::int64_t>(i))) {
      ++i;
    } else if (engine.size() < options.batch) {
      submit(i++);
    } else {
      engine.step();
    }
  }
  while (engine.step()) {
  }
  if (failed) {
    std::rethrow_exception(failed);
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
  Engine engine(model.ranks(), model.shape().vocab);
  const std::vector<std::int64_t> tokens = prompt_tokens(model, prompt);
  return generate(model, engine, std::span(&tokens, 1), options).at(0).text;
}

}  // namespace tessera::text
