// Communication between ranks: communicators over shared memory, the world, launching ranks.
export module tessera.collective;

export import :call;          // what a collective call is: kind, type, count, its printed form
export import :work;          // Work: an asynchronous call in flight
export import :observer;      // observers see what communicators do, before it happens
export import :buffer;        // SharedBuffer: memory that every rank can reach
export import :communicator;  // Communicator: the collectives of one group of ranks
export import :world;         // World: this rank among all; errors, progress, interrupts
export import :transport;  // MessageTransport: how messages move between machines; a kind of plugin
export import :launch;     // one process per rank, ranks as threads, joining another launcher
export import :bench;      // rates of the collectives against the machine's memcpy
