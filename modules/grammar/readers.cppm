export module tessera.grammar:readers;

import tessera.base;
import :expression;

// Grammars from the forms in which clients write them.

export namespace tessera::grammar {

/// The grammar in a text in GBNF, as llama.cpp takes it; the first rule is "root". Errors (input):
/// a text that is not GBNF, by its line; tokens as parts, which are not supported.
Grammar parse_gbnf(std::string_view text);

/// Adds what a JSON schema (draft 2020-12, a JSON text) allows to a grammar: texts that the schema
/// accepts, not all of them (docs/serving.md). Members are in the order of the schema. `place`:
/// what begins the paths in errors. Errors (input): it is not JSON; a keyword that is not
/// supported, or has a wrong value, by its path; a reference to nothing.
Expression add_json_schema(Grammar& grammar, std::string_view schema, const std::string& place);

/// Adds all JSON objects.
Expression add_json_object(Grammar& grammar);

}  // namespace tessera::grammar
