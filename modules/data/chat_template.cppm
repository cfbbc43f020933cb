export module tessera.data:chat_template;

import tessera.base;

export namespace tessera::data {

/// Where an answer of the assistant is in the text of a conversation.
struct AnswerPlace {
  std::int64_t begin = 0;  // its first byte
  /// The byte behind it, where the template marks answers. Elsewhere it ends with the first token
  /// that ends generated texts.
  std::optional<std::int64_t> end = std::nullopt;
  std::int64_t message = 0;  // which message it is
};

/// A conversation as text, with the parts that are trained.
struct RenderedChat {
  std::string text;
  std::vector<AnswerPlace> answers;  // in their order
};

/// In which forms a template takes the contents of messages, so that it writes their texts.
struct ContentForms {
  bool texts = true;
  bool parts = false;  // lists of parts, {"type": "text", "text": "..."}
};

/// A text with places for the members of an object, in Jinja as lm-evaluation-harness reads it:
/// everything stays as it is written, and what is not defined is an error.
class TextTemplate {
 public:
  /// `name` begins the errors. Errors (input): as of ChatTemplate.
  TextTemplate(std::string_view text, const std::string& name);
  /// `members`: a JSON object. Errors (input): as of ChatTemplate::render.
  std::string render(std::string_view members) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// A chat template in Jinja, as folders of models have it: from a conversation to the text that the
/// model reads. It supports what the templates of common families use (docs/data.md).
class ChatTemplate {
 public:
  /// `name` begins the errors. `variables`: a JSON object with what templates may use besides the
  /// conversation: bos_token, eos_token, and settings of the template's own; `now`: the date that
  /// strftime_now reads ("2026-01-31"). Errors (input) with name and line: it is not a template, or
  /// has a construct that is not supported.
  ChatTemplate(std::string_view text, const std::string& name, std::string_view variables = "{}");

  /// Whether it marks with {% generation %} what the model generates.
  bool marks_answers() const;

  /// Of messages of a role (system, user, assistant or tool), found by rendering short
  /// conversations. Texts, where neither can be rendered.
  ContentForms content_forms(std::string_view role) const;

  /// The text of a conversation, a JSON object with `messages` and, where there are, `tools`;
  /// `add_generation_prompt`: it ends with what comes before an answer. Errors (input) with name
  /// and line: the template does not allow it, also what it refuses itself, and what takes more
  /// steps or memory than is allowed.
  std::string render(std::string_view conversation, bool add_generation_prompt) const;

  /// The whole conversation, and where its answers are: where the template marks them; elsewhere an
  /// answer begins after the text of the messages before it with add_generation_prompt, with which
  /// the whole text must begin. Errors (input): as above, and a text that does not begin so: the
  /// template must mark answers then.
  RenderedChat render_with_answers(std::string_view conversation) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace tessera::data
