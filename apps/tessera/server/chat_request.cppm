export module tessera.app.server:chat_request;

import tessera.app.base;
import tessera.text;

// Chat completions as JSON, in the form of OpenAI's interface.

export namespace tessera::app {

struct ChatRequest {
  std::vector<text::ChatMessage> messages;
  text::GenerationOptions options;
  bool stream = false;
  bool stream_usage = false;  // stream_options.include_usage
};

/// The request in a body. What it does not say is as in `defaults`, whose tokens are the most that
/// it gets. Errors (input): it is not JSON, or has values of the wrong type or out of range (ids:
/// below `vocab`); it has a member that is not supported (docs/serving.md), by its name.
ChatRequest parse_chat_request(std::string_view body, const text::GenerationOptions& defaults,
                               std::int64_t vocab);

/// What all parts of an answer have.
struct AnswerHead {
  std::string id;
  std::string model;
  std::int64_t created = 0;  // seconds since 1970
};

struct TokenUsage {
  std::int64_t prompt = 0;
  std::int64_t completion = 0;
};

/// The whole answer.
std::string answer_json(const AnswerHead& head, const text::GeneratedText& text,
                        const TokenUsage& usage);
/// Events of a stream: its beginning, a part of the text, its end.
std::string first_event(const AnswerHead& head);
std::string part_event(const AnswerHead& head, const std::string& part);
/// `usage`: null where the request does not ask for it.
std::string last_event(const AnswerHead& head, text::TextEnd end, const TokenUsage* usage);
std::string error_json(const std::string& message, const char* type);
std::string model_json(const AnswerHead& head);
std::string models_json(const AnswerHead& head);

}  // namespace tessera::app
