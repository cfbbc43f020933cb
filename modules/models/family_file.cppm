export module tessera.models:family_file;

import tessera.base;
import :family;
import :decoder_family;

// Families of decoders as files of TOML: *.family.toml (docs/family-files.md).
export namespace tessera::models {

/// What a family file describes.
struct FamilyFile {
  std::string family;  // model.family, and model_type in config.json
  std::string about;   // what it has besides a Llama, in a few words
  DecoderTraits traits;
};

/// Reads a family file of at most 1 MB. Error (input): all its problems, each with its line.
/// `file`: its name, for errors.
FamilyFile read_family_file(const std::string& file, std::string_view text);

/// The built-in families in the order of the documentation: their names and files.
struct BuiltInFamily {
  std::string_view file;  // "llama.family.toml"
  std::string_view text;
};
std::span<const BuiltInFamily> built_in_family_files();
/// The built-in family of this name. Error (input): there is none.
FamilyFile built_in_family(std::string_view family);

}  // namespace tessera::models
