module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.server;

import :answer_writer;
import :grammar_cache;
import :model_service;
import :stop_signals;
import tessera.base;
import tessera.grammar;
import tessera.text;
import tessera.tokenize;

namespace tessera::app {
namespace {

bool is_to_stop(const text::TextModel& model) {
  return StopSignals::requested() || model.ranks().interrupted();
}

/// What the server has for its clients: the model's answers, several at the same time.
class TextServer : public ModelService {
 public:
  TextServer(const text::TextModel& model, const ServeOptions& options)
      : ModelService(model_name(model.path()), options.token, options.waiting),
        model_(model),
        options_(options),
        engine_(model.ranks(), model.shape().vocab, options.engine),
        adapters_(model, options.adapters, name()),
        pooling_(pooling_of(model.path(), options)),
        features_(engine_.has_states() ? model.ranks().state_features() : 0),
        jobs_(static_cast<std::size_t>(options.waiting)) {
    if (text::chat_template_of(model, options.chat_template) != nullptr) {
      format_.emplace(model, options.chat_template);
    }
    if (options.page) {
      add_page();
    }
    const auto add_reader = [&](const char* path, auto member) {
      add(path, [this, member](const auto& body, const auto& responder) {
        (this->*member)(body, responder);
      });
    };
    add_reader("/v1/chat/completions", &TextServer::answer_chat);
    add_reader("/v1/completions", &TextServer::answer_completion);
    add_reader("/v1/embeddings", &TextServer::answer_embeddings);
    add_reader("/v1/load_lora_adapter", &TextServer::load_adapter);
    add_reader("/v1/unload_lora_adapter", &TextServer::unload_adapter);
    add_reader("/tokenize", &TextServer::answer_tokenize);
    add_reader("/detokenize", &TextServer::answer_detokenize);
  }
  ~TextServer() override { end_readers(); }
  TextServer(const TextServer&) = delete;
  TextServer& operator=(const TextServer&) = delete;

  void run(const std::function<void(int)>& started) {
    HttpServer http(options_.host, options_.port, options_.token.empty(), options_.limits, *this);
    try {
      started(http.port());
      while (!stops()) {
        adapters_.work();
        begin_jobs();
        engine_.step();
        counts().set_engine(engine_.counts());
        // Where texts are computed, the next call finds ranks that have ended, and tells the
        // clients.
        if (engine_.size() == 0 || !model_.ranks().heals()) {
          model_.ranks().check_others();
        }
        http.check();
      }
      engine_.step();  // those that are not wanted any more are told
    } catch (...) {
      jobs_.close();
      http.stop(std::chrono::milliseconds(300));
      throw;
    }
    jobs_.close();
    http.stop(std::chrono::milliseconds(300));
  }

 private:
  bool stops() const { return is_to_stop(model_); }

  /// Those that wait join, while there are places; where nothing is at work, after a time at most.
  void begin_jobs() {
    while (engine_.size() < options_.engine.most) {
      const std::chrono::milliseconds within(engine_.size() == 0 ? 100 : 0);
      const auto job = jobs_.take(within);
      if (!job) {
        return;
      }
      AnswerJob::begin(job, model_, engine_, [this] { return !stops(); });
    }
  }

  std::vector<ServedModel> models() const override {
    std::vector<ServedModel> all = ModelService::models();
    for (const AdapterUse& adapter : adapters_.all()) {
      all.push_back({.name = adapter->name, .created = adapter->created, .parent = name()});
    }
    return all;
  }

  /// The adapter that a request names as its model; null: the model itself. Without adapters any
  /// name is the model's, as clients have names of their own.
  AdapterUse adapter_of(const std::string& model) const {
    if (model.empty() || model == name() || !options_.adapters.used()) {
      return nullptr;
    }
    AdapterUse adapter = adapters_.find(model);
    if (adapter == nullptr) {
      throw RequestError(404, fmt::format("model: there is no model '{}'", shown(model)));
    }
    return adapter;
  }

  /// Of the last token unless the folder or the command says otherwise.
  static EmbeddingPooling pooling_of(const std::string& model, const ServeOptions& options) {
    const auto pooling = options.pooling ? options.pooling : stored_pooling(model);
    if (pooling == EmbeddingPooling::first) {
      fail_input({.thing = "pooling",
                  .wrong = "the first token of a model of the next token knows no other one",
                  .expected = "mean or last"});
    }
    return pooling.value_or(EmbeddingPooling::last);
  }

  void answer_embeddings(const std::string& body, const HttpResponder& responder) {
    if (features_ == 0) {
      throw RequestError(404,
                         "the model gives no embeddings: it computes texts one after the "
                         "other, or its family has no head");
    }
    EmbeddingRequest request = parse_embedding_request(body, model_.shape().vocab, features_);
    const AdapterUse adapter = adapter_of(request.model);
    std::vector<AnswerPrompt> inputs;
    std::int64_t count = 0;
    for (RequestPrompt& input : request.inputs) {
      inputs.push_back({.tokens = input.tokens.empty() ? text::prompt_tokens(model_, input.text)
                                                       : std::move(input.tokens)});
      check_room("input", std::ssize(inputs.back().tokens), model_.usual_length());
      count += std::ssize(inputs.back().tokens);
    }
    const auto answer = std::make_shared<EmbeddingAnswer>(responder, counts(), std::move(request),
                                                          adapter ? adapter->name : name(), count);
    std::vector<std::shared_ptr<ModelJob>> jobs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      jobs.push_back(std::make_shared<EmbeddingJob>(std::move(inputs[i].tokens), pooling_, i,
                                                    answer, adapter));
    }
    leave_with(responder, {jobs.begin(), jobs.end()});
    if (!jobs_.add(jobs)) {
      answer->refuse(busy_answer(), RequestEnd::busy);
    }
  }

  /// Where the client goes, so do its jobs.
  void leave_with(const HttpResponder& responder, std::vector<std::weak_ptr<ModelJob>> jobs) {
    // The jobs have the responder: it must not have the jobs.
    responder.on_leave([this, jobs = std::move(jobs)] {
      for (const std::weak_ptr<ModelJob>& one : jobs) {
        if (const auto there = one.lock()) {
          jobs_.leave(there);
        }
      }
    });
  }

  void check_loads() const {
    if (options_.adapters.folder.empty()) {
      throw RequestError(403,
                         "requests may not load or unload adapters: the server was started "
                         "without --adapter-folder");
    }
  }

  void load_adapter(const std::string& body, const HttpResponder& responder) {
    check_loads();
    const AdapterRequest request = parse_load_request(body);
    adapters_.load(
        request.name, request.path, [responder, name = request.name](const std::exception* error) {
          responder.answer(error != nullptr ? error_answer(*error)
                                            : success(fmt::format("adapter '{}' loaded", name)));
        });
  }

  void unload_adapter(const std::string& body, const HttpResponder& responder) {
    check_loads();
    const AdapterRequest request = parse_unload_request(body);
    if (!adapters_.unload(request.name)) {
      throw RequestError(404,
                         fmt::format("lora_name: there is no adapter '{}'", shown(request.name)));
    }
    responder.answer(success(fmt::format("adapter '{}' unloaded", request.name)));
  }

  static HttpAnswer success(const std::string& text) {
    return {.type = "text/plain; charset=utf-8", .body = "Success: " + text};
  }

  const text::ChatFormat& format() const {
    if (!format_) {
      fail_input({.thing = "messages",
                  .wrong = "the model has no chat template",
                  .advice = "use /v1/completions, or start the server with --chat-template FILE"});
    }
    return *format_;
  }

  /// Differs where the grammar of a request's calls does.
  static std::string tools_key(const ChatRequest& chat) {
    std::string key = fmt::format("tools {}", chat.several_calls);
    for (const text::Tool& tool : chat.callable) {
      key += fmt::format("\n{} {}\n{} {}", tool.name.size(), tool.name, tool.parameters.size(),
                         tool.parameters);
    }
    return key;
  }

  void answer_chat(const std::string& body, const HttpResponder& responder) {
    text::GenerationOptions defaults = options_.defaults;
    defaults.end_tokens = format().end_tokens();
    ChatRequest chat = parse_chat_request(body, defaults, model_.shape().vocab);
    const AnswerPrompt prompt{.tokens = format().prompt(chat.messages, chat.tools)};
    AnswerRequest asked{.request = chat, .prompts = {prompt}, .format = &chat_format()};
    constrain(asked.request);
    if (const text::ToolCallForm* form = format().answer_form()) {
      asked.calls = *form;
      asked.request.options.shown = format().tool_call_tokens();
    }
    if (!chat.callable.empty()) {
      const text::ToolCallForm& form = format().tool_calls();
      asked.calls = form;
      asked.tools = chat.callable;
      asked.several_calls = chat.several_calls;
      asked.request.options.shown = format().tool_call_tokens();
      if (chat.must_call) {
        asked.request.options.constraint = grammars_.get(tools_key(chat), [&] {
          return std::make_shared<grammar::Constraint>(
              text::tool_call_grammar(form, chat.callable, chat.several_calls, "tools"),
              tokens_with(asked.request.options.shown), "tools");
        });
      }
    }
    ask(std::move(asked), "messages", responder);
  }

  /// The texts of tokens, which are found once. Only the readers' thread calls it.
  std::shared_ptr<const grammar::TokenTree> tokens_with(const std::vector<std::int64_t>& shown) {
    auto& kept = token_trees_[shown.empty() ? 0 : 1];
    if (!kept) {
      kept = text::token_tree(model_, shown);
    }
    return kept;
  }

  /// Errors (input): what the texts must follow is wrong.
  void constrain(TextRequest& request) {
    if (!request.grammar) {
      return;
    }
    const RequestGrammar& asked = *request.grammar;
    const std::string key =
        fmt::format("{}\n{}\n{}", static_cast<int>(asked.kind), asked.place, asked.text);
    request.options.constraint = grammars_.get(key, [&] {
      return std::make_shared<grammar::Constraint>(rules_of(asked), tokens_with({}), asked.place);
    });
  }

  static grammar::Grammar rules_of(const RequestGrammar& asked) {
    if (asked.kind == RequestGrammar::Kind::gbnf) {
      return grammar::parse_gbnf(asked.text);
    }
    grammar::Grammar rules;
    const std::size_t root = rules.add();
    grammar::Expression all = asked.kind == RequestGrammar::Kind::json_object
                                  ? grammar::add_json_object(rules)
                                  : grammar::add_json_schema(rules, asked.text, asked.place);
    rules.rules[root] = std::move(all);
    return rules;
  }

  void answer_completion(const std::string& body, const HttpResponder& responder) {
    CompletionRequest request =
        parse_completion_request(body, options_.defaults, model_.shape().vocab);
    std::vector<AnswerPrompt> prompts;
    for (RequestPrompt& prompt : request.prompts) {
      const bool as_text = prompt.tokens.empty();
      AnswerPrompt asked{.tokens = as_text ? text::prompt_tokens(model_, prompt.text)
                                           : std::move(prompt.tokens)};
      if (request.echo) {
        asked.echo = as_text ? std::move(prompt.text) : text_of(asked.tokens);
      }
      prompts.push_back(std::move(asked));
    }
    constrain(request);
    ask({.request = std::move(request),
         .prompts = std::move(prompts),
         .format = &completion_format()},
        "prompt", responder);
  }

  void answer_tokenize(const std::string& body, const HttpResponder& responder) {
    const TokenizeRequest request = parse_tokenize_request(body);
    const text::TextModel& model = model_;
    const std::vector<std::int64_t> tokens = !request.text ? format().prompt(request.messages)
                                             : request.add_special
                                                 ? text::prompt_tokens(model, *request.text)
                                                 : plain_tokens(*request.text);
    responder.answer({.body = tokens_json(tokens, model.usual_length())});
  }

  void answer_detokenize(const std::string& body, const HttpResponder& responder) {
    responder.answer(
        {.body = prompt_json(text_of(parse_detokenize_request(body, model_.shape().vocab)))});
  }

  const tokenize::Tokenizer& tokenizer() const { return *model_.tokenizer().tokenizer; }

  std::vector<std::int64_t> plain_tokens(const std::string& text) const {
    const auto ids = tokenizer().encode(text, {.add_special = false});
    return {ids.begin(), ids.end()};
  }

  /// Rows of the model without a token have no text.
  std::string text_of(std::span<const std::int64_t> tokens) const {
    std::vector<tokenize::TokenId> ids;
    for (const std::int64_t token : tokens) {
      const auto id = static_cast<tokenize::TokenId>(token);
      if (tokenizer().token(id)) {
        ids.push_back(id);
      }
    }
    return tokenizer().decode(ids);
  }

  /// The model's thread makes the texts, one job for each.
  void ask(AnswerRequest asked, const char* field, const HttpResponder& responder) {
    for (const AnswerPrompt& prompt : asked.prompts) {
      check_room(field, std::ssize(prompt.tokens),
                 model_.usual_length() - (asked.request.options.tokens > 0 ? 1 : 0));
    }
    const text::GenerationOptions options = asked.request.options;
    const char* const prefix = asked.format->id_prefix();
    const AdapterUse adapter = adapter_of(asked.request.model);
    const auto writer =
        std::make_shared<AnswerWriter>(responder, head(prefix, adapter ? adapter->name : name()),
                                       tokenizer(), counts(), std::move(asked));
    std::vector<std::shared_ptr<AnswerJob>> jobs;
    for (std::size_t index = 0; index < writer->texts(); ++index) {
      const std::vector<std::int64_t>& prompt = writer->prompt(index);
      text::GenerationOptions own = options;
      own.tokens = std::min(own.tokens, model_.usual_length() - std::ssize(prompt));
      own.seed = text::seed_of(options.seed, index);
      jobs.push_back(std::make_shared<AnswerJob>(prompt, std::move(own),
                                                 std::chrono::seconds(options_.seconds),
                                                 writer->receiver(index), adapter));
    }
    writer->set_jobs({jobs.begin(), jobs.end()});
    const std::vector<std::shared_ptr<ModelJob>> all(jobs.begin(), jobs.end());
    leave_with(responder, {all.begin(), all.end()});
    if (!jobs_.add(all)) {
      writer->refuse(busy_answer(), RequestEnd::busy);
    }
  }

  const text::TextModel& model_;
  ServeOptions options_;
  std::optional<text::ChatFormat> format_;  // none: the model has no template
  std::array<std::shared_ptr<const grammar::TokenTree>, 2> token_trees_;
  GrammarCache grammars_{counts()};  // only the readers' thread uses it
  text::Engine engine_;
  ServedAdapters adapters_;
  EmbeddingPooling pooling_;
  std::int64_t features_;  // of an embedding; 0: there are none
  JobQueue jobs_;
};

}  // namespace

void serve(const text::TextModel& model, const ServeOptions& options,
           const std::function<void(int)>& started) {
  check_host(options);
  const StopSignals signals;
  // A pass of a large model may last longer than anybody waits after SIGTERM.
  const LastMoment last(
      std::chrono::milliseconds(1200), [&] { return is_to_stop(model); },
      [&] { model.ranks().end_process(); });
  TextServer(model, options).run(started);
}

}  // namespace tessera::app
