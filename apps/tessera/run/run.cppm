export module tessera.app.run;

export import :setup;         // from a config to the library's objects
export import :loss;          // the losses of a batch
export import :objective;     // what a run minimises, and what is measured besides
export import :reference;     // the frozen copy that preferences are compared with
export import :rates;         // what a captured step costs
export import :links;         // what communication costs
export import :fingerprint;   // what determines the loss curve
export import :execution;     // how captured steps are executed
export import :offload;       // values of captured steps in a file
export import :training_run;  // what all ranks agree on, and how a step is taken
export import :expert_loads;  // how many tokens experts have had
export import :trainer;       // one rank's part of a run
export import :mode;          // modes of data parallelism
export import :trial;         // steps tried on the meta device
export import :device_fit;    // whether a device can run a step
export import :rank_run;      // what one rank does, with its outputs
export import :checked_plan;  // what a plan says of a run before its ranks start
export import :saved_state;   // what a run begins with, compared with its config
export import :ranks_here;    // ranks that do something for a command
export import :healing;       // ranks that die are started again
export import :start;         // what a run looks at before it starts
export import :run_lock;      // one run at a time writes a folder
export import :metrics;       // the metrics file
export import :first_steps;   // the first steps of a run, as a program of their own
export import :event_file;    // TensorBoard's event files
export import :progress;      // the progress lines
export import :plan_table;    // the table before the first step
