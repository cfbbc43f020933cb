// The ranks of one machine: the memory that they share, their processes and signals.
export module tessera.ranks;

export import :region;   // memory that several ranks map, with its extents and locks
export import :control;  // the start of a region: what each rank does, the first error, groups, the
                         // flight recorder
export import :member;   // a rank's side of a group: what it publishes and how far it is
export import :point_to_point;  // channels of messages between two ranks of a group
export import :process;         // a process by its number and its start
export import :signals;         // requests to stop
