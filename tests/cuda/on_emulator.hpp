// The emulated GPU that the tests of the plugin share. Include it after the imports.
#pragma once

/// The plugin's device number `index`.
tessera::Device cuda(int index = 0);

/// Another order of streams, blocks and threads for the next calls.
void next_order();
