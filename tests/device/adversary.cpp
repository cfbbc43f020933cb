// The adversarial device as a plugin.
#include <functional>

import tessera.base;
import tessera.plugin;
import tessera.tensor;

#include "adversary.hpp"

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<tessera::DevicePlugin>("adversary", adversary::offer);
}
