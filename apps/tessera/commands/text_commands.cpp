module;
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.tensor;
import tessera.collective;
import tessera.coded;
import tessera.runs;
import tessera.app.base;
import tessera.text;
import tessera.app.server;
import :subcommands;
import :text_commands;

namespace tessera::app {
namespace {

/// A command whose model may be in a plugin.
template <class Arguments>
CLI::App* add(CLI::App& program, std::function<int()>& chosen, const char* name, const char* help,
              const std::shared_ptr<Arguments>& arguments, int (*run)(const Arguments&)) {
  CLI::App* command = program.add_subcommand(name, help);
  const auto plugins = std::make_shared<std::vector<std::string>>();
  command->callback([&chosen, arguments, plugins, run, name] {
    chosen = [=] {
      if (collective::launched_by_other()) {
        fail_input(
            {.thing = name,
             .wrong = "a launcher has started several ranks, and this command starts its own",
             .advice = "start the program by itself, with --ranks N"});
      }
      runs::use_plugins(*plugins);
      return run(*arguments);
    };
  });
  command
      ->add_option(
          "MODEL", arguments->model,
          "The folder of a checkpoint, a model folder in Hugging Face's format, or a GGUF file")
      ->required();
  command
      ->add_option("--plugin", *plugins,
                   "Load this plugin (a file or a folder of them); may be repeated")
      ->type_name("PATH")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  return command;
}

constexpr const char* adapter_help =
    "A folder of PEFT whose low-rank updates are merged with the model folder's weights";

void add_adapter(CLI::App& command, ModelArguments& arguments) {
  command.add_option("--adapter", arguments.adapter, adapter_help);
}

/// Of a server: a folder that is merged, or NAME=FOLDER for requests that name it.
void add_adapters(CLI::App& command, ServeArguments& arguments) {
  const auto take = [&arguments](const std::vector<std::string>& all) {
    for (const std::string& one : all) {
      const std::size_t sign = one.find('=');
      const bool has_name = sign != std::string::npos && one.find('/') > sign;
      if (has_name) {
        arguments.options.adapters.named.emplace_back(one.substr(0, sign), one.substr(sign + 1));
      } else if (arguments.adapter.empty() && !one.empty()) {
        arguments.adapter = one;
      } else {
        throw CLI::ValidationError("--adapter", "one folder is merged; give others as NAME=FOLDER");
      }
    }
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--adapter", take,
          std::string(adapter_help) +
              "; or NAME=FOLDER, once or more: requests choose it by its name")
      ->type_name("FOLDER")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  command.add_option("--adapter-folder", arguments.options.adapters.folder,
                     "A folder: requests may load adapters that are below it");
  command
      .add_option("--adapters", arguments.options.adapters.most,
                  "Adapters at the same time that requests choose by their names, at most")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

void add_tokenizer_and_ranks(CLI::App& command, ModelArguments& arguments) {
  command.add_option("--tokenizer", arguments.tokenizer,
                     "A folder or file with the tokenizer; default: the model's own");
  command.add_option("--base", arguments.base,
                     "Where the base of a checkpoint that names one is now, if it has moved");
  add_precision(command, arguments.precision, arguments.activations, arguments.keys);
  command
      .add_option(
          "--ranks", arguments.ranks,
          "The number of processes that compute with the model; default: those of --context")
      ->check(CLI::Range(1, 4096));
  command
      .add_option("--context", arguments.context,
                  "Ranks that each compute a part of a long text, and keep a part of its keys and "
                  "values")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
}

/// For commands whose work can be divided.
void add_copies(CLI::App& command, ModelArguments& arguments) {
  command
      .add_option("--split", arguments.split,
                  "Ranks that each have a part of every layer of a copy of the model; other ranks "
                  "have further copies, with a share of the work; default: no further copies")
      ->check(CLI::Range(1, 4096));
}

void add_engine(CLI::App& command, text::EngineOptions& options) {
  command
      .add_option("--memory", options.memory,
                  "Bytes of keys and values of a rank, such as 2GB; 0: a quarter of the machine's "
                  "memory")
      ->transform(CLI::AsSizeValue(true).description(""))
      ->type_name("SIZE")
      ->capture_default_str();
  command.add_flag_callback(
      "--fast", [&options] { options.exact = false; },
      "A text's last bits may depend on what is computed with it");
}

void add_speculation(CLI::App& command, text::EngineOptions& options) {
  command
      .add_option("--speculate", options.guesses,
                  "Tokens that a step guesses and checks beside the next one of a text, at most: "
                  "what followed its last tokens before; texts stay the same")
      ->check(CLI::Range(0, 15))
      ->capture_default_str();
}

void add_chat_template(CLI::App& command, std::string& file) {
  command.add_option("--chat-template", file,
                     "A file with a template in Jinja; default: the tokenizer's");
}

void add_length(CLI::App& command, text::GenerationOptions& options) {
  command.add_option("--tokens", options.tokens, "The number of tokens to generate, at most")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
      ->capture_default_str();
  command.add_option("--stop", options.stop, "End the text before this string; may be repeated")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
}

void add_sampling(CLI::App& command, text::GenerationOptions& options) {
  text::SamplingOptions& sampling = options.sampling;
  command
      .add_option("--temperature", sampling.temperature, "0 always selects the most likely token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command
      .add_option("--top-k", sampling.top_k, "Sample from the K most likely tokens; 0: from all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      .add_option("--top-p", sampling.top_p,
                  "Sample from the most likely tokens whose probabilities reach this sum")
      ->capture_default_str();
  command
      .add_option("--repetition-penalty", sampling.repetition_penalty,
                  "Above 1: tokens that are there already become less likely")
      ->capture_default_str();
  command
      .add_option("--frequency-penalty", sampling.frequency_penalty,
                  "Subtracted from a token's logit for each time that it was generated")
      ->check(CLI::Range(-2.0, 2.0))
      ->capture_default_str();
  command
      .add_option("--presence-penalty", sampling.presence_penalty,
                  "Subtracted from the logits of tokens that were generated")
      ->check(CLI::Range(-2.0, 2.0))
      ->capture_default_str();
  command
      .add_option("--min-p", sampling.min_p,
                  "Sample from tokens at least so likely as this, times the most likely one")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--seed", options.seed, "The seed of the sampling")->capture_default_str();
}

void add_generate(CLI::App& program, std::function<int()>& chosen) {
  const auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* command = add(program, chosen, "generate", "Continue texts with a trained model",
                          arguments, &run_generate);
  add_tokenizer_and_ranks(*command, *arguments);
  add_adapter(*command, *arguments);
  CLI::Option* prompt = command->add_option("--prompt", arguments->prompt, "The text to continue");
  command
      ->add_option("--prompts", arguments->prompts,
                   "A file with a prompt in each line: its text, or of a file *.jsonl an object "
                   "with the member prompt")
      ->excludes(prompt);
  command
      ->add_option("--batch", arguments->options.batch,
                   "How many prompts of a file are continued at the same time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  CLI::Option* json =
      command->add_flag("--json", arguments->json, "Print a JSON object for each prompt");
  command
      ->add_option("--likeliest", arguments->options.likeliest,
                   "With the logarithm of each token's probability, and so many of the likeliest "
                   "tokens in its place")
      ->check(CLI::Range(0, 1000))
      ->needs(json);
  add_engine(*command, arguments->engine);
  add_speculation(*command, arguments->engine);
  add_copies(*command, *arguments);
  add_length(*command, arguments->options);
  add_sampling(*command, arguments->options);
}

void add_chat(CLI::App& program, std::function<int()>& chosen) {
  const auto arguments = std::make_shared<ChatArguments>();
  arguments->options.tokens = 1024;
  CLI::App* command =
      add(program, chosen, "chat", "Talk to a model: a question in each line of the input",
          arguments, &run_chat);
  add_tokenizer_and_ranks(*command, *arguments);
  add_adapter(*command, *arguments);
  command->add_option("--system", arguments->system, "The message of the system");
  add_chat_template(*command, arguments->chat_template);
  add_speculation(*command, arguments->engine);
  add_length(*command, arguments->options);
  add_sampling(*command, arguments->options);
}

void add_evaluate(CLI::App& program, std::function<int()>& chosen) {
  const auto arguments = std::make_shared<EvaluateArguments>();
  CLI::App* command =
      add(program, chosen, "evaluate", "Measure a model: perplexity of texts, answers to questions",
          arguments, &run_evaluate);
  add_tokenizer_and_ranks(*command, *arguments);
  add_adapter(*command, *arguments);
  command->add_option("--text", arguments->text, "Text files: their perplexity");
  command->add_option("--jsonl", arguments->jsonl,
                      "JSONL files of records, as a run trains on: the perplexity of answers");
  command->add_option("--questions", arguments->questions,
                      "JSONL files of questions: multiple choice, or answers that must match");
  command->add_option("--tasks", arguments->tasks,
                      "Tasks of lm-evaluation-harness: YAML files, whose documents are in files");
  command->add_option("--task-data", arguments->task_data,
                      "A folder with the documents of tasks that name a data set: "
                      "FOLDER/TASK/SPLIT.jsonl");
  command
      ->add_option("--limit", arguments->limit,
                   "Documents of a task that are asked at most; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  CLI::Option* chat = command->add_flag(
      "--chat", arguments->chat.asked, "Ask tasks in a conversation, by the model's chat template");
  command
      ->add_flag("--one-turn", arguments->chat.one_turn,
                 "Examples are a part of the question, not turns of the conversation")
      ->needs(chat);
  command->add_option("--system", arguments->system, "What comes before the description of tasks");
  command->add_option("--keep", arguments->keep,
                      "A file for the answers to tasks, line by line: a run that ended early goes "
                      "on where it was");
  command->add_option("--beside", arguments->beside,
                      "Results of other models (files of --to): a table with a column for each");
  command
      ->add_option("--length", arguments->perplexity.length,
                   "Tokens of a window, or of a record at most; 0: at most 2048")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 24))
      ->capture_default_str();
  command
      ->add_option("--stride", arguments->perplexity.stride,
                   "Tokens from a window of a text to the next one; 0: its length")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 24))
      ->capture_default_str();
  command->add_flag("--all-tokens", arguments->perplexity.all_tokens,
                    "Of records, score all tokens and not only answers");
  add_chat_template(*command, arguments->chat_template);
  command
      ->add_option("--format", arguments->asked.format,
                   "What the model reads of a question; {question} stands for it")
      ->capture_default_str();
  CLI::Option* shots =
      command
          ->add_option("--shots", arguments->shots,
                       "Questions with their answers that the model reads before each question; "
                       "default: 0, of a task as its file says")
          ->check(CLI::Range(0, 1000));
  command
      ->add_option("--shots-from", arguments->shots_from,
                   "A JSONL file with the questions of --shots, from its beginning; default: the "
                   "other questions of the file")
      ->needs(shots);
  command
      ->add_option("--shots-seed", arguments->asked.shots_seed,
                   "Draw the questions of --shots, others for each question; default: the first")
      ->needs(shots);
  command
      ->add_option("--batch", arguments->asked.generation.batch,
                   "How many answers are generated at the same time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  add_length(*command, arguments->asked.generation);
  add_copies(*command, *arguments);
  command->add_flag("--json", arguments->json, "Print JSON");
  command->add_option("--to", arguments->to, "Write the JSON to this file too");
}

void add_compare(CLI::App& program, std::function<int()>& chosen) {
  const auto arguments = std::make_shared<CompareArguments>();
  CLI::App* command = add(program, chosen, "compare",
                          "Compare a model, module by module, with what another program computes; "
                          "the exit code is 1 when they differ",
                          arguments, &run_compare);
  command
      ->add_option("STORED", arguments->stored,
                   "A safetensors file: input_ids, outputs by the modules' names, gradients as "
                   "PARAMETER.grad")
      ->required();
  command
      ->add_option("--tolerance", arguments->tolerance,
                   "The norm of a difference over that of the stored tensor, at most")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "Print JSON");
}

/// What clients may send, and how long it may take.
void add_limits(CLI::App& command, HttpLimits& limits) {
  const auto add_count = [&](const char* name, std::size_t& into, std::size_t most,
                             const char* text) {
    command.add_option(name, into, text)
        ->check(CLI::Range(std::size_t{1}, most))
        ->capture_default_str();
  };
  const auto add_seconds = [&](const char* name, std::chrono::milliseconds& into,
                               const char* text) {
    command
        .add_option_function<double>(
            name,
            [&into](double seconds) {
              into = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
            },
            text)
        ->check(CLI::Range(0.1, 86400.0))
        ->type_name("SECONDS")
        ->default_str(fmt::format("{}", static_cast<double>(into.count()) / 1000));
  };
  command
      .add_option("--request-size", limits.body_bytes, "Bytes of a request, at most, such as 1MB")
      ->transform(CLI::AsSizeValue(true).description(""))
      ->type_name("SIZE")
      ->default_str("1MiB");
  add_count("--connections", limits.connections, 100'000, "Open connections, at most");
  add_count("--connections-per-address", limits.connections_of_address, 100'000,
            "Open connections of one client's address, at most");
  add_seconds("--header-seconds", limits.header_time, "The time for the header of a request");
  add_seconds("--body-seconds", limits.body_time, "The time for the body of a request");
  add_seconds("--idle-seconds", limits.idle_time,
              "The time that a connection may wait for its next request");
  add_seconds("--unread-seconds", limits.unread_time,
              "The time in which a client may take nothing of its answer");
}

void add_serve(CLI::App& program, std::function<int()>& chosen) {
  const auto arguments = std::make_shared<ServeArguments>();
  ServeOptions& options = arguments->options;
  options.defaults.tokens = 1024;
  options.defaults.sampling.temperature = 1;
  CLI::App* command =
      add(program, chosen, "serve", "Answer chat completions over HTTP, as OpenAI's interface",
          arguments, &run_serve);
  add_tokenizer_and_ranks(*command, *arguments);
  add_adapters(*command, *arguments);
  command->add_option("--host", options.host, "The address to listen at; others need a token")
      ->capture_default_str();
  command->add_option("--port", options.port, "The port; 0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command->add_option("--token-file", arguments->token_file,
                      "A file whose first line is the token that clients must send");
  add_chat_template(*command, options.chat_template);
  command
      ->add_option_function<std::string>(
          "--pooling",
          [&options](const std::string& name) {
            options.pooling =
                std::map<std::string, EmbeddingPooling>{{"first", EmbeddingPooling::first},
                                                        {"mean", EmbeddingPooling::mean},
                                                        {"last", EmbeddingPooling::last}}
                    .at(name);
          },
          "Of which tokens' hidden states embeddings are made; default: as the folder says, else "
          "mean of an encoder and last of others")
      ->check(CLI::IsMember({"first", "mean", "last"}));
  command->add_flag("--page", options.page,
                    "Answer / with a page in a browser to talk with the model and see its "
                    "probabilities");
  command->add_flag("--heal", arguments->heals,
                    "The model is on ranks of its own, which start again when one of them dies: "
                    "answers that are being written continue");
  command->add_option("--seconds", options.seconds, "The time of an answer, at most")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  command->add_option("--waiting", options.waiting, "Requests that wait, at most")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      ->add_option("--batch", options.engine.most,
                   "Requests that are answered at the same time, at most")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  add_engine(*command, options.engine);
  add_speculation(*command, options.engine);
  add_limits(*command, options.limits);
  add_length(*command, options.defaults);
  add_sampling(*command, options.defaults);
}

}  // namespace

void add_precision(CLI::App& command, coded::WeightForm& weights, coded::Activations& activations,
                   std::optional<DType>& keys) {
  const auto names = coded::weight_form_names();
  command
      .add_option_function<std::string>(
          "--precision",
          [&weights](const std::string& name) { weights = coded::weight_form_named(name); },
          "How weights are kept: as they are stored, or in fewer bits")
      ->check(CLI::IsMember(std::vector<std::string>(names.begin(), names.end())))
      ->default_str("stored");
  const auto forms = coded::activations_names();
  command
      .add_option_function<std::string>(
          "--activations",
          [&activations](const std::string& name) { activations = coded::activations_named(name); },
          "What products with weights in codes compute with: float32, or 8 bits, which is faster")
      ->check(CLI::IsMember(std::vector<std::string>(forms.begin(), forms.end())))
      ->default_str("f32");
  command
      .add_option_function<std::string>(
          "--keys",
          [&keys](const std::string& name) {
            keys =
                std::map<std::string, DType>{{"f32", DType::f32}, {"bf16", DType::bf16}}.at(name);
          },
          "The type in which keys and values are kept")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->default_str("f32");
}

void add_text_commands(CLI::App& program, std::function<int()>& chosen) {
  add_generate(program, chosen);
  add_chat(program, chosen);
  add_evaluate(program, chosen);
  add_compare(program, chosen);
  add_serve(program, chosen);
}

text::ModelFiles model_files(const ModelArguments& arguments) {
  text::ModelFiles files =
      text::local_files({arguments.model, arguments.tokenizer, arguments.base, arguments.adapter});
  files.precision = arguments.precision;
  files.activations = arguments.activations;
  files.keys = arguments.keys;
  return files;
}

int use_model(const ModelArguments& arguments,
              const std::function<int(const text::TextModel&)>& act, bool adapters, bool heals) {
  const int ranks = arguments.ranks > 0 ? arguments.ranks : arguments.context;
  const int context = arguments.context;
  if (ranks % context != 0) {
    fail_input({.thing = "--context",
                .wrong = fmt::format("{} ranks do not split texts into {} parts", ranks, context),
                .advice = "choose a divisor of --ranks"});
  }
  const int split = arguments.split > 0 ? arguments.split : ranks / context;
  if (ranks / context % split != 0) {
    fail_input({.thing = "--split",
                .wrong = fmt::format("{} ranks do not make copies of the model with {} ranks each",
                                     ranks, context * split),
                .advice = context > 1 ? "choose a divisor of --ranks / --context"
                                      : "choose a divisor of --ranks"});
  }
  text::ModelFiles files = model_files(arguments);
  files.adapters = adapters;
  return text::with_text_model(
      files, {.copies = ranks / context / split, .context = context, .split = split},
      [&](const text::TextModel& model) {
        const int code = act(model);
        check_stdout();  // of this rank
        return code;
      },
      heals);
}

void note_slow(const std::string& because) {
  if (!because.empty()) {
    fmt::print(stderr, "note: no cache, each token computes the whole text again: {}\n", because);
  }
}

}  // namespace tessera::app
