export module tessera.conformance;

export import :checks;      // what operators and devices must do, and what they did
export import :compare;     // values, copies of them, and how far they may differ
export import :samples;     // calls of operators to check
export import :call_kinds;  // which collectives an operator issued
