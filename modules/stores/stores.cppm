// Files and folders that are not on this machine: what an address names, and who reads and writes
// it.
export module tessera.stores;

export import :address;      // Address, Location: what a config or command names
export import :store_error;  // StoreError: what a store could not do, and whether it may pass
export import :store;        // StoreReader, StoreWriter: the plugin kind "store"
export import :opened;       // OpenStore, OpenWritableStore, Upload: a store with time limits and
                             // retries
export import :local_copy;   // fetch: a copy on this machine, kept for the next time
