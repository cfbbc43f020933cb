export module tessera.text:chat;

import tessera.base;
import tessera.data;
import :text_model;
import :text_engine;
import :generate;
import :tool_calls;

// Conversations with a model, by its chat template.

export namespace tessera::text {

/// One turn of a conversation.
struct ChatMessage {
  std::string role;  // "system", "user", "assistant", "tool"
  std::string content;
  std::string members = {};  // others that the template may read: a JSON object; empty: none
};

/// The template of a file, or where that is empty of the model's tokenizer; null: it has none.
/// Errors (input): the file cannot be read; the template has what is not supported (docs/data.md).
std::shared_ptr<const data::ChatTemplate> chat_template_of(const TextModel& model,
                                                           const std::string& file);

/// From a conversation to the tokens that the model continues with an answer.
class ChatFormat {
 public:
  /// `file`: as of chat_template_of. Errors (input): those, and there is none.
  explicit ChatFormat(const TextModel& model, const std::string& file = "");

  /// The text of the conversation and what comes before an answer, in which special tokens of
  /// messages count as such. Errors (input): a message is not UTF-8; the template does not allow
  /// the conversation.
  std::string text(std::span<const ChatMessage> messages) const;
  /// The tokens of the same. `tools`: a JSON list; empty: none. Errors
  /// (input): a message is not UTF-8, or one that is not the assistant's, or the tools, contain a
  /// special token; the template does not allow the conversation.
  std::vector<std::int64_t> prompt(std::span<const ChatMessage> messages,
                                   const std::string& tools = {}) const;
  /// How the template writes calls of tools. Error (input): in none of the forms that are known.
  const ToolCallForm& tool_calls() const;
  /// The form, where all answers have it; null: they are texts.
  const ToolCallForm* answer_form() const {
    return tool_calls_ && tool_calls_->of_every_answer() ? &*tool_calls_ : nullptr;
  }
  /// The special tokens in that form.
  std::vector<std::int64_t> tool_call_tokens() const;
  /// The token that the template writes behind an answer, where it is a special one, and the one
  /// after a message with a call: an answer ends with them, whether or not the model's files say
  /// so.
  const std::vector<std::int64_t>& end_tokens() const { return end_tokens_; }

 private:
  std::vector<std::int64_t> find_end() const;
  void find_tool_calls();
  void add_call_end();
  std::string rendered(std::span<const ChatMessage> messages, bool add_generation_prompt,
                       const std::string& tools = {}, bool arguments_as_text = false) const;

  const TextModel& model_;
  std::shared_ptr<const data::ChatTemplate> template_;
  std::set<std::string> of_parts_;  // roles whose contents are lists of parts
  std::vector<std::int64_t> end_tokens_;
  std::optional<ToolCallForm> tool_calls_;
};

/// A conversation that grows. What the model has read of it is not read again.
class Chat {
 public:
  /// The model must outlive it. Errors (input): those of ChatFormat and Engine.
  Chat(const TextModel& model, const std::string& template_file, GenerationOptions options,
       const EngineOptions& engine = {});

  /// Forgets all messages but that of the system.
  void reset();
  /// The message of the system; empty: none. Forgets all others.
  void set_system(const std::string& text);
  /// The model's answer, which becomes part of the conversation, as far as it was received. Errors
  /// (input): those of ChatFormat::prompt, and a conversation that is longer than the model
  /// computes; the conversation is as before then.
  GeneratedText answer(const std::string& question, const TextReceiver& receive);

  const std::vector<ChatMessage>& messages() const { return messages_; }
  const std::string& slow_because() const { return engine_.slow_because(); }

 private:
  const TextModel& model_;
  ChatFormat format_;
  Engine engine_;
  GenerationOptions options_;
  std::vector<ChatMessage> messages_;
};

}  // namespace tessera::text
