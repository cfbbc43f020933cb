export module tessera.app.tools:plugin_checks;

import tessera.plugin;
import tessera.app.base;

export namespace tessera::app {

/// See Tools::check_plugin.
bool check_plugin(const plugin::CheckReport& report, bool with_notes);

}  // namespace tessera::app
