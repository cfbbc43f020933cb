// Executors of programs: through the operators' calls, or as a list of kernel calls in one block
// of memory.
export module tessera.execute;

export import :guard_failure;    // GuardFailure: a guard has another value than in the recording
export import :executor;         // Executor: executes a program step by step; memory elsewhere
export import :replay;           // Replay: by calls of its operators
export import :memory_plan;      // MemoryPlan: places of memories with known lifetimes in one block
export import :chains;           // Chain: neighbouring calls that are one loop
export import :block;            // Block: the memory that a planned program needs
export import :compiled_chains;  // CompiledChains: chains as generated and compiled code
export import :planned_executor;  // PlannedExecutor: as a list of kernel calls
