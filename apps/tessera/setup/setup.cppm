export module tessera.app.setup;

export import :objects;       // from a config to the library's objects
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
