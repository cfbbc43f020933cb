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

/// How a family of models writes calls: a section is `begin`, calls, `end`. A call in JSON is
/// `{name: "...", arguments: {...}}`; where there is a `between`, it is `call`, the name,
/// `between`, the arguments, `call_end`.
struct ToolCallForm {
  std::string begin = {};  // empty: the whole answer is a call
  std::string end = {};    // empty: a section has one call, or one list of them
  bool in_list = false;    // calls in JSON are a list
  std::string name = "name";
  std::string arguments = "arguments";
  std::string call = {};
  std::string between = {};
  std::string call_end = {};
  std::string name_end = {};       // before `between`: what follows the name, which is left out
  std::string opening = {};        // may be before a whole answer
  bool arguments_as_text = false;  // the template takes arguments as a text
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
  explicit ToolCallReader(ToolCallForm form) : form_(std::move(form)) {}

  /// What is known after this part of the answer.
  Part add(std::string_view part);
  /// The answer has ended. What began like a call and is none is shown.
  Part finish();

 private:
  struct Section;
  Part advance(bool whole);
  void show(std::string_view text, Part& part);
  Section section(std::string_view text, bool whole) const;
  bool read_calls(std::string_view json, std::vector<ToolCall>& calls) const;
  bool read_named(std::string_view& rest, bool whole, Section& section) const;

  ToolCallForm form_;
  std::string held_;       // not yet shown, nor a call
  bool has_call_ = false;  // blanks after calls are not shown
  bool has_text_ = false;
};

/// Texts that are one call of one of the tools, or with `several` one or more. Errors (input): a
/// tool's schema is not supported, by its path after `place`.
grammar::Grammar tool_call_grammar(const ToolCallForm& form, std::span<const Tool> tools,
                                   bool several, const std::string& place);

}  // namespace tessera::text
