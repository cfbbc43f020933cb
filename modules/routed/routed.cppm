// Rows that a router sends to experts: their order, the exchange between ranks that have different
// experts, and the sum of what comes back. In which form matrices are kept is not known here.
export module tessera.routed;

export import :expert_layer;  // what a layer's experts compute of the rows that are routed to them
