// otlp and mlflow: what a run tells, over HTTP.
#include <memory>
#include <optional>
#include <string>

import tessera.base;
import tessera.options;
import tessera.plugin;
import tessera.sinks;
import tessera.stores;

#include "sink_server.hpp"

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<tessera::sinks::Sink>("otlp", http_sinks::make_otlp_sink);
  registrar.add<tessera::sinks::Sink>("mlflow", http_sinks::make_mlflow_sink);
}
