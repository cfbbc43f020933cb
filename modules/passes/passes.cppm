// Changes of captured steps, and the built-in ones: passes, which improve a program and leave its
// bits.
export module tessera.passes;

export import :editor;        // Editor: a program while it is changed
export import :change;        // Change: its facts and what it does; the built-in passes
export import :run_changes;   // run_passes, run_change: each change is verified
export import :recompute;     // fit_memory: a program under a budget of memory
export import :keep_gathers;  // keep_gathers: what was gathered is not gathered again
export import :renumbering;   // Renumbering: a program that is written again
