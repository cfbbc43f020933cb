// Optimizers over named parameters, learning-rate schedules, gradient clipping.
export module tessera.optim;

export import :optimizer;  // AdamW and SGD, with their state as a StateDict
export import :schedule;   // constant, cosine, linear, each with warmup
export import :clip;       // the global gradient norm over any layouts
