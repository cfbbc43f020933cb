// Weights as codes of few bits, and layers that compute with them: a product decodes a part of a
// weight at a time.
export module tessera.coded;

export import :code_type;     // CodeType: how the elements of a weight are stored
export import :code_rows;     // rows of a weight to codes and back, and their products
export import :coded_layers;  // linear layers, embeddings and experts that keep codes
