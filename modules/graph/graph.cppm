// Extensions of captured steps: places for changes, steps of several ranks, updates across steps,
// and the executor of a program by its name.
export module tessera.graph;

export import :anchor;         // register_anchor: calls that a change replaces
export import :data_parallel;  // data_parallel: the step of one rank as a step of several
export import :across_steps;   // split_across_steps: a step whose update is left to the next one
export import :execution;      // make_executor: passes and executor by name
