// Passes: they improve a program and leave its bits.
export module tessera.passes;

export import :pass;          // Pass, run_passes: improves a program and verifies each change
export import :recompute;     // fit_memory: a program under a budget of memory
export import :keep_gathers;  // keep_gathers: what was gathered is not gathered again
export import :renumbering;   // Renumbering: a program that is written again
