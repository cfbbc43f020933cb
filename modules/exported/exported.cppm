// Programs that PyTorch's torch.export has written, as models.
export module tessera.exported;

export import :graph;     // a program as data: values, nodes, modules
export import :model;     // a program as a tree of modules that computes it
export import :language;  // a program of the next token, and the family of all of them
