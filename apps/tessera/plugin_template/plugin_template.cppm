export module tessera.app.plugin_template;

export import :template_files;  // the files of a new plugin
