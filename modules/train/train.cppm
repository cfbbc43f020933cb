// The training step of any model and plan, and the state that a run continues from.
export module tessera.train;

export import :captures;           // how captured steps were taken, and why programs were captured
export import :captured_function;  // CapturedFunction: programs of calls, and which one a call has
export import :ahead;              // on_meta: steps that are captured before the first one
export import :training;          // Training: micro-batches, backward, reduction, clipping, update,
                                  // checkpoints
export import :checkpoints;       // RunCheckpoints: when a run saves, in the background or not
export import :captured_step;     // CapturedStep: a step of a program's own, captured
export import :compare_programs;  // compare_programs: whether ranks communicate alike
export import :override;          // Override: modules of which captured steps have others
export import :other_memory;      // places of parameters, for values of captured steps
export import :run;               // run_training: a program's whole training of its own model
