export module tessera.app.server:text_request;

import tessera.app.base;
import tessera.text;

// Requests for texts as JSON, in the form of OpenAI's interface.

export namespace tessera::app {

/// What texts must follow.
struct RequestGrammar {
  enum class Kind : std::uint8_t { json_object, json_schema, gbnf };
  Kind kind = Kind::json_object;
  std::string text = {};  // the schema (JSON), or the grammar
  std::string place;      // the field with it
};

/// What all requests for texts say.
struct TextRequest {
  std::string model = {};  // empty: none is named
  text::GenerationOptions options;
  std::optional<RequestGrammar> grammar = std::nullopt;
  std::int64_t count = 1;  // "n": texts for each prompt
  bool stream = false;
  bool stream_usage = false;  // stream_options.include_usage
};

/// An answer to a conversation.
struct ChatRequest : TextRequest {
  std::vector<text::ChatMessage> messages;
  std::string tools = {};                 // a JSON list, as the template gets it; empty: none
  std::vector<text::Tool> callable = {};  // those of them that may be called
  bool must_call = false;                 // the answer is a call
  bool several_calls = true;
};

/// What a text begins with: a text, or its tokens.
struct RequestPrompt {
  std::string text;
  std::vector<std::int64_t> tokens;  // not empty: they are given, and the text is not
};

/// Texts that continue others.
struct CompletionRequest : TextRequest {
  std::vector<RequestPrompt> prompts;
  bool echo = false;  // a text begins with its prompt
};

/// Texts of a request at most, for all prompts together.
inline constexpr std::int64_t most_texts = 128;

/// The request in a body. What it does not say is as in `defaults`, whose tokens are the most that
/// it gets. Errors (input): it is not JSON, or has values of the wrong type or out of range (ids:
/// below `vocab`); it has a member that is not supported (docs/serving.md), by its name.
ChatRequest parse_chat_request(std::string_view body, const text::GenerationOptions& defaults,
                               std::int64_t vocab);
/// Likewise; without a number of tokens it gets 16, as in OpenAI's interface.
CompletionRequest parse_completion_request(std::string_view body,
                                           const text::GenerationOptions& defaults,
                                           std::int64_t vocab);

/// A text or a conversation that becomes tokens, and tokens that become a text.
struct TokenizeRequest {
  std::optional<std::string> text;          // null: messages
  std::vector<text::ChatMessage> messages;  // of a conversation
  bool add_special = true;                  // what the tokenizer adds to a text
};
/// Errors (input): as of parse_chat_request.
TokenizeRequest parse_tokenize_request(std::string_view body);
std::vector<std::int64_t> parse_detokenize_request(std::string_view body, std::int64_t vocab);

/// Texts of which vectors are asked.
struct EmbeddingRequest {
  std::string model = {};  // empty: none is named
  std::vector<RequestPrompt> inputs;
  std::int64_t dimensions = 0;  // 0: all
  bool base64 = false;          // vectors as the bytes of their f32 numbers
};
/// Texts of a request for embeddings at most.
inline constexpr std::int64_t most_inputs = 2048;
/// `features`: numbers of a vector. Errors (input): as of parse_chat_request.
EmbeddingRequest parse_embedding_request(std::string_view body, std::int64_t vocab,
                                         std::int64_t features);

/// An adapter that is loaded while the server runs.
struct AdapterRequest {
  std::string name;
  std::string path = {};
};
/// As vLLM's /v1/load_lora_adapter and /v1/unload_lora_adapter. Errors (input): as of
/// parse_chat_request.
AdapterRequest parse_load_request(std::string_view body);
AdapterRequest parse_unload_request(std::string_view body);

}  // namespace tessera::app
