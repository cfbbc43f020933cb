export module tessera.sinks:sink_texts;

import tessera.base;

// What sinks need of texts and secrets.

export namespace tessera::sinks {

/// 32 hexadecimal digits that follow from the text alone, for identities at a receiver.
std::string id_of(std::string_view text);

/// The text, or where it is longer than `most` bytes its beginning and its end: at most about
/// `most`, and not cut within a character of UTF-8.
std::string cut_text(std::string_view text, std::size_t most);

/// The content of a file that nobody else may read, without white space at its end. Error (input)
/// that begins with `where`: it cannot be read, or is not secret.
std::string read_secret(const std::string& where, const std::string& path);

}  // namespace tessera::sinks
