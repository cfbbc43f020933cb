export module tessera.app.data;

export import :dataset;       // the batches of a run
export import :token_source;  // all tokens of a run: an interface, one class for each kind of data
export import :tokenizer;     // between text and token ids
export import :tokens;        // those that are read from files
export import :text_files;    // the files of data.text
export import :npy;           // NumPy's files of token ids
export import :data_file;     // a file that must not change during a run
export import :permutation;   // a random order with random access
