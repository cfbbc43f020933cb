export module tessera.grammar:readers;

import tessera.base;
import :expression;

// Grammars from the forms in which clients write them.

export namespace tessera::grammar {

/// The grammar in a text in GBNF, as llama.cpp takes it; the first rule is "root". Errors (input):
/// a text that is not GBNF, by its line; tokens as parts, which are not supported.
Grammar parse_gbnf(std::string_view text);

/// How values are written.
struct JsonNotation {
  std::string quote = {};  // a mark around texts, while names of members have none; empty: JSON
};

/// Adds what a JSON schema (draft 2020-12, a JSON text) allows to a grammar: texts that the schema
/// accepts, not all of them (docs/serving.md). Members are in the order of the schema. `place`:
/// what begins the paths in errors. Errors (input): it is not JSON; a keyword that is not
/// supported, or has a wrong value, by its path; a reference to nothing; a condition of texts, or a
/// name of a member, that cannot be kept in this notation.
Expression add_json_schema(Grammar& grammar, std::string_view schema, const std::string& place,
                           const JsonNotation& notation = {});

/// A schema that is read once, and of which parts are added.
class JsonSchema {
 public:
  /// Error (input): it is not JSON.
  JsonSchema(std::string_view schema, std::string place);
  /// As add_json_schema what is at `part`, a JSON pointer (empty: the whole), where references are
  /// to places of the whole.
  Expression add(Grammar& grammar, const std::string& part = {},
                 const JsonNotation& notation = {}) const;

 private:
  struct Parsed;
  std::shared_ptr<const Parsed> parsed_;
};

/// Adds all JSON objects.
Expression add_json_object(Grammar& grammar, const JsonNotation& notation = {});

/// Adds texts in which the mark is not, without characters that control a terminal, and the mark
/// after each.
Expression text_before(Grammar& grammar, const std::string& mark);

}  // namespace tessera::grammar
