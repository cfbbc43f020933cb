// Tokenizers, the plugin kind "tokenizer": from texts to token ids and back.
export module tessera.tokenize;

export import :tokenizer;  // Tokenizer, encode_all, StreamDecoder
export import :open;       // open_tokenizer, make_tokenizer: by the files of a folder, or by name
