// Models as others store them: config, weights, tokenizer and low-rank updates in the formats of
// transformers, ggml, PEFT and bitsandbytes, and in checkpoints.
export module tessera.hub;

export import :model_shape;       // which model a folder, a GGUF file or a checkpoint describes
export import :model_sizes;       // the model of a shape, by its family
export import :stored_sizes;      // claimed sizes against the tensors that are stored
export import :model_tokenizer;   // its tokenizer, and how texts and records become tokens
export import :whole_checkpoint;  // a checkpoint with the weights that it leaves out
export import :new_tokens;        // its weights, with rows for tokens that the folder does not have
export import :hub_weights;  // a folder's tensors as a model's parameters, and the other way round
export import :classifier_folder;  // decoders that tell the classes of texts
export import :folder_files;       // other files in a folder of a model
export import :model_files;        // which files of a repository are read
export import :gguf;               // a GGUF file as such a folder, and the other way round
export import :config_use;         // what of a config.json is understood
export import :updates;            // a model's low-rank updates, and its weights with them
export import :peft;               // folders in PEFT's format
export import :peft_config;        // adapter_config.json
export import :adapter_weights;    // a model's folder as it is with an adapter in it
export import :nf4;                // weights of 4 bits
export import :mxfp4;              // experts of 4 bits
