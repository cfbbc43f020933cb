// What is known of a recorded program, what improves it, and what executes it without a dispatcher.
export module tessera.graph;

export import :memory_plan;  // MemoryPlan: places of memories with known lifetimes in one block
