// Reverse-mode differentiation over the dispatcher: what is recorded are operators, what runs
// backward are operators.
export module tessera.autograd;

export import :node;        // Node: one recorded step; record_function() for steps of one's own
export import :engine;      // backward(), grad()
export import :hooks;       // hooks on gradients, after accumulation, at the end
export import :checkpoint;  // activation checkpointing: compute again instead of saving
