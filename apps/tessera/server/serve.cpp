module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.app.server;

import :answer_writer;
import tessera.base;
import tessera.grammar;
import tessera.text;
import tessera.tokenize;

namespace tessera::app {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

/// While it exists, SIGINT and SIGTERM set `stop_requested`.
class StopSignals {
 public:
  StopSignals() {
    stop_requested = 0;
    struct sigaction action = {};
    action.sa_handler = [](int) { stop_requested = 1; };
    sigaction(SIGINT, &action, &before_[0]);
    sigaction(SIGTERM, &action, &before_[1]);
  }
  ~StopSignals() {
    sigaction(SIGINT, &before_[0], nullptr);
    sigaction(SIGTERM, &before_[1], nullptr);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  std::array<struct sigaction, 2> before_ = {};
};

bool is_to_stop(const text::TextModel& model) {
  return stop_requested != 0 || model.ranks().interrupted();
}

/// The last part of a path.
std::string name_of(const std::string& path) {
  const auto whole = std::filesystem::absolute(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

/// The name in a path of which some bytes may be written as %XX.
std::string decoded(std::string_view path) {
  std::string text;
  for (std::size_t i = 0; i < path.size(); ++i) {
    unsigned byte = 0;
    const char* const digits = path.data() + i + 1;
    if (path[i] == '%' && i + 2 < path.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      text += static_cast<char>(byte);
      i += 2;
    } else {
      text += path[i];
    }
  }
  return text;
}

/// What the server has for its clients: the model's answers, several at the same time.
class TextServer : public HttpService {
 public:
  TextServer(const text::TextModel& model, const ServeOptions& options)
      : model_(model),
        options_(options),
        engine_(model.ranks(), model.shape().vocab, options.engine),
        jobs_(static_cast<std::size_t>(options.waiting)),
        name_(name_of(model.path())),
        readers_(static_cast<std::size_t>(options.waiting)) {
    if (text::chat_template_of(model, options.chat_template) != nullptr) {
      format_.emplace(model, options.chat_template);
    }
  }

  void run(const std::function<void(int)>& started) {
    HttpServer http(options_.host, options_.port, options_.token.empty(), options_.limits, *this);
    try {
      started(http.port());
      while (!stops()) {
        begin_jobs();
        engine_.step();
        counts_.set_engine(engine_.counts());
        model_.ranks().check_others();
        http.check();
      }
      engine_.step();  // those that are not wanted any more are told
    } catch (...) {
      jobs_.close();
      throw;
    }
    jobs_.close();
    http.stop(std::chrono::milliseconds(300));
  }

  std::optional<HttpAnswer> refusal(const HttpHead& head) override {
    const auto problem = access_problem(head, options_.token);
    return problem ? std::optional(error(*problem)) : std::nullopt;
  }

  HttpAnswer error(const HttpProblem& problem) override {
    return error_answer(problem.status, problem.text);
  }

  void handle(HttpRequest request, HttpResponder responder) override {
    constexpr std::string_view models = "/v1/models";
    for (const auto& [path, read] : endpoints_) {
      if (request.path == path) {
        if (is_allowed(request, {"POST"}, responder)) {
          read_later(read, std::move(request.body), responder);
        }
        return;
      }
    }
    if (request.path == "/health") {
      answer_get(request, responder, {.body = "{\"status\":\"ok\"}"});
    } else if (request.path == "/metrics") {
      answer_get(request, responder,
                 {.type = "text/plain; version=0.0.4; charset=utf-8", .body = counts_.text()});
    } else if (request.path == models) {
      answer_get(request, responder, {.body = models_json(head(""))});
    } else if (request.path.starts_with(std::string(models) + "/") &&
               decoded(std::string_view(request.path).substr(models.size() + 1)) == name_) {
      answer_get(request, responder, {.body = model_json(head(""))});
    } else {
      responder.answer(error_answer(404, request.path.starts_with(models)
                                             ? "there is no such model"
                                             : "there is no such path"));
    }
  }

 private:
  /// Answers a request by its body, in the thread of the readers. Errors become the answer.
  using Reader = void (TextServer::*)(const std::string& body, const HttpResponder& responder);
  struct Endpoint {
    std::string_view path;
    Reader read;
  };

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

  static HttpAnswer busy() { return error_answer(503, "too many requests are waiting"); }

  static bool is_allowed(const HttpRequest& request, std::initializer_list<const char*> methods,
                         const HttpResponder& responder) {
    if (std::ranges::find(methods, request.method) != methods.end()) {
      return true;
    }
    HttpAnswer answer = error_answer(405, "the path is not one for this method");
    answer.headers.push_back({"Allow", fmt::format("{}", fmt::join(methods, ", "))});
    responder.answer(answer);
    return false;
  }

  static void answer_get(const HttpRequest& request, const HttpResponder& responder,
                         HttpAnswer answer) {
    if (is_allowed(request, {"GET", "HEAD"}, responder)) {
      responder.answer(std::move(answer));
    }
  }

  /// `prefix`: what the answer's id begins with.
  AnswerHead head(const char* prefix) {
    return {.id = fmt::format("{}-{}-{}", prefix, started_, ++answers_),
            .model = name_,
            .created = static_cast<std::int64_t>(std::time(nullptr))};
  }

  void read_later(Reader read, std::string body, const HttpResponder& responder) {
    const auto left = std::make_shared<std::atomic<bool>>(false);
    responder.on_leave([left] { *left = true; });
    const auto task = [this, left, read, responder, text = std::move(body)] {
      if (*left) {
        return;
      }
      try {
        (this->*read)(text, responder);
      } catch (const std::exception& error) {
        responder.answer(error_answer(error));
      }
    };
    if (!readers_.add(task)) {
      responder.answer(busy());
    }
  }

  const text::ChatFormat& format() const {
    if (!format_) {
      fail_input({.thing = "messages",
                  .wrong = "the model has no chat template",
                  .advice = "use /v1/completions, or start the server with --chat-template FILE"});
    }
    return *format_;
  }

  void answer_chat(const std::string& body, const HttpResponder& responder) {
    text::GenerationOptions defaults = options_.defaults;
    defaults.end_tokens = format().end_tokens();
    ChatRequest chat = parse_chat_request(body, defaults, model_.shape().vocab);
    const AnswerPrompt prompt{.tokens = format().prompt(chat.messages, chat.tools)};
    AnswerRequest asked{.request = chat, .prompts = {prompt}, .format = &chat_format()};
    constrain(asked.request);
    if (!chat.callable.empty()) {
      const text::ToolCallForm& form = format().tool_calls();
      asked.calls = form;
      asked.tools = chat.callable;
      asked.several_calls = chat.several_calls;
      asked.request.options.shown = format().tool_call_tokens();
      if (chat.must_call) {
        asked.request.options.constraint = std::make_shared<grammar::Constraint>(
            text::tool_call_grammar(form, chat.callable, chat.several_calls, "tools"),
            tokens_with(asked.request.options.shown), "tools");
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
    grammar::Grammar rules;
    if (asked.kind == RequestGrammar::Kind::gbnf) {
      rules = grammar::parse_gbnf(asked.text);
    } else {
      const std::size_t root = rules.add();
      grammar::Expression all = asked.kind == RequestGrammar::Kind::json_object
                                    ? grammar::add_json_object(rules)
                                    : grammar::add_json_schema(rules, asked.text, asked.place);
      rules.rules[root] = std::move(all);
    }
    request.options.constraint =
        std::make_shared<grammar::Constraint>(rules, tokens_with({}), asked.place);
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

  /// Error (input): a prompt leaves no room for an answer. `field`: the request's one with it.
  void check_room(const char* field, const AnswerRequest& asked) const {
    const std::int64_t room = model_.usual_length() - (asked.request.options.tokens > 0 ? 1 : 0);
    for (const AnswerPrompt& prompt : asked.prompts) {
      if (std::ssize(prompt.tokens) > room) {
        fail_input({.thing = field,
                    .wrong = "it is longer than the model is meant for",
                    .expected = fmt::format("at most {} tokens", room),
                    .got = fmt::format("{}", prompt.tokens.size())});
      }
    }
  }

  /// The model's thread makes the texts, one job for each.
  void ask(AnswerRequest asked, const char* field, const HttpResponder& responder) {
    check_room(field, asked);
    const text::GenerationOptions options = asked.request.options;
    const char* const prefix = asked.format->id_prefix();
    const auto writer = std::make_shared<AnswerWriter>(responder, head(prefix), tokenizer(),
                                                       counts_, std::move(asked));
    std::vector<std::shared_ptr<AnswerJob>> jobs;
    for (std::size_t index = 0; index < writer->texts(); ++index) {
      const std::vector<std::int64_t>& prompt = writer->prompt(index);
      text::GenerationOptions own = options;
      own.tokens = std::min(own.tokens, model_.usual_length() - std::ssize(prompt));
      own.seed = text::seed_of(options.seed, index);
      jobs.push_back(std::make_shared<AnswerJob>(
          prompt, std::move(own), std::chrono::seconds(options_.seconds), writer->receiver(index)));
    }
    // The jobs have the responder: it must not have the jobs.
    const std::vector<std::weak_ptr<AnswerJob>> weak(jobs.begin(), jobs.end());
    writer->set_jobs(weak);
    responder.on_leave([this, weak] {
      for (const std::weak_ptr<AnswerJob>& one : weak) {
        if (const auto there = one.lock()) {
          jobs_.leave(there);
        }
      }
    });
    if (!jobs_.add(jobs)) {
      writer->refuse(busy(), RequestEnd::busy);
    }
  }

  const text::TextModel& model_;
  ServeOptions options_;
  std::optional<text::ChatFormat> format_;  // none: the model has no template
  ServerCounts counts_;
  std::array<std::shared_ptr<const grammar::TokenTree>, 2> token_trees_;
  text::Engine engine_;
  JobQueue jobs_;
  std::string name_;
  std::int64_t started_ = static_cast<std::int64_t>(std::time(nullptr));
  std::atomic<std::int64_t> answers_ = 0;
  const std::array<Endpoint, 4> endpoints_ = {{
      {"/v1/chat/completions", &TextServer::answer_chat},
      {"/v1/completions", &TextServer::answer_completion},
      {"/tokenize", &TextServer::answer_tokenize},
      {"/detokenize", &TextServer::answer_detokenize},
  }};
  TaskThread readers_;  // the last one: its tasks use the others
};

}  // namespace

void serve(const text::TextModel& model, const ServeOptions& options,
           const std::function<void(int)>& started) {
  if (!is_local(options.host) && options.token.empty()) {
    fail_input({.thing = options.host,
                .wrong = "other machines could use the model without a token",
                .advice = "give --token-file, or leave out --host"});
  }
  const StopSignals signals;
  // A pass of a large model may last longer than anybody waits after SIGTERM.
  const LastMoment last(
      std::chrono::milliseconds(1200), [&] { return is_to_stop(model); },
      [&] { model.ranks().end_process(); });
  TextServer(model, options).run(started);
}

}  // namespace tessera::app
