export module tessera.hub;

export import :hub_weights;  // a folder's tensors as a model's parameters, and the other way round
