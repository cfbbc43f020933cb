export module tessera.machines:loopback;

import tessera.base;
import :transport;

export namespace tessera::collective {

/// Connects ranks that are threads of one process and play several machines, for tests.
class LoopbackHub;
std::shared_ptr<LoopbackHub> make_loopback_hub(int size);
std::unique_ptr<MessageTransport> make_loopback(std::shared_ptr<LoopbackHub> hub);

}  // namespace tessera::collective
