export module tessera.app.model;

export import :model_shape;   // which model a config, a folder or a checkpoint describes
export import :model_sizes;   // the model of a shape, by its family
export import :stored_sizes;  // claimed sizes against the tensors that are stored
export import :new_tokens;    // rows for tokens that a folder's model does not have
export import :folder_files;  // other files in a folder of a model
