export module tessera.text:tool_calls;

import tessera.base;
import tessera.grammar;

// Calls of tools in answers, in the forms in which templates of models write them.

export namespace tessera::text {

/// A call of a tool.
struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
};

/// A tool that may be called.
struct Tool {
  std::string name;
  std::string parameters;  // a JSON schema; empty: any object
};

/// Calls in JSON: `{name: "...", arguments: {...}}`.
struct JsonCalls {
  std::string name = "name";  // empty: the one member is the name with the arguments
  std::string arguments = "arguments";
  bool in_list = false;      // calls are a list
  std::string opening = {};  // may be before a whole answer
};

/// Calls of a name with arguments in JSON: `call`, the name, `between`, the arguments, `call_end`.
struct NamedCalls {
  std::string call = {};
  std::string between = {};  // empty: the arguments follow the name
  std::string call_end = {};
  std::string name_end = {};  // before `between`: a number of the call follows, which is left out
  std::string quote = {};  // a mark around texts of arguments, whose names have none; empty: JSON
};

/// Calls with a mark for each argument: `call`, the name, `name_end`; of each argument `key`, its
/// name, `key_end`, `value`, a text or JSON, `value_end`; then `call_end`. Where `json_key_end` is
/// empty, the tool's schema says which values are texts.
struct TaggedCalls {
  std::string call = {};
  std::string name_end = {};  // empty: the name ends with its line, or before the next mark
  std::string key = {};
  std::string key_end = {};
  std::string json_key_end = {};  // in the place of `key_end` before JSON
  std::string value = {};
  std::string value_end = {};
  std::string call_end = {};
};

/// Messages of an answer in channels: each is `message`, a header, `content`, its text, `end`. The
/// header has `channel` and a name, and before or after it `recipient` with a tool's name, whose
/// arguments in JSON then are the text, and `call_end` is in the place of `end`. The answer begins
/// within the first header.
struct ChannelCalls {
  std::string message = {};
  std::string channel = {};
  std::string content = {};
  std::string end = {};
  std::string recipient = {};
  std::string json = {};  // in the header of a call, before the word for JSON
  std::string call_end = {};
  std::string thoughts = {};  // the name of the channel that is not for who asked
};

/// How a family of models writes calls: a section is `begin`, calls, `end`.
struct ToolCallForm {
  std::string begin = {};  // empty: the whole answer is a call
  std::string end = {};    // empty: a section has one call, or one list of them
  bool several = false;    // calls of a section follow each other, besides those of a list
  std::variant<JsonCalls, NamedCalls, TaggedCalls, ChannelCalls> calls = JsonCalls{};
  bool arguments_as_text = false;  // the template takes arguments as a text

  /// All texts that are written besides names and arguments.
  std::vector<std::string> marks() const;
  /// The part of a text that is the answer, without its header and the token for its end.
  std::string_view answer_in(std::string_view text) const;
  /// Whether every answer has this form, also without calls.
  bool of_every_answer() const;
};

/// The forms that are known.
std::span<const ToolCallForm> tool_call_forms();

/// A conversation's answer as it is read: what is shown of it, and the calls.
class ToolCallReader {
 public:
  struct Part {
    std::string text = {};
    std::string thoughts = {};         // that are not for who asked
    std::vector<ToolCall> calls = {};  // that are complete
  };
  /// `tools`: by their schemas an argument with a mark of its own is a text, or JSON.
  explicit ToolCallReader(ToolCallForm form, std::span<const Tool> tools = {});

  /// What is known after this part of the answer.
  Part add(std::string_view part);
  /// The answer has ended. What began like a call and is none is shown.
  Part finish();

 private:
  struct Section;
  Part advance(bool whole);
  Part advance_messages(const ChannelCalls& form, bool whole);
  bool take_header(const ChannelCalls& form, bool whole, std::string_view& rest);
  void show_message(std::string_view text, Part& part) const;
  void show(std::string_view text, Part& part);
  Section section(std::string_view text, bool whole) const;

  struct Schemas;

  ToolCallForm form_;
  std::shared_ptr<const Schemas> schemas_;  // of the tools' arguments
  std::string held_;                        // not yet shown, nor a call
  bool has_call_ = false;                   // blanks after calls are not shown
  bool has_text_ = false;

  /// Where an answer in channels is.
  enum class Place : std::uint8_t { header, text, thoughts, call };
  Place place_ = Place::header;
  std::string called_;  // the tool
};

/// Texts that are one call of one of the tools, or with `several` one or more. Errors (input): a
/// tool's schema is not supported, by its path after `place`; in TaggedCalls, and with a quote in
/// NamedCalls, a text has conditions besides `enum` and `const`; in TaggedCalls the arguments have
/// others than `properties` and `required`.
grammar::Grammar tool_call_grammar(const ToolCallForm& form, std::span<const Tool> tools,
                                   bool several, const std::string& place);

}  // namespace tessera::text
