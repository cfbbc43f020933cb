// Only a stamp: what a plugin offers that was written for the kinds that are the kind "change" now.
#include <tessera/plugin_gate.h>

extern "C" {
extern const tessera::plugin::GateStamp tessera_plugin_stamp;
__attribute__((section(".tessera.plugin"), used, no_sanitize("address")))
const tessera::plugin::GateStamp tessera_plugin_stamp = {
    .magic = "tessera plugin\n",
    .size = sizeof(tessera::plugin::GateStamp),
    .abi_epoch = tessera::plugin::gate_abi_epoch,
    .fingerprint = TESSERA_INTERFACE_FINGERPRINT,
    .facts = TESSERA_GATE_FACTS,
    .name = "OldKinds",
    .version = "0.1.0",
    .provides = "pass:Trim transform:MeanLoss override:Norms",
    .description = "",
    .digest = {},
};
}
