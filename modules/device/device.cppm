// Devices: what has memory and runs work in the order of streams. The CPU is one of them.
export module tessera.device;

export import :driver;  // DeviceDriver: what a kind of device implements; the kinds
export import :stream;  // Stream, Event: what runs after what
export import :blocks;  // the caching allocator: splits and joins blocks, in stream order
export import :memory;  // memory of the CPU and of devices, bytes by category
