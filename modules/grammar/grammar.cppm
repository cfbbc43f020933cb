// Grammars that a model's texts must follow.
export module tessera.grammar;

export import :expression;  // what a grammar consists of
export import :readers;     // grammars from GBNF and from JSON schemas
export import :automaton;   // a grammar as a machine over bytes with a stack
export import :constraint;  // which tokens may follow in a text
