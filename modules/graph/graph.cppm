// What is known of a recorded program, what improves it, and what executes it without a dispatcher.
export module tessera.graph;

export import :memory_plan;    // MemoryPlan: places of memories with known lifetimes in one block
export import :verify;         // verify, verify_same: what a program must be, and what passes keep
export import :analysis;       // Analysis: what is known of a program's memories and order
export import :pass;           // run_passes: improves a program and verifies each change
export import :transform;      // Transform: a change of what a step computes, with state of its own
export import :anchor;         // register_anchor: calls that a transformation replaces
export import :recompute;      // fit_memory: a program under a budget of memory
export import :keep_gathers;   // keep_gathers: what was gathered is not gathered again
export import :statistics;     // statistics_of: calls, collectives and memory of a program
export import :communication;  // communication_of: what ranks must have alike
export import :regions;        // regions_of: a program by phase and module
export import :difference;     // difference: the lines in which two texts differ
export import :data_parallel;  // data_parallel: the step of one rank as a step of several
export import :across_steps;   // split_across_steps: a step whose update is left to the next one
export import :planned;        // Planned: executes a program as a list of kernel calls
export import :execution;      // make_executor: an executor by its name
