// Reverse-mode differentiation over the dispatcher: operators are recorded, and backward calls
// operators.
export module tessera.autograd;

export import :node;        // Node: one recorded step; record_function() for steps of your own
export import :engine;      // backward(), grad()
export import :hooks;       // hooks on gradients, after accumulation, at the end
export import :checkpoint;  // activation checkpointing: recomputation instead of saving
