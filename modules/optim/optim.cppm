// Optimizers over named parameters, learning-rate schedules, gradient clipping.
export module tessera.optim;

export import :rule;       // the plugin kind "optimizer"; AdamW and SGD
export import :optimizer;  // a rule over named parameters, groups, the state as a StateDict
export import :schedule;   // constant, cosine, linear, each with warmup
export import :clip;       // the global gradient norm over any layouts
