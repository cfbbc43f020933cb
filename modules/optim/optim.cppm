// Optimizers over named parameters, learning-rate schedules, gradient clipping.
export module tessera.optim;

export import :rule;       // the plugin kind "optimizer"; the built-in rules by name
export import :optimizer;  // rules over named parameters, groups, the state as a StateDict
export import :schedule;   // constant, cosine, linear, each with warmup
export import :clip;       // the global gradient norm over any layouts
