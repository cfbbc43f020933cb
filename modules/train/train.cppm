// The training step of any model and plan, and the state that a run continues from.
export module tessera.train;

export import :step_plan;             // what programs of steps are given: numbers, guards, inputs
export import :stage_states;          // what stages that are only planned find of each other
export import :meta_step;             // on_meta: steps that are captured before the first one
export import :step;                  // what a training step is given and returns
export import :captured_steps;        // CapturedSteps: a training's, replayed from programs
export import :captured_evaluation;   // its evaluation as a program
export import :training_checkpoints;  // its state, saved and loaded
export import :training;              // Training: forward and backward, clipping, update
export import :checkpoints;           // RunCheckpoints: when a run saves, in the background or not
export import :spikes;                // SpikeDetector: steps that are far from those before them
export import :stragglers;            // Stragglers: ranks for which the others wait
export import :compile;               // compile: any step, captured at its calls
export import :compare_programs;      // compare_programs: whether ranks communicate alike
export import :replace_modules;       // modules of which captured steps have others
