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
  std::string between = {};
  std::string call_end = {};
  std::string name_end = {};  // before `between`: what follows the name, which is left out
};

/// Calls with a mark for each argument: `call`, the name, `name_end`; of each argument `key`, its
/// name, `key_end`, `value`, a text or JSON, `value_end`; then `call_end`.
struct TaggedCalls {
  std::string call = {};
  std::string name_end = {};  // empty: the name ends with its line, or before the next mark
  std::string key = {};
  std::string key_end = {};
  std::string value = {};
  std::string value_end = {};
  std::string call_end = {};
};

/// How a family of models writes calls: a section is `begin`, calls, `end`.
struct ToolCallForm {
  std::string begin = {};  // empty: the whole answer is a call
  std::string end = {};    // empty: a section has one call, or one list of them
  bool several = false;    // calls of a section follow each other, besides those of a list
  std::variant<JsonCalls, NamedCalls, TaggedCalls> calls = JsonCalls{};
  bool arguments_as_text = false;  // the template takes arguments as a text

  /// All texts that are written besides names and arguments.
  std::vector<std::string> marks() const;
};

/// The forms that are known.
std::span<const ToolCallForm> tool_call_forms();

/// A conversation's answer as it is read: what is shown of it, and the calls.
class ToolCallReader {
 public:
  struct Part {
    std::string text = {};
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
  void show(std::string_view text, Part& part);
  Section section(std::string_view text, bool whole) const;

  struct Schemas;

  ToolCallForm form_;
  std::shared_ptr<const Schemas> schemas_;  // of the tools' arguments
  std::string held_;                        // not yet shown, nor a call
  bool has_call_ = false;                   // blanks after calls are not shown
  bool has_text_ = false;
};

/// Texts that are one call of one of the tools, or with `several` one or more. Errors (input): a
/// tool's schema is not supported, by its path after `place`; in TaggedCalls a text has conditions
/// besides `enum` and `const`, or the arguments have others than `properties` and `required`.
grammar::Grammar tool_call_grammar(const ToolCallForm& form, std::span<const Tool> tools,
                                   bool several, const std::string& place);

}  // namespace tessera::text
