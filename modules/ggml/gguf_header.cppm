export module tessera.ggml:gguf_header;

import tessera.base;

export namespace tessera {

/// Whether the file begins as GGUF files do. Never throws.
bool is_gguf(const std::string& path);

}  // namespace tessera
