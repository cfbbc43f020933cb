export module tessera.app.evaluation;

export import :likelihood;     // how likely a model finds tokens
export import :perplexity;     // of texts and records
export import :questions;      // multiple choice, and answers that must match
export import :stored_values;  // outputs and gradients that another program has stored
