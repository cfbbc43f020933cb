// The data of a training: documents of files as tokens, what of them is trained, and the rows of
// each step.
export module tessera.data;

export import :data_file;        // a file that must not change during a run
export import :unpacker;         // the content of compressed files
export import :npy;              // NumPy's files of token ids
export import :token_source;     // tokens one after the other: an interface
export import :tokens;           // those that are stored in files
export import :chat_template;    // from a conversation to a text, and where its answers are
export import :text_encoding;    // texts without a conversation as tokens, by one rule
export import :record_forms;     // records as others write them
export import :labelled;         // records with the name of a class
export import :examples;         // from a record of JSONL to tokens, and which of them are trained
export import :encoded_text;     // the tokens of texts, made when they are read
export import :documents;        // the records of JSONL files as documents
export import :rows;             // windows, documents and preferences as the rows of batches
export import :image;            // images of files as pixels
export import :labelled_images;  // images with the names of their classes, and rows of them
export import :packing;          // several documents in each row
export import :permutation;      // a random order with random access
export import :mixture;          // which row of which source each place takes
export import :row_order;        // the same without rows that were left out
