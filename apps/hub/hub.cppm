export module tessera.hub;

export import :hub_weights;  // a folder's tensors as a model's parameters, and the other way round
export import :gguf;         // a GGUF file as such a folder, and the other way round
