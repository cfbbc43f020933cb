// Modules with qualified names, hooks and parameters; layers; the model families.
export module tessera.nn;

export import :tree;    // Module, Parameter, hooks, EvaluationScope
export import :layers;  // Linear, Embedding, RMSNorm, Dropout
export import :llama;   // the Llama family, with Hugging Face's names
