// Files of ggml (GGUF), as tokenizers, weights and whole models of several modules are in them.
export module tessera.ggml;

export import :gguf_header;  // is_gguf; the header's contents are in tessera/gguf.hpp
