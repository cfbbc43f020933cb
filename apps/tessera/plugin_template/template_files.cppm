export module tessera.app.plugin_template:template_files;

import tessera.app.base;

// Files that `tessera plugin new` writes. The texts lie beside this file, one folder for each kind,
// and are a part of the program.

export namespace tessera::app {

struct TemplateFile {
  std::string path;  // inside the plugin's folder
  std::string text;
};

/// The kinds for which there is a template.
std::vector<std::string> template_kinds();

/// The files of a new plugin called `name`. Errors (input): a kind without a template.
std::vector<TemplateFile> plugin_template(const std::string& kind, const std::string& name);

/// Errors (input): `name` cannot be a class and a CMake target, or a plugin that is found provides
/// it already for this kind.
void check_plugin_name(const std::string& kind, const std::string& name);

/// Writes the files into the new folder `parent`/`name`, which it returns. Errors (input): the
/// folder is there already, or cannot be made; then nothing is written.
std::filesystem::path write_template(const std::vector<TemplateFile>& files,
                                     const std::filesystem::path& parent, const std::string& name);

}  // namespace tessera::app
