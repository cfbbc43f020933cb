// Calls what nobody defines.
import tessera.plugin;

void nobody_defines_this();

void register_plugin(tessera::plugin::Registrar&) { nobody_defines_this(); }
