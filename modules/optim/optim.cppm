// Optimizers over named parameters, learning-rate schedules, gradient clipping.
export module tessera.optim;

export import :rule;       // the plugin kind "optimizer"; the built-in rules by name
export import :optimizer;  // rules over named parameters, groups, the state as a StateDict
export import :schedule;   // constant, cosine, linear, each with warmup
export import :clip;       // the gradients' norm over any meshes and layouts, and limits
export import :scaler;     // the factor of the loss for gradients in f16
export import :lbfgs;      // L-BFGS, which evaluates the loss several times in a step
