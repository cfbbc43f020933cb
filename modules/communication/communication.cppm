// Communication of a rank: the world, and the communicators of its groups.
export module tessera.communication;

export import :work;          // Work: an asynchronous call in flight
export import :observer;      // observers see what communicators do, before it happens
export import :buffer;        // SharedBuffer: memory that every rank can reach
export import :communicator;  // Communicator: the collectives of one group of ranks
export import :device_group;  // DeviceGroup: what a plugin of the kind "collectives" implements
export import :world;         // World: this rank among all; errors, progress, interrupts
