// Several machines: what ranks of one tell those of the others, and how messages move.
export module tessera.machines;

export import :transport;  // MessageTransport: how messages move between machines; a kind of plugin
export import :wire;       // what messages consist of
export import :bridge;     // Bridge: connects the region of one machine with those of the others
export import :sockets;    // TCP: what launchers and the transport tcp have in common
export import :run_key;    // RunKey: the secret that the processes of a run share
export import :proof;      // ProvenLink: connections of those who have the key, and checksums
export import :streams;    // MessageStream: messages over such a connection
export import :loopback;   // a transport between threads that play machines, for tests
