module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <tessera/input_file.hpp>
#include <tessera/json.hpp>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.text;
import :stored_paths;
import :subcommands;
import :text_commands;

namespace tessera::app {
namespace {

void write(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string_view name_of(text::TextEnd end) {
  return end == text::TextEnd::token ? "token" : end == text::TextEnd::stop ? "stop" : "length";
}

/// The prompt of a line of a JSONL file.
std::string prompt_of(const std::string& line, const std::string& where) {
  const ParsedJson json = parse_json_object(line);
  if (!json.problem.empty() || !json.value.contains("prompt") ||
      !json.value["prompt"].is_string()) {
    fail_input({.thing = where,
                .wrong = json.problem.empty() ? "the line has no text 'prompt'" : json.problem});
  }
  return json.value["prompt"].get<std::string>();
}

/// One in each line; empty lines are none.
std::vector<std::string> read_prompts(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    fail_input({.thing = path, .wrong = "the file of prompts cannot be read"});
  }
  std::vector<std::string> prompts;
  std::string line;
  for (std::int64_t number = 1; next_line(file, path, line); ++number) {
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    if (!line.empty()) {
      prompts.push_back(
          path.ends_with(".jsonl") ? prompt_of(line, fmt::format("{}:{}", path, number)) : line);
    }
  }
  if (prompts.empty()) {
    fail_input({.thing = path, .wrong = "there is no prompt in it"});
  }
  return prompts;
}

nlohmann::ordered_json json_of(const std::string& prompt, const text::GeneratedText& text) {
  nlohmann::ordered_json json = {
      {"prompt", prompt}, {"text", text.text}, {"end", name_of(text.end)}, {"tokens", text.tokens}};
  for (const text::TokenLikelihoods& token : text.likelihoods) {
    json["log_probabilities"].push_back(token.own.log_probability);
    nlohmann::ordered_json likeliest = nlohmann::ordered_json::array();
    for (const text::TokenLikelihood& other : token.likeliest) {
      likeliest.push_back({other.token, other.log_probability});
    }
    json["likeliest"].push_back(std::move(likeliest));
  }
  return json;
}

void note_guesses(const text::EngineCounts& counts, const text::Copies& copies) {
  fmt::print(stderr, "note: {} of {} guessed tokens were right, {} tokens in {} steps{}\n",
             counts.right, counts.guessed, counts.written, counts.steps,
             copies.count() > 1 ? ", of the first copy of the model" : "");
}

int generate_texts(const text::TextModel& model, const GenerateArguments& arguments) {
  const bool one = arguments.prompts.empty();
  const std::vector<std::string> prompts =
      one ? std::vector<std::string>{arguments.prompt} : read_prompts(arguments.prompts);
  const bool prints = model.copies().is_first();
  text::Engine engine(model.ranks(), model.shape().vocab, arguments.engine);
  if (prints) {
    note_slow(engine.slow_because());
  }
  std::vector<std::vector<std::int64_t>> tokens;
  tokens.reserve(prompts.size());
  for (const std::string& prompt : prompts) {
    tokens.push_back(text::prompt_tokens(model, prompt));
  }
  const bool streams = one && !arguments.json;
  const text::TextReceiver receive = [&](std::size_t, const text::TextPart& part) {
    write(part.text);
    return true;
  };
  if (streams && prints) {
    write(arguments.prompt);
  }
  const std::vector<text::GeneratedText> texts =
      text::generate(model, engine, tokens, arguments.options, streams ? receive : nullptr);
  if (!prints) {
    return 0;
  }
  for (std::size_t i = 0; i < texts.size() && !streams; ++i) {
    const text::GeneratedText& text = texts[i];
    write(arguments.json ? json_text(json_of(prompts[i], text)) + "\n"
                         : prompts[i] + text.text + "\n");
  }
  write(streams ? "\n" : "");
  if (arguments.engine.guesses > 0) {
    note_guesses(engine.counts(), model.copies());
  }
  return 0;
}

}  // namespace

int run_generate(const GenerateArguments& given) {
  GenerateArguments arguments = given;
  InputCopies copies;
  copies.take(arguments.prompts);
  if (arguments.prompt.empty() && arguments.prompts.empty()) {
    fail_input({.thing = "generate",
                .wrong = "there is no prompt",
                .advice = "give --prompt TEXT, or --prompts FILE"});
  }
  return use_model(arguments,
                   [&](const text::TextModel& model) { return generate_texts(model, arguments); });
}

}  // namespace tessera::app
