// Commands of the program tessera-tools: plans, benchmarks, bounds, checks of plugins.
export module tessera.app.tools;

export import :plugin_checks;  // of what a plugin's file registers
export import :plan;           // a step in time, on ranks that need not be there
export import :bench_compare;  // the same training here and under PyTorch
export import :roofline;       // the least time of a captured step
