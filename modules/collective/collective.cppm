// Communication between ranks: everything that its users need, with one import.
export module tessera.collective;

export import tessera.calls;          // what a call is; the error that ends a run
export import tessera.machines;       // MessageTransport: how messages move between machines
export import tessera.communication;  // the world of a rank and its communicators
export import tessera.launch;         // one process per rank, ranks as threads, joining
export import :bench;                 // rates of the collectives against the machine's memcpy
