export module tessera.hub:folder_files;

import tessera.base;

// Further files that transformers and PEFT would read in a folder of a model or of an adapter.

export namespace tessera::hub {

/// Error (input) that begins with `where`: the model's folder has a file with which transformers
/// computes another model, adapter_config.json. It is not an error where `adapter`, the folder of
/// the run's adapter, is the same one; it may be empty.
void check_model_files(const std::filesystem::path& folder, const std::string& adapter,
                       const std::string& where);

/// The files of weights, and what else transformers reads with a model, that the folder has
/// besides those that are `used`: sorted, a folder's name ends with a slash.
std::vector<std::string> files_left_out(const std::filesystem::path& folder,
                                        const std::set<std::string>& used);

/// "; left out: a, b, c and 3 more", or nothing.
std::string left_out_text(const std::vector<std::string>& names);

}  // namespace tessera::hub
