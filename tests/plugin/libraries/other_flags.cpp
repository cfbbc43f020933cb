// Only a stamp, compiled with flags that break the binary interface: clang refuses to import the
// host's own interfaces under them, an outsider who builds the interfaces anew is not stopped by
// that.
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
    .name = "OtherFlags",
    .version = "0.1.0",
    .provides = "greeter:OtherFlags",
    .description = "",
    .digest = {},
};
}
